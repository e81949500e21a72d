"""Finds rules of `access` that cannot mean what they say: the obvious ones, by comparing texts. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from gateway.settings.callers import AccessRule, Authentication
from gateway.settings.models import Config

_KINDS = ("tools", "prompts", "resources", "methods")


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
        name for path in rule.endpoints or config.endpoints for name in _served(config, path) if name in named
    ]
    if not served:
        yield "upstreams: none of them is served at its endpoints"
    ways = config.authentication
    if not ways.on and _tells_apart(rule):
        yield "callers, claims and scopes: without `authentication` everybody is `anonymous`, and has none"
    elif rule.claims and not ways.tokens:
        yield "claims: nobody has any without authentication.tokens"
    elif rule.scopes and not _grants(ways):
        yield "scopes: nobody has any, by the ways in which callers prove who they are"


def _served(config: Config, path: str) -> Sequence[str]:
    chosen = config.endpoints[path].upstreams
    return list(config.upstreams) if chosen is None else chosen


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
