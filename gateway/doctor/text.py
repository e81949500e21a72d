"""The doctor's report as lines for people."""

from collections.abc import Iterator, Sequence

from gateway.doctor.findings import KINDS, Audited, Checkup, Kept, Report

Row = tuple[str, ...]
Table = Sequence[Row]

_WITHOUT_HINTS = ("tools/call", "prompts/get")
_KEEPS = {"shared": "shared", "own": "each caller's", "never": "not kept"}


def tables(report: Report) -> Iterator[tuple[str, Table]]:
    """Yield a heading and the rows below it, one after the other."""
    yield (
        "upstreams",
        [("", "state", "era", "version", "auth", "transport", *KINDS.values())]
        + [_upstream(one) for one in report.upstreams],
    )
    for one in report.upstreams:
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
        findings = [one for audited in report.audit for one in audited.findings]
        for finding in findings:
            what = finding.method if finding.target is None else f"{finding.method} {finding.target}"
            yield (
                f"{finding.upstream}: {what}: {finding.kind}",
                [(finding.what,), (f"next: {finding.next}",)],
            )
    if report.notes:
        yield "notes", [(one.upstream or "", one.what) for one in report.notes]
    for problem in report.problems:
        yield f"problem: {problem.upstream or 'gateway'}: {problem.what}", [(f"next: {problem.next}",)]


def _upstream(one: Checkup) -> Row:
    counts = ("-" if count is None else str(count) for count in one.items.values())
    auth = f"{one.auth.kind}: {one.auth.result}"
    return (one.upstream, one.state, one.era or "-", one.version or "-", auth, one.transport, *counts)


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
