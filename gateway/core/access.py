"""Answers who may see and use what. No clock, no I/O: a caller and a thing go in, a verdict comes out.

A Policy is what the rules come to on one endpoint. What a caller's lists vary by is his Sight: how each rule
stands to him. Callers with equal sights are shown the same, so what was joined for one is there for all.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from gateway.config import AccessRule, Config, ToolRules
from gateway.core.readings import Readings, forms_of, readings_of
from gateway.protocol.call import Forbidden, Principal, UpstreamName
from gateway.protocol.jsonrpc import Json, Malformed, split
from gateway.protocol.methods import TASKS

Kind: TypeAlias = Literal["tool", "prompt", "resource", "method"]
"""What a rule may be about; a template is a resource, and a method is an extension's."""

KINDS: tuple[Kind, ...] = ("tool", "prompt", "resource", "method")

LISTED: Mapping[str, Kind] = {
    "tools/list": "tool",
    "prompts/list": "prompt",
    "resources/list": "resource",
    "resources/templates/list": "resource",
}
"""What a list is of."""

CONCERNED: Mapping[str, tuple[Kind, ...]] = {
    "tools": ("tool",),
    "prompts": ("prompt",),
    "resources": ("resource",),
    "completions": ("prompt", "resource"),
    TASKS: ("tool",),
}
"""Capability or extension -> what is done with it; anything else may be about everything."""

ANONYMOUS = "anonymous"
"""Who calls where nothing was verified."""

_WORST = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}
"""What is assumed of a tool that says nothing of itself; these are the specification's defaults, too."""

_REMEMBERED = 256
"""Principals whose sights are at hand; each is kept with all that its token says."""


class Verdict(NamedTuple):
    """What becomes of one caller's wish for one thing."""

    allowed: bool
    listed: bool
    """Whether it is in lists; what is allowed is."""
    hidden: bool
    """Whether nothing may show that it exists."""
    rule: int | None
    """The index of the rule that decided, None where none did."""
    scopes: tuple[str, ...] = ()
    """All that it takes, where only that is missing (Z-04)."""
    unclear: bool = False
    """Whether a URI is kept back because readers disagree on what it leads to; one that is listed is not."""

    def check(self) -> None:
        """Raise Forbidden unless it is allowed; what is hidden is dealt with as unknown, not here."""
        if not self.allowed:
            raise Forbidden(self.scopes)


@dataclass(frozen=True, slots=True, eq=False)
class _Rule:
    """One rule as it applies to the things of one upstream and kind."""

    place: int
    """Where its mark stands in a sight."""
    patterns: tuple[str, ...]
    """Empty = any name."""
    forms: tuple[str, ...]
    """The same for what a URI may be taken for, where the rule allows it."""
    strict_forms: tuple[str, ...]
    """The same, where the rule forbids it."""
    hints: tuple[tuple[str, bool], ...]
    granted: Verdict
    refused: Verdict

    def fits(self, name: str, annotations: Json | None) -> bool:
        """Whether it is about this thing."""
        return (not self.patterns or _is_any(self.patterns, name)) and self._holds(annotations)

    def fits_uri(self, uri: Readings, annotations: Json | None, *, allows: bool) -> bool:
        """Whether it is about this URI: one reading is enough to forbid it, allowing takes all."""
        if not allows:
            fits = any(_is_any(self.strict_forms, reading) for reading in uri.near)
        else:
            fits = _is_any(self.patterns, uri.spelled) and all(
                _is_any(self.forms, reading) for reading in uri.meant
            )
        return fits and self._holds(annotations)

    def _holds(self, annotations: Json | None) -> bool:
        if not self.hints:
            return True
        hints = hints_of(annotations)
        return all(hints[hint] is wanted for hint, wanted in self.hints)

    @property
    def fits_all(self) -> bool:
        """Whether it leaves nothing of its kind to the rules behind it."""
        return not (self.patterns or self.hints)


