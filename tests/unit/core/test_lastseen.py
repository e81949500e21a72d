"""Whether a list changed is a matter of its items, for one credential and one capability profile."""

import pytest

from gateway.core.audience import Followed
from gateway.core.capabilities import Profile
from gateway.core.lastseen import LastSeen, digest_of_items
from gateway.core.lists import Item
from gateway.protocol.call import Partition, UpstreamName

ALPHA = UpstreamName("alpha")
AT = Followed(ALPHA, None)
PLAIN, RICH = Profile(b"{}", "plain"), Profile(b'{"x":{}}', "rich")
TOOLS = "tools/list"


def tools(*names: str) -> bytes:
    return digest_of_items([Item(name, {"name": name.encode()}) for name in names])


@pytest.fixture
def seen() -> LastSeen:
    return LastSeen()


def test_only_other_items_are_a_change(seen: LastSeen) -> None:
    """The first look is none, nor is another order."""
    looks = [tools("a", "b"), tools("b", "a"), tools("a"), tools("a")]
    assert [seen.record(AT, TOOLS, PLAIN, items) for items in looks] == [False, False, True, False]


def test_what_another_caller_or_profile_is_shown_is_another_list(seen: LastSeen) -> None:
    """Two clients never look like one list that changes (C-06)."""
    ann = Followed(ALPHA, Partition("ann"))
    looks = [(AT, PLAIN, "a"), (AT, RICH, "b"), (ann, PLAIN, "c")] * 2
    assert not any(seen.record(at, TOOLS, profile, tools(name)) for at, profile, name in looks)
    assert [profile for _, profile in seen.profiles(AT)] == [PLAIN, RICH]


def profile(number: int) -> Profile:
    return Profile(b'{"x":%d}' % number, f"x{number}")


def test_whoever_shows_up_in_ever_new_ways_is_forgotten_first() -> None:
    """And not those who share the bound with it."""
    seen, ann = LastSeen(10), Followed(ALPHA, Partition("ann"))
    seen.record(ann, TOOLS, PLAIN, tools("a"))
    for number in range(100):
        assert not seen.record(AT, TOOLS, profile(number), tools("a"))
    assert repr(seen) == "<LastSeen 10 lists>"
    assert seen.record(ann, TOOLS, PLAIN, tools("b"))


def test_a_list_that_may_have_been_forgotten_counts_as_changed() -> None:
    """Unless others see the same; what was never forgotten is no news the first time."""
    seen = LastSeen(10)
    seen.heeded = [AT]
    seen.record(AT, TOOLS, PLAIN, tools("a"))
    for number in range(100):
        seen.record(AT, TOOLS, profile(number), tools("a"))
    assert not seen.record(AT, TOOLS, RICH, tools("a"))
    assert seen.record(AT, TOOLS, PLAIN, tools("b"))
    assert not seen.record(AT, "prompts/list", PLAIN, tools("c"))


def test_of_many_callers_the_one_who_has_not_asked_longest_is_forgotten() -> None:
    """Then a caller's first look may be none."""
    seen = LastSeen(10)
    callers = [Followed(ALPHA, Partition(str(number))) for number in range(12)]
    seen.heeded = callers[:11]
    for at in callers[:10]:
        assert not seen.record(at, TOOLS, PLAIN, tools("a"))
    seen.record(callers[0], TOOLS, PLAIN, tools("a"))
    assert not seen.record(callers[10], TOOLS, PLAIN, tools("a"))
    assert [bool(seen.profiles(at)) for at in callers[:3]] == [True, False, True]
    assert seen.record(callers[1], TOOLS, PLAIN, tools("a"))
    assert not seen.record(callers[11], TOOLS, PLAIN, tools("a"))  # who does not listen


def test_a_change_that_was_told_is_no_news(seen: LastSeen) -> None:
    """The one after it is."""
    seen.record(AT, TOOLS, PLAIN, tools("a"))
    seen.tell(ALPHA, TOOLS)
    assert not seen.record(AT, TOOLS, PLAIN, tools("b"))
    assert seen.record(AT, TOOLS, PLAIN, tools("c"))


def test_word_of_a_change_is_doubted_while_the_list_is_fetched(seen: LastSeen) -> None:
    """B45: unless nobody has seen it yet."""
    seen.began(ALPHA, TOOLS)
    assert not seen.doubts(AT, TOOLS, since=0.0)
    seen.record(AT, TOOLS, PLAIN, tools("a"))
    assert seen.doubts(AT, TOOLS, since=0.0)
    seen.ended(ALPHA, TOOLS, 1.0)
    assert not seen.doubts(AT, TOOLS, since=0.0)


def test_who_cried_change_in_vain_is_doubted_right_after_a_fetch(seen: LastSeen) -> None:
    """B45: until it was right once."""
    seen.record(AT, TOOLS, PLAIN, tools("a"))
    for _ in range(2):
        seen.tell(AT, TOOLS)
        seen.record(AT, TOOLS, PLAIN, tools("a"))
    seen.began(ALPHA, TOOLS)
    seen.ended(ALPHA, TOOLS, 1.0)
    assert seen.doubts(AT, TOOLS, since=0.5)
    assert not seen.doubts(AT, TOOLS, since=1.5)
    seen.tell(AT, TOOLS)
    seen.record(AT, TOOLS, PLAIN, tools("b"))
    assert not seen.doubts(AT, TOOLS, since=0.5)
