"""What an answer made of many parts says of the cache."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.reuse import FRESH, PARTIAL, Origin, joined, origin, reuse

ABSENT = Origin("miss", "absent")
TTL = Origin("bypass", "ttl")
MOMENTS = st.floats(0, 1e9)


def test_a_joined_answer_is_a_hit_when_every_part_is() -> None:
    """And names what kept it from being one otherwise; what is never kept says more than what was fetched."""
    assert joined([FRESH, FRESH], partial=False) == FRESH
    assert joined([FRESH, ABSENT], partial=False) == ABSENT
    assert joined([ABSENT, TTL, FRESH], partial=False) == TTL


def test_a_join_that_lacks_a_part_is_partial_whatever_the_others_are() -> None:
    """It is not kept (C-28)."""
    assert joined([FRESH], partial=True) == PARTIAL


def test_the_cache_calls_a_hit_fresh() -> None:
    """Every other reason stands as it is."""
    assert origin("hit", "hit") == FRESH
    assert origin("bypass", "not-shared") == Origin("bypass", "not-shared")


@given(received=MOMENTS, expires=MOMENTS, now=MOMENTS)
def test_nothing_is_called_younger_or_longer_lived_than_whole_seconds_allow(
    received: float, expires: float, now: float
) -> None:
    """Both are rounded down and never below nothing."""
    said = reuse(FRESH, received=received, expires=expires, scope="public", now=now)
    assert said.ttl == int(max(0.0, expires - now))
    assert said.age == int(max(0.0, now - received))


def test_what_has_no_parts_is_as_old_as_now() -> None:
    """An upstream that lists nothing has an infinite moment."""
    assert reuse(FRESH, received=float("inf"), expires=0.0, scope="private", now=5.0).age == 0