@dataclass(frozen=True, slots=True)
class Sight:
    """How the rules of one endpoint stand to a caller; equal ones are shown the same."""

    marks: bytes
    """One byte per rule: 0 = it is not about him, 1 = it is, 2 = it is, and he lacks scopes."""
    policy: "Policy" = field(compare=False, repr=False)

    def judge(
        self,
        upstream: UpstreamName,
        kind: Kind,
        name: str,
        annotations: Json | None = None,
        *,
        listed: bool = False,
    ) -> Verdict:
        """Return what becomes of a wish for this; `name` is the upstream's own name, URI or method.

        Once a rule with patterns is about URIs, one whose readers disagree on where it leads is kept back,
        unless it is `listed`: in a list of its upstream as it is.
        """
        uri: Readings | None = None
        for rule in self.policy.about(upstream, kind):
            mark = self.marks[rule.place]
            if not mark:
                continue
            verdict = rule.granted if mark == 1 else rule.refused
            if kind != "resource" or not rule.patterns:
                fits = rule.fits(name, annotations)
            else:
                if uri is None:
                    uri = readings_of(name)
                    if uri.unclear and not listed:
                        return Verdict(False, False, True, verdict.rule, unclear=True)
                fits = rule.fits_uri(uri, annotations, allows=verdict.allowed)
            if fits:
                return verdict
        return self.policy.default

    def lists(self, upstream: UpstreamName, kind: Kind, name: str, annotations: Json | None = None) -> bool:
        """Whether this, which its upstream lists, is in the caller's lists."""
        return self.judge(upstream, kind, name, annotations, listed=True).listed

    def hides(self, upstream: UpstreamName, kind: Kind, name: str, annotations: Json | None = None) -> bool:
        """Whether this has to look to the caller as if there were no such thing."""
        return self.judge(upstream, kind, name, annotations).hidden

    def reaches(self, upstream: UpstreamName, *kinds: Kind) -> bool:
        """Whether there may be something of these kinds, or of any, that is not hidden from the caller."""
        return any(self._reaches(upstream, kind) for kind in kinds or KINDS)

    def _reaches(self, upstream: UpstreamName, kind: Kind) -> bool:
        for rule in self.policy.about(upstream, kind):
            mark = self.marks[rule.place]
            if mark:
                if not (rule.granted if mark == 1 else rule.refused).hidden:
                    return True
                if rule.fits_all:
                    return False
        return not self.policy.default.hidden


