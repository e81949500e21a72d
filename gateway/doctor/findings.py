"""What the doctor tells of upstreams, and how it judges what they said. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias

from gateway.cache.policy import CALL, Hints, Override, Rules, Why, hints_of, may_store, ttl_of
from gateway.config import Config, ToolRules
from gateway.core.access import LISTED, Policy, allowed, place_of, policy_of
from gateway.core.catalogue import Listing
from gateway.core.federation import Federation
from gateway.doctor.crossing import Blocked, Converted
from gateway.doctor.diagnosis import ODD_CLOCK, Met
from gateway.doctor.kinds import KINDS, LEVELS, Level
from gateway.protocol.call import Partition, UpstreamName
from gateway.protocol.jsonrpc import Json, Malformed, split, text_of
from gateway.settings.values import show_duration

LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "templates",
}
"""The lists, and what a report calls what is in them."""

Verdict: TypeAlias = Literal["ok", "warning", "problem"]
Keeps: TypeAlias = Literal["shared", "own", "never"]
_SOMEBODY = Partition("somebody")
_NAMED = 8
_ENDS_SOON = 14 * 86400.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to tell, of an upstream or of the gateway itself; see `kinds`."""

    level: Level
    kind: str
    upstream: str | None
    what: str
    next: str | None
    """What to do about it; None of a note."""


def found(kind: str, upstream: str | None, what: str, next: str | None = None) -> Finding:
    """Return a finding, as grave as its kind, with the advice of its kind where no better is given."""
    row = KINDS[kind]
    advice = next or row.next.format(at=f"upstreams.{upstream}") or None
    return Finding(row.level, kind, upstream, what, advice)


@dataclass(frozen=True, slots=True)
class Kept:
    """What one method's results say of their reuse, and what the cache makes of it."""

    method: str
    target: str | None
    ttl_said: str | None
    """The ttlMs as it was written, None without one."""
    scope_said: str | None
    keeps: Keeps
    ttl: float
    scope: str
    why: str
    rules: tuple[Override, ...] = ()
    """The settings that made it another than the upstream said."""


@dataclass(frozen=True, slots=True)
class AuthResult:
    """What an upstream made of the credential it was shown."""

    kind: str
    result: str


@dataclass(slots=True)
class Checkup:
    """What is known of one upstream."""

    upstream: str
    url: str
    verdict: Verdict = "ok"
    state: str = "unknown"
    era: str | None = None
    version: str | None = None
    transport: str = "-"
    auth: AuthResult = AuthResult("none", "unknown")
    capabilities: tuple[str, ...] = ()
    items: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(LISTS.values()))
    """How many of each kind it lists; None where it has no such list, or it could not be had."""
    cache: list[Kept] = field(default_factory=list)
    converted: list[Converted] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    """What does not reach clients of some revision, or all; unlike a problem it may be as it should."""
    excluded: list[tuple[str, str, str]] = field(default_factory=list)
    """List, item, and the reason why clients do not see it."""
    followed: tuple[str, ...] | None = None
    """Of what it tells that it changed; None where it was not asked."""
    way: Met | None = None
    """What was met on the way to its address; None of a program."""
    last_words: tuple[str, ...] = ()
    """What a program wrote last to stderr, or to stdout though it is no message."""
    took: dict[str, float] = field(default_factory=dict)
    """Method -> seconds until it was answered, all pages of a list together."""
    seconds: float = 0.0
    """How long all of its examination took."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A name that clients see and that is not simply prefix and original."""

    endpoint: str
    upstream: str
    list: str
    original: str
    shown: str
    why: str


def judged(method: str, target: str | None, pages: Sequence[bytes], rules: Rules, *, memory: int) -> Kept:
    """Return what the cache makes of these results, all pages of one list together (C-23, C-27)."""
    hints = [hints_of(page, rules, method) for page in pages]
    least = min(range(len(pages)), key=lambda place: hints[place].ttl)
    ttl_said, scope_said = _said(pages[least])
    private = next((one for one in hints if one.scope == "private"), None)
    narrowest = hints[least] if private is None else private
    if private is not None and any(one.scope == "public" for one in hints):
        scope_said = "public in part"
    overrides = tuple(dict.fromkeys(rule for one in hints for rule in one.overrides))
    refused = next(
        (why for page, one in zip(pages, hints, strict=True) if (why := _refused(one, page, memory))), None
    )
    ttl = 0.0 if refused else hints[least].ttl
    keeps: Keeps = "never" if refused else "own" if private is not None else "shared"
    words = _never(refused, ttl_said, rules) if refused else _kept(narrowest, ttl, scope_said, rules)
    return Kept(method, target, ttl_said, scope_said, keeps, ttl, narrowest.scope, words, overrides)


