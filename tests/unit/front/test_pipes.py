"""Stdin and stdout as pipes of our own: in order, bounded, and silent about everything else."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gateway.front.pipes import Inlet, Outlet
from gateway.front.stream import ClientGone


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Return the end that is read and the end that is written; both may be closed by the test."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


async def take(descriptor: int, size: int) -> bytes:
    """Read so many bytes, as a client would."""

    def read() -> bytes:
        data = b""
        while len(data) < size and (chunk := os.read(descriptor, size - len(data))):
            data += chunk
        return data

    return await asyncio.to_thread(read)


async def test_chunks_are_read_as_they_come_until_the_end(pipe: tuple[int, int]) -> None:
    """Also from a pipe that its owner made one that does not wait."""
    source, target = pipe
    os.set_blocking(source, False)
    inlet = Inlet(source)
    reading = asyncio.ensure_future(inlet.read())
    await asyncio.sleep(0)
    assert not reading.done()
    os.write(target, b"one\n")
    assert await reading == b"one\n"
    os.close(target)
    assert await inlet.read() == b""


async def test_lines_are_written_in_their_order(pipe: tuple[int, int]) -> None:
    """Whatever their size; all of them before the end."""
    source, target = pipe
    os.set_blocking(target, False)
    outlet = Outlet(target)
    lines = [b"%d%s\n" % (number, b"x" * (number * 1000)) for number in range(40)]
    for line in lines:
        outlet.write(line)
    reading = asyncio.ensure_future(take(source, len(b"".join(lines))))
    assert await outlet.close(10)
    assert await reading == b"".join(lines)


async def test_whoever_has_more_to_say_waits_for_a_slow_client(pipe: tuple[int, int]) -> None:
    """What waits is bounded; the client's reading makes room."""
    source, target = pipe
    outlet = Outlet(target)
    line = b"x" * 2**18 + b"\n"
    sent = 0
    while not outlet.full:
        outlet.write(line)
        sent += len(line)
    waiting = asyncio.ensure_future(outlet.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await take(source, sent)
    await waiting
    assert not outlet.full
    assert await outlet.close(10)


async def test_a_client_that_left_is_noticed_and_told_nothing_more(pipe: tuple[int, int]) -> None:
    """A closed pipe is no failure of ours."""
    source, target = pipe
    outlet = Outlet(target)
    os.close(source)
    outlet.write(b"hello\n")
    await asyncio.wait_for(outlet.gone.wait(), 10)
    with pytest.raises(ClientGone):
        outlet.write(b"anybody?\n")
    with pytest.raises(ClientGone):
        await outlet.room()


async def test_what_a_client_does_not_read_is_given_up(pipe: tuple[int, int]) -> None:
    """The end does not wait for ever."""
    outlet = Outlet(pipe[1])
    outlet.write(b"x" * 2**20)
    assert not await outlet.close(0.0)
    await take(pipe[0], 2**20)
    await outlet.gone.wait()


def test_stdout_is_out_of_reach_for_everybody_else() -> None:
    """Prints, writes to descriptor 1 and the output of children go to stderr; nobody else reads stdin."""
    code = (
        "import os, subprocess, sys\n"
        "from gateway.front.pipes import take_over\n"
        "print('before')\n"
        "source, target = take_over()\n"
        "print('printed')\n"
        "os.write(1, b'written\\n')\n"
        "subprocess.run([sys.executable, '-c', 'import sys; print(repr(sys.stdin.read()))'], check=True)\n"
        "os.write(target, os.read(source, 100))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"hello\n", capture_output=True, timeout=30, check=True
    )
    assert done.stdout == b"before\nhello\n"
    assert set(done.stderr.split()) == {b"printed", b"written", b"''"}