class Policy:
    """The rules of one endpoint."""

    def __init__(self, config: Config, endpoint: str) -> None:
        allows = not config.access.denies
        self.default = Verdict(allows, allows, not allows, None)
        names = [UpstreamName(name) for name in config.behind(endpoint)]
        here = [
            (index, rule)
            for index, rule in enumerate(config.access.rules)
            if not rule.endpoints or endpoint in rule.endpoints
        ]
        self._endpoint = endpoint
        self._callers = tuple(rule for _, rule in here)
        self._scopes = tuple(frozenset(rule.scopes) for rule in self._callers)
        self._about = {
            (name, kind): tuple(
                made
                for place, (index, rule) in enumerate(here)
                for made in _about(rule, place, index, name, kind, config.upstreams[name].trust_annotations)
            )
            for name in names
            for kind in KINDS
        }
        # By identity: the verifier hands out one object for as long as a credential counts, and the claims of
        # equal ones may differ.
        self._sights: OrderedDict[int, tuple[Principal, Sight]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Policy {self._endpoint}: {len(self._callers)} rules>"

    def about(self, upstream: UpstreamName, kind: Kind) -> Sequence[_Rule]:
        """Return the rules that may fit such a thing, in order; none for an upstream that is not served."""
        return self._about.get((upstream, kind), ())

    def sight(self, principal: Principal) -> Sight:
        """Return how the rules stand to a caller."""
        remembered = self._sights.get(id(principal))
        if remembered is not None:
            self._sights.move_to_end(id(principal))
            return remembered[1]
        rules = zip(self._callers, self._scopes, strict=True)
        sight = Sight(bytes(_mark(rule, scopes, principal) for rule, scopes in rules), self)
        self._sights[id(principal)] = (principal, sight)  # kept, so that no id is used twice
        if len(self._sights) > _REMEMBERED:
            self._sights.popitem(last=False)
        return sight

    def barred(
        self, upstream: UpstreamName, kind: Kind, name: str, annotations: Json | None = None
    ) -> Verdict | None:
        """Return what keeps a listed thing from everybody, None where there may be callers who may use it."""
        uri = readings_of(name) if kind == "resource" else None
        for rule in self.about(upstream, kind):
            if uri is not None and rule.patterns:
                fits = rule.fits_uri(uri, annotations, allows=rule.granted.allowed)
            else:
                fits = rule.fits(name, annotations)
            if fits:
                if rule.granted.allowed:
                    return None
                if not (self._callers[rule.place].callers or self._callers[rule.place].claims):
                    return rule.granted
        return None if self.default.allowed else self.default


def policy_of(config: Config, endpoint: str) -> Policy | None:
    """Return the rules of one endpoint, None where everybody who comes in may use everything."""
    return Policy(config, endpoint) if config.access.on else None


def somebody(
    config: Config, caller: str, scopes: Iterable[str] = (), claims: Mapping[str, object] | None = None
) -> Principal:
    """Return the principal that a caller of this name would be, with scopes that his token would grant.

    Those of a key or certificate stand in the configuration; claims are a token's.
    """
    ways = config.authentication
    kind, _, name = caller.partition(":")
    held = list(scopes)
    if kind == "key" and name in ways.keys:
        held += ways.keys[name].scopes
    elif kind == "cert":
        held += ways.certificates.scopes
    return Principal(id=caller, scopes=ways.granted(held), claims=claims or {})


def place_of(rule: int | None) -> str:
    """Return what a rule is called in the configuration."""
    return "access.default" if rule is None else f"access.rules[{rule}]"


def said_of(verdict: Verdict) -> str:
    """Return what an operator is told who asks why a caller has or lacks something."""
    by = place_of(verdict.rule)
    if verdict.allowed:
        return f"allowed by {by}"
    if verdict.unclear:
        return f"hidden: {by} is about URIs, and servers may read this one in different ways"
    how = "hidden" if verdict.hidden else "listed, but refused" if verdict.listed else "not listed"
    if verdict.scopes:
        return f"{how}: {by} wants the scopes {' '.join(verdict.scopes)}"
    return f"{how}: {by} denies it"


def hints_of(annotations: Json | None) -> Mapping[str, bool]:
    """Return what a tool says of itself, with what has to be assumed where it says nothing.

    A tool that only reads destroys nothing and may be repeated, unless it says otherwise itself.
    """
    try:
        said = {} if annotations is None else split(annotations)
    except Malformed:
        return _WORST
    hints = {name: value for name in _WORST if (value := _truth(said.get(name))) is not None}
    if hints.get("readOnlyHint"):
        hints = {"destructiveHint": False, "idempotentHint": True, **hints}
    return {**_WORST, **hints}


def allowed(name: str, rules: ToolRules) -> bool:
    """Whether some allow pattern and no deny pattern matches the whole name, case-sensitively (E-32).

    Rules of an upstream are about original names, rules of an endpoint about exposed ones; the caller
    hands in the one that goes with the rules.
    """
    return matches(name, rules.allow) and not (rules.deny and matches(name, rules.deny))


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns fits the whole name, case-sensitively (E-32)."""
    return "*" in patterns or _is_any(patterns, name)


def _about(
    rule: AccessRule, place: int, index: int, upstream: UpstreamName, kind: Kind, trusted: bool
) -> tuple[_Rule, ...]:
    """Return what a rule comes to for the things of one upstream and kind: nothing, or one rule."""
    if rule.upstreams and upstream not in rule.upstreams:
        return ()
    named: Mapping[Kind, list[str]] = {
        "tool": rule.tools,
        "prompt": rule.prompts,
        "resource": rule.resources,
        "method": rule.methods,
    }
    patterns = named[kind]
    if any(named.values()):
        if not patterns:
            return ()
    elif rule.annotations and kind != "tool":
        return ()
    hints = tuple(rule.annotations.items())
    if not trusted:
        if any(_WORST[hint] is not wanted for hint, wanted in hints):
            return ()
        hints = ()
    if "*" in patterns:
        patterns = []
    forms, strict = (
        tuple(form for pattern in patterns for form in forms_of(pattern, shortened=shortened))
        if kind == "resource"
        else ()
        for shortened in (True, False)
    )
    return (_Rule(place, tuple(patterns), forms, strict, hints, *_verdicts(rule, index)),)


def _verdicts(rule: AccessRule, index: int) -> tuple[Verdict, Verdict]:
    """Return what a rule decides, and what becomes of those whom it is about and who lack scopes."""
    if rule.deny:
        denied = Verdict(False, False, rule.refusal != "challenge", index)
        return denied, denied
    refusal = rule.refusal or "challenge"
    missing = Verdict(False, refusal == "list", refusal == "hide", index, tuple(rule.scopes))
    return Verdict(True, True, False, index), missing


def _mark(rule: AccessRule, scopes: frozenset[str], principal: Principal) -> int:
    if rule.callers and not matches(principal.id or ANONYMOUS, rule.callers):
        return 0
    if not all(_says(principal.claims, path, wanted) for path, wanted in rule.claims.items()):
        return 0
    return 1 if scopes <= principal.scopes else 2


def _says(claims: Mapping[str, object], path: str, wanted: Sequence[bool | int | str]) -> bool:
    """Whether a token has one of these values under a claim, whose name may hold dots itself."""
    if path in claims and _is_one(claims[path], wanted):
        return True
    for dot in (place for place, char in enumerate(path) if char == "."):
        inner = claims.get(path[:dot])
        if isinstance(inner, Mapping) and _says(inner, path[dot + 1 :], wanted):
            return True
    return False


def _is_one(value: object, wanted: Sequence[bool | int | str]) -> bool:
    values = value if isinstance(value, (list, tuple)) else (value,)
    # True is 1 to Python, and to no administrator.
    return any(type(one) is type(each) and one == each for one in values for each in wanted)


def _truth(raw: Json | None) -> bool | None:
    text = b"" if raw is None else bytes(raw)
    return {b"true": True, b"false": False}.get(text)


def _is_any(patterns: Sequence[str], name: str) -> bool:
    return any(_glob(pattern).match(name) for pattern in patterns)


# fnmatch keeps its own compiled patterns, but only 256 of them; a reload replaces ours by use.
@lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