def kept_call(tool: str, ttl: float, scope: str, rules: Rules) -> Kept:
    """Return what becomes of a tool's results that the operator wants kept."""
    shared = scope == "public" and rules.shares
    keeps: Keeps = "never" if ttl == 0.0 else "shared" if shared else "own"
    why = f"cache.calls keeps it for {show_duration(ttl)}, under all of a call's arguments"
    return Kept(CALL, tool, None, None, keeps, ttl, "public" if shared else "private", why, ("calls",))


def never_kept(capabilities: Sequence[str]) -> Iterator[Kept]:
    """Yield what no hint makes the cache keep, of what an upstream serves."""
    if "tools" in capabilities:
        why = "calls are kept only of the tools that cache.calls names"
        yield Kept(CALL, None, None, None, "never", 0.0, "private", why)
    if "prompts" in capabilities:
        yield Kept("prompts/get", None, None, None, "never", 0.0, "private", "prompts are never kept")


def names_of(
    endpoint: str,
    config: Config,
    federation: Federation,
    listings: Mapping[str, Mapping[UpstreamName, Listing]],
) -> Iterator[Shown | Finding]:
    """Yield what is odd about the names and URIs under which an endpoint shows what its upstreams list."""
    for method in ("tools/list", "prompts/list"):
        merged = federation.merged(method, listings[method])
        table = merged.names
        if table is None:
            continue
        contested = {(one.upstream, one.original): one for one in table.collisions}
        for one in table.collisions:
            holder, theirs = one.held_by
            yield found(
                "collision",
                one.upstream,
                f"{endpoint}: its {LISTS[method][:-1]} {one.original} is shown as {one.given}, because "
                f"{one.wanted} is {theirs} of {holder}",
                f"give one of them another name: upstreams.{one.upstream}.tools.rename, or another prefix"
                if method == "tools/list"
                else f"give the upstream another prefix: upstreams.{one.upstream}.prefix",
            )
        for name, space in federation.namespaces.items():
            rules = config.upstreams[name].tools if method == "tools/list" else ToolRules()
            outer = config.endpoints[endpoint].tools if method == "tools/list" else ToolRules()
            hidden: list[str] = []
            for item in listings[method][name].items if name in listings[method] else ():
                shown = table.exposed(name, item.key)
                plain = space.plain_name(rules.rename.get(item.key, item.key))
                if shown is None:
                    hidden.append(item.key)
                elif shown != outer.rename.get(plain, plain) and (name, item.key) not in contested:
                    renamed = outer.rename.get(space.fit(plain, item.key)) == shown
                    if not renamed:
                        why = _changed(plain, space.max_length)
                        yield Shown(endpoint, name, method, item.key, shown, why)
            inner = [key for key in hidden if not allowed(key, rules)]
            outer_hidden = [key for key in hidden if key not in inner]
            for some, where in ((inner, f"upstreams.{name}"), (outer_hidden, f"endpoints.{endpoint}")):
                if some:
                    yield found("hidden", name, f"{endpoint} hides {_some(some)}, by {where}.tools")
    policy = policy_of(config, endpoint)
    if policy is not None:
        yield from _barred(endpoint, policy, listings)
    resources, templates = listings["resources/list"], listings["resources/templates/list"]
    offering = {name: resources.get(name, Listing()) for name in federation.namespaces if name in resources}
    for one in federation.uris(offering, templates).collisions:
        holder, _ = one.held_by
        yield found(
            "same-uri",
            one.upstream,
            f"{endpoint}: it lists {one.original}, which {holder} lists too and is asked for",
        )


def _barred(
    endpoint: str, policy: Policy, listings: Mapping[str, Mapping[UpstreamName, Listing]]
) -> Iterator[Finding]:
    """Yield what the rules of access keep from everybody; `tools --as` says what they keep from somebody."""
    for method, kind in LISTED.items():
        for name, listing in listings[method].items():
            kept: dict[str, list[str]] = {}
            for item in listing.items:
                verdict = policy.barred(name, kind, item.key, item.members.get("annotations"))
                if verdict is not None:
                    kept.setdefault(place_of(verdict.rule), []).append(item.key)
            for rule, some in kept.items():
                yield found("hidden", name, f"{endpoint} keeps {_some(some)} from everybody, by {rule}")


