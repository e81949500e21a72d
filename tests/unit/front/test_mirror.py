"""What an answer's lifetime becomes in HTTP's words."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.front.mirror import lines
from gateway.protocol.call import Reuse

REUSES = st.builds(
    Reuse,
    st.sampled_from(["hit", "miss", "stale", "bypass"]),
    st.sampled_from(["fresh", "absent", "upstream-down"]),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.sampled_from(["public", "private"]),
)


def headers(reuse: Reuse) -> dict[str, str]:
    """Return the lines as pairs; none may come twice."""
    pairs = [line.split(": ", 1) for line in lines(reuse).decode().splitlines()]
    assert len({name for name, _ in pairs}) == len(pairs)
    return {name: text for name, text in pairs}


def test_a_public_hit_says_how_old_it_is_and_how_old_it_may_get() -> None:
    """What is left is max-age less Age (RFC 9111, 4.2): 40 of 60 seconds here."""
    assert headers(Reuse("hit", "fresh", 20, 40, "public")) == {
        "Cache-Control": "public, max-age=60",
        "Age": "20",
        "Vary": "Authorization",
        "Mcp-Gateway-Cache": "hit; reason=fresh",
    }


def test_what_was_just_fetched_has_no_age() -> None:
    """An Age says that somebody answered in the origin's place."""
    assert headers(Reuse("miss", "absent", 0, 60, "private")) == {
        "Cache-Control": "private, max-age=60",
        "Vary": "Authorization",
        "Mcp-Gateway-Cache": "miss; reason=absent",
    }


def test_what_has_no_life_left_is_not_to_be_stored() -> None:
    """Errors, unknown hints, joins that lack a part, and what stands in for an upstream that is down."""
    assert headers(Reuse("bypass", "partial"))["Cache-Control"] == "no-store"
    stale = headers(Reuse("stale", "upstream-down", 90, 0, "public"))
    assert (stale["Cache-Control"], stale["Age"]) == ("no-store", "90")


@given(REUSES)
def test_nobody_may_keep_it_longer_or_share_it_wider_than_the_hints(reuse: Reuse) -> None:
    """HTTP's own arithmetic comes to the ttl, and public comes from public alone."""
    said = headers(reuse)
    assert said["Vary"] == "Authorization"
    if said["Cache-Control"] == "no-store":
        assert reuse.ttl == 0
        return
    scope, max_age = re.fullmatch(r"(public|private), max-age=(\d+)", said["Cache-Control"]).groups()
    assert (scope, int(max_age) - int(said.get("Age", "0"))) == (reuse.scope, reuse.ttl)
