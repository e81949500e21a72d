"""That time counts once, while anything is under way, and not otherwise."""

from gateway.support.busy import Busy
from tests.unit.cache.clock import Clock


def test_only_the_time_of_questions_counts() -> None:
    """What a request waits for besides is nobody's fault."""
    clock = Clock()
    busy = Busy(clock)
    with busy.asking():
        clock.now += 2.0
        assert busy.spent == 2.0
    clock.now += 100.0
    with busy.asking():
        clock.now += 1.0
    assert busy.spent == 3.0
    assert repr(busy) == "<Busy 0 under way, 3.000s so far>"


def test_questions_at_the_same_time_count_once() -> None:
    """Two pages that take a second each, side by side, are one second."""
    clock = Clock()
    busy = Busy(clock)
    with busy.asking():
        clock.now += 1.0
        with busy.asking():
            clock.now += 1.0
        clock.now += 1.0
    assert busy.spent == 3.0