def changed_names(shown: Sequence[Shown]) -> Iterator[Finding]:
    """Yield for each upstream that clients see some of its names otherwise."""
    of: dict[str, dict[str, None]] = {}
    for one in shown:
        of.setdefault(one.upstream, {})[one.original] = None
    for upstream, names in of.items():
        what = (
            f"clients see {_some(list(names))} under {'another name' if len(names) == 1 else 'other names'}"
        )
        yield found("changed-name", upstream, what)


def odd_way(name: str, way: Met, *, now: float) -> Iterator[Finding]:
    """Yield what is odd about the way to a server, wherever it led."""
    if way.certificate_ends is not None and way.certificate_ends - now < _ENDS_SOON:
        days = max(0.0, way.certificate_ends - now) / 86400
        yield found("certificate-ends", name, f"its certificate ends in {days:.1f} days")
    if way.clock is not None:
        yield from odd_clock(name, "its", way.clock, ODD_CLOCK)


def odd_clock(upstream: str | None, whose: str, ahead: float, leeway: float) -> Iterator[Finding]:
    """Yield that a clock differs from this machine's by more than its tokens and certificates bear."""
    if abs(ahead) > leeway:
        where = "ahead of" if ahead > 0 else "behind"
        yield found("clock", upstream, f"{whose} clock is {abs(ahead):.0f}s {where} this machine's")


def slow(name: str, method: str, took: float, patience: float) -> Iterator[Finding]:
    """Yield that a list takes so long that it will be missing from joined lists before long."""
    if took > patience / 2:
        yield found("slow", name, f"{method} takes {took:.1f}s, and its list_timeout is {patience:g}s")


def uncacheable(name: str, kept: Sequence[Kept], rules: Rules) -> Iterator[Finding]:
    """Yield that none of an upstream's lists is kept, unless the operator wants it so."""
    lists = [one for one in kept if one.method in LISTS]
    if lists and rules.max_ttl > 0.0 and all(one.keeps == "never" for one in lists):
        yield found("uncacheable", name, f"none of its lists is kept: {lists[0].why}")


def rules_without_a_tool(name: str, config: Config, tools: Listing) -> Iterator[Finding]:
    """Yield the settings that name a tool which is not there."""
    upstream = config.upstreams[name]
    for setting, named in (("rename", upstream.tools.rename), ("describe", upstream.tools.describe)):
        for tool in named:
            if tool not in tools.by_key:
                said = f"tools.{setting} names {tool}, which it does not list"
                yield found("unused-setting", name, said)
    for tool in upstream.cache.calls:
        if tool not in tools.by_key:
            yield found("kept-tool-missing", name, f"cache.calls names {tool}, which it does not list")


def extensions_left_out(name: str, config: Config, capabilities: Mapping[str, Json]) -> Iterator[Finding]:
    """Yield the extensions that an upstream declares and the operator does not let through."""
    try:
        declared = split(capabilities["extensions"])
    except (KeyError, Malformed):
        return
    for extension in declared:
        if extension not in config.extensions:
            said = f"it declares the extension {extension[:128]}, which is not among `extensions`"
            yield found("extension-left-out", name, said)


def _said(page: bytes) -> tuple[str | None, str | None]:
    try:
        members = split(page)
        raw = members.get("ttlMs")
        return None if raw is None else bytes(raw)[:32].decode("utf-8", "replace"), _scope(members)
    except Malformed:
        return None, None


def _scope(members: Mapping[str, Json]) -> str | None:
    raw = members.get("cacheScope")
    if raw is None:
        return None
    try:
        return (text_of(raw) or bytes(raw).decode("utf-8", "replace"))[:32]
    except Malformed:
        return None


def _refused(hints: Hints, page: bytes, memory: int) -> Why | None:
    """Return why a result would not be kept for a caller with a token, None when it would."""
    return may_store(hints, owner=_SOMEBODY, cost=len(page), largest=memory)


