"""Messages in parts are put together whatever order the parts come in, and never grow beyond their bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.support.redis_mailbox import _Incoming


@given(
    messages=st.lists(st.lists(st.binary(max_size=3), min_size=1, max_size=4), min_size=1, max_size=4),
    data=st.data(),
)
def test_parts_in_any_order_and_twice_are_the_same_messages(
    messages: list[list[bytes]], data: st.DataObject
) -> None:
    parts = [
        (b"." if index == len(message) - 1 else b"+") + piece
        for message in messages
        for index, piece in enumerate(message)
    ]
    numbers = data.draw(st.permutations([*range(len(parts)), *range(0, len(parts), 2)]))
    incoming = _Incoming(100)
    whole = [message for number in numbers for message in incoming.take(number, parts[number])]
    assert whole == [b"".join(message) for message in messages]
    assert not incoming.early


def test_what_is_far_ahead_has_no_room_and_what_was_here_has() -> None:
    incoming = _Incoming(100)
    assert incoming.take(0, b".a") == [b"a"]
    assert incoming.has_room(0)
    assert incoming.has_room(1)
    assert not incoming.has_room(1000)


def test_a_message_beyond_the_bound_is_refused_and_the_next_begins_at_nothing() -> None:
    incoming = _Incoming(3)
    assert incoming.take(0, b"+ab") == []
    assert incoming.take(1, b".c") == [b"abc"]
    assert incoming.take(2, b"+abc") == []
    with pytest.raises(ValueError, match="larger than 3"):
        incoming.take(3, b".d")
