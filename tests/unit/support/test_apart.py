"""Large messages are worked on beside the event loop, in turns, and count as held until that is done."""

import asyncio
import threading

import pytest

from gateway.support.apart import LARGE, Apart
from gateway.support.room import Room


class Full(Exception):
    """There is no room for a message of this upstream."""


def apart(most: int = 10 * LARGE) -> tuple[Apart, Room]:
    room = Room(most, most)
    return Apart(room, Full), room


async def test_small_work_is_done_at_once_and_large_work_in_a_thread() -> None:
    """Only what may take long is worth a thread."""
    does, _ = apart()
    here = threading.current_thread()
    assert await does.do("alpha", LARGE - 1, threading.current_thread) is here
    assert await does.do("alpha", LARGE, threading.current_thread) is not here
    assert repr(does) == "<Apart: ['alpha']>"


async def test_one_upstream_takes_one_thread_and_leaves_the_other_to_the_next() -> None:
    """Its second message waits for the first; meanwhile another upstream's is done."""
    does, room = apart()
    go, began = threading.Event(), threading.Event()
    first = asyncio.create_task(does.do("alpha", LARGE, lambda: (began.set(), go.wait())))
    second = asyncio.create_task(does.do("alpha", LARGE, go.is_set))
    try:
        await asyncio.to_thread(began.wait)
        assert await does.do("beta", LARGE, lambda: "done") == "done"
        assert not second.done()
        assert room.held == 2 * LARGE
    finally:
        go.set()
    await first
    assert await second is True
    assert room.held == 0


async def test_a_message_without_room_is_refused_and_takes_none() -> None:
    """What waits for its turn is held like what is read."""
    does, room = apart(LARGE)
    go = threading.Event()
    first = asyncio.create_task(does.do("alpha", LARGE, go.wait))
    await asyncio.sleep(0)
    try:
        with pytest.raises(Full, match="beta"):
            await does.do("beta", LARGE, go.is_set)
        assert room.held == LARGE
    finally:
        go.set()
    assert await first is True


async def test_work_that_nobody_waits_for_keeps_its_turn_until_it_ends() -> None:
    """Callers who leave free no thread; what goes wrong then is nobody's to hear of."""
    does, room = apart()
    go, began = threading.Event(), threading.Event()

    def fail() -> None:
        began.set()
        go.wait()
        raise ValueError("nobody hears it")

    left = asyncio.create_task(does.do("alpha", LARGE, fail))
    await asyncio.to_thread(began.wait)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert room.held == 0
    following = asyncio.create_task(does.do("alpha", LARGE, go.is_set))
    await asyncio.sleep(0)
    assert not following.done()
    go.set()
    assert await following is True


async def test_what_work_raises_is_raised_and_the_turn_is_over() -> None:
    """As it would be without a thread."""
    does, room = apart()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await does.do("alpha", LARGE, lambda: 1 // 0)
    assert room.held == 0