def _never(refused: Why, ttl_said: str | None, rules: Rules) -> str:
    if refused == "incomplete":
        return "it is no finished result"
    if refused == "too-large":
        return "it does not fit into cache.memory"
    if rules.max_ttl == 0.0:
        return "max_ttl is 0"
    if ttl_said is None:
        return "it gives no ttlMs; min_ttl would keep it"
    if ttl_of(ttl_said.encode(), 1.0) == 0.0 and ttl_said.strip("0") not in ("", "."):
        return f"its ttlMs {ttl_said} is no whole number; min_ttl would keep it"
    return "its ttlMs is 0; min_ttl would keep it"


def _kept(hints: Hints, ttl: float, scope_said: str | None, rules: Rules) -> str:
    lasts = show_duration(round(ttl, 3))
    if hints.scope == "public":
        by = " by `scope: public`" if "scope" in hints.overrides else ""
        return f"all callers share it{by}, for {lasts}"
    if hints.why == "not-shared":
        why = "each has a process (`isolation`)" if rules.isolated else "`share_public: false`"
    elif rules.scope == "private":
        why = "`scope: private`"
    elif scope_said == "public":
        why = "it lives by min_ttl alone"
    elif scope_said == "public in part":
        why = "one of its pages is private"
    elif scope_said == "private":
        why = "it is private"
    else:
        why = "it gives no cacheScope" if scope_said is None else f"the cacheScope {scope_said} is unknown"
    return f"each caller has an own copy, for {lasts}: {why}"


def _changed(plain: str, longest: int) -> str:
    if len(plain) > longest:
        return f"longer than {longest} characters, so it is cut and ends in a hash"
    return "not all of its characters are accepted by clients, so some are replaced and a hash is added"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(name[:64] for name in names[:_NAMED]) + more


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A result that an upstream calls public, or a setting makes so, and that is not one and the same."""

    upstream: str
    method: str
    target: str | None
    kind: str
    what: str
    next: str


@dataclass(slots=True)
class Audited:
    """How far one upstream's public results were compared."""

    upstream: str
    callers: str
    """Between whom."""
    compared: int = 0
    """Results that are called public, and were compared."""
    private: int = 0
    """Results that nobody calls public."""
    unread: int = 0
    """Resources that were not read, because there are too many."""
    findings: list[Suspicion] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """All that the doctor tells."""

    endpoints: list[str]
    redis: str | None = None
    """`works`, or what the configured Redis does not do of what the gateway needs; None without one."""
    issuers: dict[str, str] = field(default_factory=dict)
    """Name -> what a verification of its tokens would meet."""
    upstreams: list[Checkup] = field(default_factory=list)
    names: list[Shown] = field(default_factory=list)
    audit: list[Audited] | None = None
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    """How long all of it took."""

    @property
    def problems(self) -> list[Finding]:
        return [one for one in self.findings if one.level == "problem"]

    @property
    def warnings(self) -> list[Finding]:
        return [one for one in self.findings if one.level == "warning"]

    @property
    def notes(self) -> list[Finding]:
        return [one for one in self.findings if one.level == "note"]

    @property
    def found(self) -> int:
        """How many things are to be mended."""
        return len(self.problems) + sum(len(one.findings) for one in self.audit or ())

    @property
    def verdict(self) -> Verdict:
        """The worst of all that was found."""
        return "problem" if self.found else "warning" if self.warnings else "ok"

    def of(self, upstream: str | None) -> list[Finding]:
        """Return what was found of one upstream, or of none, the gravest first."""
        found = [one for one in self.findings if one.upstream == upstream]
        return sorted(found, key=lambda one: list(LEVELS).index(one.level))

    def settle(self) -> None:
        """Give every upstream its verdict."""
        for one in self.upstreams:
            levels = {finding.level for finding in self.of(one.upstream)}
            levels |= {
                "problem" for each in self.audit or () if each.upstream == one.upstream and each.findings
            }
            one.verdict = "problem" if "problem" in levels else "warning" if "warning" in levels else "ok"


def document(report: Report) -> Mapping[str, object]:
    """Return a report as JSON has it; docs/doctor.md describes it."""
    verdicts = [one.verdict for one in report.upstreams]
    counts = {verdict: verdicts.count(verdict) for verdict in ("ok", "warning", "problem")}
    levels = {level: sum(one.level == level for one in report.findings) for level in LEVELS}
    return {
        "format": 1,
        "ok": report.verdict != "problem",
        "verdict": report.verdict,
        "upstream_verdicts": counts,
        "levels": levels,
        **asdict(report),
    }
