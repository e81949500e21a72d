"""When a crashed worker comes back, and who serves for it until then."""

import pytest

from gateway.supervisor.pace import GOOD, Pauses, Silence, stand_ins


def test_the_first_crash_costs_no_pause_and_the_next_ones_more_and_more():
    """A crash is news; one after the other is a fault that must not keep a processor busy."""
    pauses = Pauses()
    assert [pauses.crashed(1.0) for _ in range(9)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_who_worked_for_a_while_counts_as_new():
    """Else a year of rare crashes would end in long pauses."""
    pauses = Pauses()
    assert [pauses.crashed(1.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert pauses.crashed(GOOD) == 0.0
    assert pauses.crashed(1.0) == 0.5


def test_silence_grows_with_each_look_and_ends_with_a_word():
    """What was not looked at, while everything slept, does not count."""
    silence = Silence()
    assert [silence.looked(2.0) for _ in range(3)] == [2.0, 4.0, 6.0]
    silence.heard()
    assert silence.looked(2.0) == 2.0


@pytest.mark.parametrize(
    ("serving", "expected"),
    [
        ([True, True], [set(), set()]),
        ([True, False], [{1}, set()]),
        ([False, True, True], [set(), {0}, set()]),
        ([True, False, True, False, False], [{1, 4}, set(), {3}, set(), set()]),
        ([False, False], [set(), set()]),
        ([], []),
    ],
)
def test_places_without_a_worker_are_shared_out(serving: list[bool], expected: list[set[int]]):
    """Each is served by one that is there, if any is."""
    assert stand_ins(serving) == expected
