"""What a lookup would meet, and the reason, from what lies there and what is remembered of its like."""

from dataclasses import replace

import pytest

from gateway.cache.explain import Found, Last, Met, explained, ingredients
from gateway.cache.policy import Entry, Lookup, Rules, Verdict, Why, private_key, public_key
from gateway.protocol.call import Partition, Scope, UpstreamName

ANN = Partition("f" * 64)
LIST = Lookup(UpstreamName("alpha"), "s" * 64, "tools/list", None, "p" * 32, "2026-07-28", ANN, Rules())
READ = replace(LIST, method="resources/read", target="a:1?token=hidden")
NOBODY = replace(LIST, partition=None)


def lies(verdict: Verdict, scope: Scope = "public", *, stands_in: bool = False) -> Met:
    key = public_key(LIST) if scope == "public" else private_key(LIST)
    assert key is not None
    return Met(key, Entry(b"{}", 100.0, 60.0, scope), verdict, stands_in)


def met(
    lookup: Lookup,
    *found: Met,
    last: Last | None = None,
    down: bool = False,
    bridged: bool = False,
) -> tuple[str, str]:
    said = explained(lookup, found, last, down=down, bridged=bridged, now=130.0)
    return said.outlook, said.reason


def test_what_is_fresh_is_a_hit_from_the_first_arm_that_has_it() -> None:
    """An own entry that is over does not hide a public one (C-20)."""
    found = explained(
        LIST,
        [lies(Verdict.EXPIRED, "private"), lies(Verdict.FRESH)],
        None,
        down=False,
        bridged=False,
        now=130.0,
    )
    assert (found.outlook, found.reason) == ("hit", "hit")
    said = found.report()
    assert (said["arm"], said["age"], said["remaining"], said["ttl"]) == ("public", 30.0, 30.0, 60.0)


def test_an_invalidated_entry_says_more_than_one_that_is_too_old() -> None:
    """Both are fetched anew."""
    assert met(LIST, lies(Verdict.EXPIRED, "private"), lies(Verdict.GENERATION)) == ("miss", "generation")
    assert met(LIST, lies(Verdict.EXPIRED)) == ("miss", "expired")


def test_what_is_fresh_needs_no_upstream_and_what_is_old_stands_in_only_where_it_may() -> None:
    """Answers outlive an outage as long as the operator lets them, never a change (C-33)."""
    fresh, old = lies(Verdict.FRESH), lies(Verdict.EXPIRED, stands_in=True)
    assert met(LIST, fresh, down=True) == ("hit", "hit")
    assert met(READ, fresh, down=True) == ("hit", "hit")
    assert met(LIST, old, down=True, bridged=True) == ("stale", "upstream-down")
    assert met(LIST, old, down=True) == ("bypass", "upstream-down")
    assert met(LIST, lies(Verdict.GENERATION), down=True, bridged=True) == ("bypass", "upstream-down")


@pytest.mark.parametrize(
    ("lookup", "last", "said"),
    [
        (LIST, None, ("miss", "absent")),
        (LIST, Last("public", None), ("miss", "absent")),
        (LIST, Last("private", None), ("miss", "private")),
        (LIST, Last("private", "anonymous"), ("miss", "private")),
        (NOBODY, Last("private", None), ("bypass", "anonymous")),
        (NOBODY, Last("public", None), ("miss", "absent")),
        (replace(NOBODY, rules=Rules(share_public=False)), Last("private", None), ("bypass", "not-shared")),
        (replace(NOBODY, rules=Rules(single_tenant=True)), Last("private", None), ("miss", "private")),
        (LIST, Last("private", "ttl"), ("bypass", "ttl")),
        (NOBODY, Last("public", "too-large"), ("bypass", "too-large")),
        (LIST, Last("private", "incomplete"), ("bypass", "incomplete")),
        (LIST, Last("public", "generation"), ("miss", "absent")),
    ],
)
def test_where_nothing_lies_the_last_result_of_its_like_tells_why(
    lookup: Lookup, last: Last | None, said: tuple[str, Why]
) -> None:
    """What was refused for the last caller's sake alone need not be for this one's."""
    assert met(lookup, last=last) == said


def test_a_report_of_nothing_still_names_the_key() -> None:
    """With hashes cut short, and without what a URI's query or a cursor holds."""
    said = Found(READ, "miss", "absent", None, 0.0).report()
    assert (said["verdict"], said["reason"]) == ("MISS", "absent")
    assert ingredients(READ)["partition"] == "f" * 16
    assert "hidden" not in str(said)
    cursor = ingredients(replace(LIST, target="page-two-of-ann"))["target"]
    assert cursor is not None
    assert cursor.startswith("#")
    assert "ann" not in cursor
    assert ingredients(replace(LIST, target=""))["target"] != ingredients(LIST)["target"] is None
    assert ingredients(replace(NOBODY, rules=Rules(single_tenant=True)))["partition"] == "everyone"
