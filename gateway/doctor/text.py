"""The doctor's report as lines for people."""

from collections.abc import Iterator, Mapping, Sequence

from gateway.doctor.diagnosis import Met
from gateway.doctor.findings import LISTS, Audited, Checkup, Finding, Kept, Report, Verdict

Row = tuple[str, ...]
Table = Sequence[Row]

_WITHOUT_HINTS = ("tools/call", "prompts/get")
_KEEPS = {"shared": "shared", "own": "each caller's", "never": "not kept"}


def tables(report: Report) -> Iterator[tuple[str, Table]]:
    """Yield a heading and the rows below it, one after the other; the findings of each under its name."""
    yield (
        "upstreams",
        [("", "verdict", "state", "era", "version", "auth", "transport", *LISTS.values(), "took")]
        + [_upstream(one) for one in report.upstreams],
    )
    for one in report.upstreams:
        yield f"{one.upstream}: {one.verdict}", list(_facts(one, report.of(one.upstream)))
        if one.cache:
            yield f"{one.upstream}: what is cached", [("", "it says", "kept", "why"), *map(_kept, one.cache)]
        if one.converted:
            yield (
                f"{one.upstream}: what is converted",
                [(each.what, each.whom, each.how) for each in one.converted],
            )
        if one.blocked:
            yield (
                f"{one.upstream}: what cannot cross",
                [(each.what, each.why, f"next: {each.next}") for each in one.blocked],
            )
    if report.names:
        rows = [(one.endpoint, f"{one.upstream}: {one.original}", one.shown, one.why) for one in report.names]
        yield "names that were changed", rows
    if report.issuers:
        yield "issuers of tokens", list(report.issuers.items())
    if report.redis is not None:
        yield "redis", [(report.redis,)]
    if report.audit is not None:
        yield "audit of what is public", [_audited(one) for one in report.audit]
        suspicions = [one for audited in report.audit for one in audited.findings]
        for each in suspicions:
            what = each.method if each.target is None else f"{each.method} {each.target}"
            yield f"{each.upstream}: {what}: {each.kind}", [(each.what,), (f"next: {each.next}",)]
    for finding in report.of(None):
        yield f"{finding.level}: {finding.what}", [(f"next: {finding.next}",)]


def summary(report: Report) -> str:
    """Return the last line: how many upstreams came off how, and how long it took."""
    verdicts = [one.verdict for one in report.upstreams]
    words: Mapping[Verdict, str] = {"ok": "ok", "warning": "with warnings", "problem": "with problems"}
    counts = ", ".join(f"{verdicts.count(one)} {said}" for one, said in words.items() if one in verdicts)
    several = "" if len(verdicts) == 1 else "s"
    return f"{len(verdicts)} upstream{several}: {counts}; {report.seconds:.1f}s"


def _upstream(one: Checkup) -> Row:
    counts = ("-" if count is None else str(count) for count in one.items.values())
    auth = f"{one.auth.kind}: {one.auth.result}"
    spoken = (one.state, one.era or "-", one.version or "-", auth, one.transport)
    return (one.upstream, one.verdict, *spoken, *counts, _lasting(one.seconds))


def _facts(one: Checkup, findings: Sequence[Finding]) -> Iterator[Row]:
    """Yield what was found of an upstream, then what is known of it."""
    for finding in findings:
        yield (finding.level, finding.what)
        if finding.next is not None:
            yield ("", f"next: {finding.next}")
    yield ("place", one.url)
    if one.way is not None and (way := _way(one.way)):
        yield ("way", way)
    if one.took:
        yield ("answers", ", ".join(f"{method} {_lasting(took)}" for method, took in one.took.items()))
    if one.followed is not None:
        yield ("tells", ", ".join(one.followed) or "nothing")
    for words in one.last_words:
        yield ("it wrote", words)


def _way(way: Met) -> str:
    through = " to its proxy" if way.proxied else ""
    steps = (
        ("name", way.resolved),
        ("connection", way.connected),
        ("TLS", way.secured),
        ("answer", way.answered),
    )
    return ", ".join(f"{step}{through} {_lasting(took)}" for step, took in steps if took is not None)


def _lasting(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms" if seconds < 1.0 else f"{seconds:.1f}s"


def _kept(one: Kept) -> Row:
    what = one.method if one.target is None else f"{one.method} {one.target}"
    if one.method in _WITHOUT_HINTS:
        return (what, "-", _KEEPS[one.keeps], one.why)
    ttl = "no ttlMs" if one.ttl_said is None else f"ttlMs {one.ttl_said}"
    by_rule = f", by {' and '.join(one.rules)}" if one.rules else ""
    return (what, f"{ttl}, {one.scope_said or 'no cacheScope'}", _KEEPS[one.keeps], one.why + by_rule)


def _audited(one: Audited) -> Row:
    unread = f", {one.unread} resources not read" if one.unread else ""
    counts = f"{one.compared} public results compared, {one.private} not public{unread}"
    return (one.upstream, one.callers, counts, f"{len(one.findings)} found")
