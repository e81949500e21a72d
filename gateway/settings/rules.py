"""Finds rules of `access` that cannot mean what they say: the obvious ones, by comparing texts. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from gateway.settings.callers import AccessRule, Authentication
from gateway.settings.document import Path
from gateway.settings.explain import nearest
from gateway.settings.models import Config

_KINDS = ("tools", "prompts", "resources", "methods")


def strange_callers(config: Config) -> Iterator[tuple[Path, str]]:
    """Yield whom rules name and nobody can be: such a rule was mistyped, or its key is gone."""
    ways = config.authentication
    if not ways.on:
        return  # what is left of it is worth a word, see `odd_rules`
    for index, rule in enumerate(config.access.rules):
        for place, pattern in enumerate(rule.callers):
            # Whether there are such callers now is one setting, and no slip of the pen.
            if not fnmatchcase("anonymous", pattern) and not _somebody(pattern, ways):
                yield ("access", "rules", index, "callers", place), _strange(pattern, ways)


def nobody(caller: str, config: Config) -> str | None:
    """Return why no caller can have this name, None where there may be one."""
    ways = config.authentication
    if caller == "anonymous":
        if ways.anonymous or not ways.on:
            return None
        return "nobody is `anonymous`: authentication.anonymous is not set"
    if not ways.on:
        return "without `authentication` everybody is `anonymous`"
    exact = re.sub(r"[*?[]", r"[\g<0>]", caller)
    return None if _somebody(exact, ways) else _strange(caller, ways)


def _somebody(pattern: str, ways: Authentication) -> bool:
    """Whether a caller who proved who he is may have such a name; where that is not plain he may."""
    if any(fnmatchcase(f"key:{name}", pattern) for name in ways.keys):
        return True
    kinds = [f"{name}:" for name in ways.tokens]
    if ways.certificates.source is not None:
        kinds.append("cert:")
    literal = _literal(pattern)
    if literal is None:
        head = re.split(r"[*?[]", pattern, maxsplit=1)[0]
        return any(head.startswith(kind) or kind.startswith(head) for kind in kinds)
    kind, _, name = literal.partition(":")
    if not name or f"{kind}:" not in kinds:
        return False
    return kind != "cert" or any(fnmatchcase(name, each) for each in ways.certificates.names)


def _literal(pattern: str) -> str | None:
    """Return the only name that a pattern fits, None where there are more."""
    plain = re.sub(r"\[([*?[])\]", "", pattern)
    return None if re.search(r"[*?[]", plain) else re.sub(r"\[([*?[])\]", r"\1", pattern)


def _strange(caller: str, ways: Authentication) -> str:
    kinds = [f"{name}:SUBJECT" for name in ways.tokens]
    kinds += ["key:NAME"] if ways.keys else []
    kinds += ["cert:NAME"] if ways.certificates.source is not None else []
    kind, _, name = caller.partition(":")
    known = [f"key:{each}" for each in ways.keys]
    if kind != "cert" or ways.certificates.source is None:
        known += [f"{each}:{name or kind}" for each in ways.tokens]
    return f"no caller is called `{caller}`: they are {', '.join(kinds)}{nearest(caller, known)}"


def odd_rules(config: Config) -> Iterator[str]:
    """Yield what is allowed and worth a second look."""
    rules = config.access.rules
    for index, rule in enumerate(rules):
        place = f"access.rules[{index}]"
        first = next((before for before in range(index) if _covers(rules[before], rule)), None)
        if first is not None:
            yield f"{place} never decides: access.rules[{first}] is about all of it"
        yield from (f"{place}.{text}" for text in _pointless(rule, config))
    if config.access.on and not rules:
        yield "access denies everything to everybody: there are no rules that allow anything"
    elif "access" in config.model_fields_set and not rules and config.access.default is None:
        yield (
            "access holds no rules: everybody who comes in may use everything; write rules, or default: deny"
            ", or leave it out"
        )


def _pointless(rule: AccessRule, config: Config) -> Iterator[str]:
    named = rule.upstreams or list(config.upstreams)
    if rule.annotations and not any(config.upstreams[name].trust_annotations for name in named):
        yield (
            "annotations: no upstream that it is about has `trust_annotations`, so each tool is taken "
            "for the worst"
        )
    served = [
        name for path in rule.endpoints or config.endpoints for name in config.behind(path) if name in named
    ]
    if not served:
        yield "upstreams: none of them is served at its endpoints"
    yield from _clients_names(rule, config)
    ways = config.authentication
    if not ways.on and _tells_apart(rule):
        yield "callers, claims and scopes: without `authentication` everybody is `anonymous`, and has none"
    elif rule.claims and not ways.tokens:
        yield "claims: nobody has any without authentication.tokens"
    elif rule.claims and rule.callers and all(one.startswith(("key:", "cert:")) for one in rule.callers):
        yield "claims: keys and certificates have none"
    elif rule.scopes and not _grants(ways):
        yield "scopes: nobody has any, by the ways in which callers prove who they are"
    if ways.on and not ways.anonymous and "anonymous" in rule.callers:
        yield "callers: nobody is `anonymous`, as authentication.anonymous is not set"


def _clients_names(rule: AccessRule, config: Config) -> Iterator[str]:
    """Yield patterns that look like what clients see; rules go by what upstreams call their own."""
    prefixes = {name: one.prefix for name, one in config.upstreams.items() if one.prefix}
    names = {f"{prefix}{config.names.separator}": name for name, prefix in prefixes.items()}
    uris = {f"{prefix}+": name for name, prefix in prefixes.items()}
    uris |= {f"ui://{prefix}/": name for name, prefix in prefixes.items()}
    for key, patterns, heads in (
        ("tools", rule.tools, names),
        ("prompts", rule.prompts, names),
        ("resources", rule.resources, uris),
    ):
        for pattern in patterns:
            head = next((one for one in heads if pattern.startswith(one)), None)
            if head is not None:
                own = pattern[len(head) :] if not head.startswith("ui:") else f"ui://{pattern[len(head) :]}"
                yield (
                    f"{key}: `{pattern}` looks like names that clients see, of `{heads[head]}`; rules go by "
                    f"its own: write upstreams: [{heads[head]}] and `{own or '*'}`"
                )
    renamed = {new: old for one in config.endpoints.values() for old, new in one.tools.rename.items()}
    for tool in rule.tools:
        if tool in renamed:
            yield f"tools: `{tool}` is what {renamed[tool]} is renamed to; rules go by its server's own name"


def _tells_apart(rule: AccessRule) -> bool:
    return bool(rule.claims or rule.scopes) or not {"anonymous", "*"}.issuperset(rule.callers)


def _grants(ways: Authentication) -> bool:
    """Whether any credential may grant scopes."""
    return bool(ways.tokens or ways.certificates.scopes or any(key.scopes for key in ways.keys.values()))


def _covers(first: AccessRule, second: AccessRule) -> bool:
    """Whether a rule decides all that one behind it could; only equal texts and * are compared."""
    if not (
        _wider(first.endpoints, second.endpoints)
        and _wider(first.upstreams, second.upstreams)
        and _wider(first.callers, second.callers, every="*")
        and first.annotations.items() <= second.annotations.items()
    ):
        return False
    if not all(set(second.claims.get(name, [])) <= set(values) for name, values in first.claims.items()):
        return False
    if not first.claims.keys() <= second.claims.keys():
        return False
    mine, its = _names(first), _names(second)
    return all(kind in mine and _wider(mine[kind], names, every="*") for kind, names in its.items())


def _names(rule: AccessRule) -> Mapping[str, list[str]]:
    """Return what a rule is about by kind, [] for all of a kind."""
    named: dict[str, list[str]] = {kind: getattr(rule, kind) for kind in _KINDS}
    if any(named.values()):
        return {kind: names for kind, names in named.items() if names}
    return {kind: [] for kind in (("tools",) if rule.annotations else _KINDS)}


def _wider(first: Sequence[str], second: Sequence[str], every: str | None = None) -> bool:
    """Whether a choice leaves nothing out that another one holds; an empty one is no choice."""
    return not first or every in first or (bool(second) and set(second) <= set(first))
