"""Whether a list changed is a matter of its items, for one credential and one capability profile."""

import pytest

from gateway.core.audience import Followed
from gateway.core.capabilities import Profile
from gateway.core.lastseen import LastSeen
from gateway.core.lists import Item
from gateway.protocol.call import Partition, UpstreamName

ALPHA = UpstreamName("alpha")
AT = Followed(ALPHA, None)
PLAIN, RICH = Profile(b"{}", "plain"), Profile(b'{"x":{}}', "rich")
TOOLS = "tools/list"


def tools(*names: str) -> tuple[Item, ...]:
    return tuple(Item(name, {"name": name.encode()}) for name in names)


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
