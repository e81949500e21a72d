"""What the cache makes of a result, in words."""

import json
from typing import Any

import pytest

from gateway.cache.policy import Rules
from gateway.doctor.diagnosis import Met
from gateway.doctor.findings import Checkup, Report, found, judged, kept_call, odd_way, slow
from gateway.doctor.kinds import KINDS

LARGE = 2**20


def page(**members: Any) -> bytes:
    return json.dumps({"tools": [], **members}).encode()


PUBLIC = {"ttlMs": 60_000, "cacheScope": "public"}


@pytest.mark.parametrize(
    ("members", "rules", "keeps", "ttl", "why"),
    [
        (PUBLIC, {}, "shared", 60, "all callers share it, for 1m"),
        (PUBLIC | {"cacheScope": "private"}, {}, "own", 60, "it is private"),
        ({"ttlMs": 1500}, {}, "own", 1.5, "for 1500ms: it gives no cacheScope"),
        (PUBLIC | {"cacheScope": "team"}, {}, "own", 60, "the cacheScope team is unknown"),
        ({}, {}, "never", 0, "it gives no ttlMs; min_ttl would keep it"),
        (PUBLIC | {"ttlMs": 0}, {}, "never", 0, "its ttlMs is 0"),
        (PUBLIC | {"ttlMs": "60000"}, {}, "never", 0, 'its ttlMs "60000" is no whole number'),
        (PUBLIC | {"resultType": "task"}, {}, "never", 0, "no finished result"),
        (PUBLIC, {"share_public": False}, "own", 60, "`share_public: false`"),
        (PUBLIC, {"scope": "private"}, "own", 60, "`scope: private`"),
        (PUBLIC, {"isolated": True}, "own", 60, "each has a process (`isolation`)"),
        (PUBLIC | {"cacheScope": "private"}, {"scope": "public"}, "shared", 60, "by `scope: public`"),
        (PUBLIC | {"ttlMs": 0}, {"min_ttl": {"tools/list": 30.0}}, "own", 30, "it lives by min_ttl alone"),
        (PUBLIC, {"max_ttl": 10.0}, "shared", 10, "for 10s"),
        (PUBLIC, {"max_ttl": 0.0}, "never", 0, "max_ttl is 0"),
        (PUBLIC | {"x": "y" * LARGE}, {}, "never", 0, "does not fit into cache.memory"),
    ],
)
def test_each_result_is_kept_for_somebody_or_not_at_all(
    members: dict[str, Any], rules: dict[str, Any], keeps: str, ttl: float, why: str
) -> None:
    """After the operator's rules, with the reason."""
    kept = judged("tools/list", None, [page(**members)], Rules(**rules), memory=LARGE)
    assert (kept.keeps, kept.ttl) == (keeps, ttl)
    assert why in kept.why


def test_pages_are_judged_together() -> None:
    """The least ttl and the narrowest scope (C-23, C-27)."""
    pages = [page(**PUBLIC), page(ttlMs=5000, cacheScope="private")]
    kept = judged("tools/list", None, pages, Rules(), memory=LARGE)
    assert (kept.keeps, kept.ttl, kept.why) == (
        "own", 5, "each caller has an own copy, for 5s: one of its pages is private"
    )  # fmt: skip
    assert judged("tools/list", None, [*pages, page()], Rules(), memory=LARGE).keeps == "never"


def test_kept_calls_are_shared_only_where_nothing_forbids_it() -> None:
    """As the cache has it."""
    assert kept_call("a", 60.0, "private", Rules()).keeps == "own"
    assert kept_call("a", 60.0, "public", Rules()).keeps == "shared"
    assert kept_call("a", 60.0, "public", Rules(share_public=False)).keeps == "own"
    assert kept_call("a", 60.0, "public", Rules(isolated=True)).keeps == "own"


def test_a_list_that_takes_half_its_time_is_slow() -> None:
    """Before it is missing from joined lists."""
    assert list(slow("a", "tools/list", 2.4, 5.0)) == []
    (found,) = slow("a", "tools/list", 2.6, 5.0)
    assert (found.kind, found.what) == ("slow", "tools/list takes 2.6s, and its list_timeout is 5s")


def test_what_is_odd_about_the_way_is_told() -> None:
    """A certificate that ends within two weeks, a clock that is half a minute off."""
    day = 86_400.0
    assert list(odd_way("a", Met(certificate_ends=15 * day, clock=29.0), now=0.0)) == []
    ending, early = odd_way("a", Met(certificate_ends=13 * day, clock=31.0), now=0.0)
    assert (ending.kind, ending.what) == ("certificate-ends", "its certificate ends in 13.0 days")
    assert (early.kind, early.what) == ("clock", "its clock is 31s ahead of this machine's")


def test_advice_names_the_upstreams_own_place() -> None:
    """Where no better advice is given; a note has none."""
    assert found("refused", "gh", "x").next == "start it, or correct host and port in upstreams.gh.url"
    assert found("refused", "gh", "x", "do that").next == "do that"
    assert found("hidden", "gh", "x").next is None


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_to_do_unless_it_is_a_note(kind: str) -> None:
    """And its advice is a template that can be filled."""
    row = KINDS[kind]
    assert row.means.endswith(".")
    assert (found(kind, "a", "x").next is None) == (row.level == "note")


def test_the_verdict_is_the_worst_that_was_found() -> None:
    """Of an upstream, and of all."""
    report = Report(["/mcp"], upstreams=[Checkup("a", "x"), Checkup("b", "x")])
    report.findings = [found("hidden", "a", "x"), found("slow", "b", "x")]
    report.settle()
    assert ([one.verdict for one in report.upstreams], report.verdict) == (["ok", "warning"], "warning")
    report.findings.append(found("redis-away", None, "x"))
    report.settle()
    assert ([one.verdict for one in report.upstreams], report.verdict) == (["ok", "warning"], "problem")
    report.findings.append(found("silent", "b", "x"))
    report.settle()
    assert report.upstreams[1].verdict == "problem"
    assert [one.kind for one in report.of("b")] == ["silent", "slow"]
