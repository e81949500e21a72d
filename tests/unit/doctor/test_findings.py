"""What the cache makes of a result, in words."""

import json
from typing import Any

import pytest

from gateway.cache.policy import Rules
from gateway.doctor.findings import judged, kept_call

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
