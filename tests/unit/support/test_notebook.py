"""A notebook forgets what is over, refuses what is too much, and keeps sets apart from values."""

import pytest

from gateway.support.notebook import LARGEST, LocalNotebook, Unavailable
from tests.unit.cache.clock import Clock


async def test_a_value_is_there_for_its_time_and_is_renewed_when_read() -> None:
    clock = Clock()
    notebook = LocalNotebook(clock)
    await notebook.write("session", b"a", b"1", 10)
    clock.now += 9
    assert await notebook.read("session", b"a", renew=10) == b"1"
    clock.now += 9
    assert await notebook.read("session", b"a") == b"1"
    clock.now += 1
    assert await notebook.read("session", b"a") is None


async def test_kinds_are_apart() -> None:
    notebook = LocalNotebook(Clock())
    await notebook.write("session", b"a", b"1", 10)
    assert await notebook.read("ended", b"a") is None


async def test_only_the_first_adds_and_only_one_erases() -> None:
    notebook = LocalNotebook(Clock())
    assert await notebook.add("ended", b"a", b"1", 10)
    assert not await notebook.add("ended", b"a", b"2", 10)
    assert await notebook.read("ended", b"a") == b"1"
    assert await notebook.erase("ended", b"a")
    assert not await notebook.erase("ended", b"a")


async def test_a_set_grows_up_to_its_bound_and_ends_with_its_last_member() -> None:
    notebook = LocalNotebook(Clock())
    assert await notebook.include("uris", b"a", [b"1", b"2"], 10, most=2)
    assert await notebook.include("uris", b"a", [b"2"], 10, most=2)
    assert not await notebook.include("uris", b"a", [b"3"], 10, most=2)
    assert await notebook.members("uris", b"a") == {b"1", b"2"}
    await notebook.exclude("uris", b"a", [b"1", b"2", b"9"])
    assert await notebook.members("uris", b"a") == frozenset()
    assert len(notebook) == 0
    assert notebook.held == 0


async def test_what_is_full_refuses_what_is_new_until_something_is_over() -> None:
    clock = Clock()
    notebook = LocalNotebook(clock, most=2)
    await notebook.write("session", b"a", b"1", 10)
    await notebook.write("session", b"b", b"1", 20)
    with pytest.raises(Unavailable):
        await notebook.write("session", b"c", b"1", 10)
    await notebook.write("session", b"a", b"2", 10)
    clock.now += 10
    await notebook.write("session", b"c", b"1", 10)
    assert await notebook.read("session", b"b") == b"1"


async def test_bytes_are_bounded_as_a_whole_and_each() -> None:
    notebook = LocalNotebook(Clock(), bytes=4096)
    await notebook.write("session", b"a", bytes(3000), 10)
    with pytest.raises(Unavailable):
        await notebook.write("session", b"b", bytes(3000), 10)
    await notebook.write("session", b"a", bytes(100), 10)
    await notebook.write("session", b"b", bytes(3000), 10)
    with pytest.raises(ValueError, match="larger"):
        await LocalNotebook(Clock()).write("session", b"b", bytes(LARGEST + 1), 10)
