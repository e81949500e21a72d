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
from urllib.parse import unquote

from gateway.config import AccessRule, Config, ToolRules
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
_ROUNDS = 4
"""How often a URI may be percent-encoded; no server undoes more."""


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
    spelled_plainly: tuple[str, ...]
    """The same for URIs in one spelling."""
    hints: tuple[tuple[str, bool], ...]
    granted: Verdict
    refused: Verdict

    def fits(self, name: str, annotations: Json | None, *, plainly: bool = False) -> bool:
        """Whether it is about this thing."""
        patterns = self.spelled_plainly if plainly else self.patterns
        if patterns and not any(_glob(pattern).match(name) for pattern in patterns):
            return False
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
        self, upstream: UpstreamName, kind: Kind, name: str, annotations: Json | None = None
    ) -> Verdict:
        """Return what becomes of a wish for this; `name` is the upstream's own name, URI or method.

        What a URI may lead to is judged in the spelling it has and in the plain one, and the stricter counts:
        an upstream may read `%2e%2e` and `..` alike.
        """
        rules = self.policy.about(upstream, kind)
        verdict = self._first(rules, name, annotations)
        if kind == "resource" and not verdict.hidden and any(rule.patterns for rule in rules):
            plainly = self._first(rules, plain(name), None, plainly=True)
            return min(verdict, plainly, key=_leniency)
        return verdict

    def lists(self, upstream: UpstreamName, kind: Kind, name: str, annotations: Json | None = None) -> bool:
        """Whether this is in the caller's lists."""
        return self.judge(upstream, kind, name, annotations).listed

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

    def _first(
        self, rules: Sequence[_Rule], name: str, annotations: Json | None, *, plainly: bool = False
    ) -> Verdict:
        for rule in rules:
            mark = self.marks[rule.place]
            if mark and rule.fits(name, annotations, plainly=plainly):
                return rule.granted if mark == 1 else rule.refused
        return self.policy.default


class Policy:
    """The rules of one endpoint."""

    def __init__(self, config: Config, endpoint: str) -> None:
        allows = not config.access.denies
        self.default = Verdict(allows, allows, not allows, None)
        served = config.endpoints[endpoint].upstreams
        names = [UpstreamName(name) for name in (config.upstreams if served is None else served)]
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
        """Return what keeps a thing from everybody, None where there may be callers who are let use it."""
        spellings = [(name, False), (plain(name), True)] if kind == "resource" else [(name, False)]
        for spelled, plainly in spellings:
            verdict = self._barred(upstream, kind, spelled, annotations, plainly)
            if verdict is not None:
                return verdict
        return None

    def _barred(
        self, upstream: UpstreamName, kind: Kind, name: str, annotations: Json | None, plainly: bool
    ) -> Verdict | None:
        for rule in self.about(upstream, kind):
            if rule.fits(name, annotations, plainly=plainly):
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
    granted = set(scopes)
    if kind == "key" and name in ways.keys:
        granted.update(ways.keys[name].scopes)
    elif kind == "cert":
        granted.update(ways.certificates.scopes)
    included = list(granted)
    while included:
        more = set(ways.implies.get(included.pop(), ())) - granted
        granted |= more
        included += more
    return Principal(id=caller, scopes=frozenset(granted), claims=claims or {})


def place_of(rule: int | None) -> str:
    """Return what a rule is called in the configuration."""
    return "access.default" if rule is None else f"access.rules[{rule}]"


def said_of(verdict: Verdict) -> str:
    """Return what an operator is told who asks why a caller has or lacks something."""
    by = place_of(verdict.rule)
    if verdict.allowed:
        return f"allowed by {by}"
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


def plain(uri: str) -> str:
    """Return a URI in one spelling: decoded, without detours in its path, scheme and host in lower case.

    It is what the most forgiving server would read in it, and is good for comparison only.
    """
    for _ in range(_ROUNDS):
        decoded = unquote(uri, errors="surrogateescape")
        if decoded == uri:
            break
        uri = decoded
    parts = _URI.match(uri.replace("\\", "/"))
    assert parts is not None  # every text fits
    head, path, rest = parts["head"] or "", parts["path"], parts["rest"]
    segments: list[str] = []
    *folders, last = path.split("/")
    for segment in (*folders, "" if last in (".", "..") else last):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    if last == "..":
        del segments[-1:]
    start = "/" if path.startswith("/") else ""
    end = "/" if segments and last in ("", ".", "..") else ""
    return f"{head.lower()}{start}{'/'.join(segments)}{end}{rest}"


def allowed(name: str, rules: ToolRules) -> bool:
    """Whether some allow pattern and no deny pattern matches the whole name, case-sensitively (E-32).

    Rules of an upstream are about original names, rules of an endpoint about exposed ones; the caller
    hands in the one that goes with the rules.
    """
    return matches(name, rules.allow) and not (rules.deny and matches(name, rules.deny))


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns fits the whole name, case-sensitively (E-32)."""
    return "*" in patterns or any(_glob(pattern).match(name) for pattern in patterns)


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
    plainly = tuple(map(_plain_pattern, patterns)) if kind == "resource" else ()
    return (_Rule(place, tuple(patterns), plainly, hints, *_verdicts(rule, index)),)


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


def _leniency(verdict: Verdict) -> tuple[bool, bool, bool]:
    return not verdict.hidden, verdict.allowed, verdict.listed


def _truth(raw: Json | None) -> bool | None:
    text = b"" if raw is None else bytes(raw)
    return {b"true": True, b"false": False}.get(text)


def _plain_pattern(pattern: str) -> str:
    """Return a pattern over URIs as one over plain ones; what is decoded in it stands for itself."""
    decoded = _ENCODED.sub(_decoded, pattern).replace("\\", "/")
    parts = _URI.match(decoded)
    assert parts is not None
    head = (parts["head"] or "").lower()
    return f"{head}{_SLASHES.sub('/', parts['path'])}{parts['rest']}"


def _decoded(found: re.Match[str]) -> str:
    text = unquote(found[0], errors="surrogateescape")
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)


_URI = re.compile(r"(?P<head>[A-Za-z][A-Za-z0-9+.-]*:(?://[^/?#]*)?)?(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL)
_ENCODED = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_SLASHES = re.compile(r"(?<!:)/{2,}")
"""Behind a colon they may be those of a scheme that the pattern leaves open."""


# fnmatch keeps its own compiled patterns, but only 256 of them; a reload replaces ours by use.
@lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
