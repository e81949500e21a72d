"""That who reads slowly, or never, is not waited for, and that whoever reads gets whole lines in order."""

import io
import os
import pty
import socket
import threading
import tty
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gateway.support.sink import Sink

LINES = [f"{number:05}".encode() + b"x" * (number % 90) + b"\n" for number in range(20_000)]
MOST = 2**24


def pipe() -> tuple[int, int]:
    return os.pipe()


def terminal() -> tuple[int, int]:
    reader, writer = pty.openpty()
    tty.setraw(writer)
    return reader, writer


def journal() -> tuple[int, int]:
    reader, writer = socket.socketpair()
    return reader.detach(), writer.detach()


Ends = tuple[int, Sink]


@pytest.fixture(params=[pipe, terminal, journal], ids=["pipe", "terminal", "journal"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """A descriptor to read from, and what writes to its other end."""
    read, write = request.param()
    with open(write, "w", encoding="utf-8", closefd=False) as stream:
        sink = Sink(stream)
        yield read, sink
        sink.close()
    os.close(write)
    os.close(read)


def taken(read: int) -> bytes:
    """Return what there is now."""
    os.set_blocking(read, False)
    found = b""
    with suppress(BlockingIOError):
        while piece := os.read(read, 2**20):
            found += piece
    return found


def test_nobody_is_waited_for(ends: Ends) -> None:
    """What there is no room for waits, and comes in order and whole when somebody reads."""
    read, sink = ends
    for line in LINES:
        sink.add(line, MOST)
    assert not sink.pour()
    assert os.get_blocking(read)
    found = taken(read)
    while not sink.pour():
        found += taken(read)
    assert found + taken(read) == b"".join(LINES)
    assert sink.size == 0


def test_a_line_longer_than_what_is_written_at_once(ends: Ends) -> None:
    """It may be cut between two reads, and holds up nobody."""
    read, sink = ends
    long = b"y" * 300_000 + b"\n"
    sink.add(b"before\n", MOST)
    sink.add(long, MOST)
    sink.add(b"behind\n", MOST)
    found = b""
    while not sink.pour():
        found += taken(read)
    assert found + taken(read) == b"before\n" + long + b"behind\n"


def test_beyond_a_bound_lines_are_counted(ends: Ends) -> None:
    """And the number is told once, when there is room for it."""
    read, sink = ends
    for line in LINES:
        sink.add(line, 2**18)
    assert sink.size < 2**18 + len(max(LINES, key=len))
    assert not sink.pour()
    assert sink.lost() == 0
    found = taken(read)
    while not sink.pour():
        found += taken(read)
    found += taken(read)
    assert sink.lost() == len(LINES) - found.count(b"\n")
    assert sink.lost() == 0


def test_the_end_waits_for_a_moment(ends: Ends) -> None:
    """Whoever reads by then gets everything; nobody holds it up."""
    read, sink = ends
    for line in LINES:
        sink.add(line, MOST)
    sink.finish(0.01)
    assert sink.size > 0
    found: list[bytes] = []
    size = sum(map(len, LINES))

    def reading() -> None:
        got = 0
        while got < size:
            found.append(os.read(read, 2**20))
            got += len(found[-1])

    reader = threading.Thread(target=reading)
    reader.start()
    sink.finish(30.0)
    reader.join(30.0)
    assert b"".join(found) == b"".join(LINES)


def test_whoever_shares_the_file_may_wait_for_it(ends: Ends) -> None:
    """Not to wait is the sink's own affair: the other processes that write there expect to."""
    _, sink = ends
    assert sink.stream is not None
    sink.add(b"x\n", MOST)
    sink.pour()
    assert os.get_blocking(sink.stream.fileno())


def test_one_that_nobody_can_read_any_more() -> None:
    """Nothing waits for it."""
    read, write = os.pipe()
    with open(write, "w", encoding="utf-8") as stream:
        sink = Sink(stream)
        os.close(read)
        sink.add(b"x\n", MOST)
        assert sink.pour()
        sink.close()
        sink.add(b"x\n", MOST)
        assert sink.pour()


def test_a_stream_without_a_file() -> None:
    """It is written to as text, and one that is closed swallows everything."""
    stream = io.StringIO()
    sink = Sink(stream)
    sink.add("ä\n".encode(), MOST)
    assert sink.pour()
    assert stream.getvalue() == "ä\n"
    stream.close()
    sink.add(b"x\n", MOST)
    assert sink.pour()
    nowhere = Sink(None)
    nowhere.add(b"x\n", MOST)
    assert nowhere.pour()


def test_a_plain_file(tmp_path) -> None:
    """Lines stand in it as they were added, behind what is there."""
    file = tmp_path / "log"
    file.write_text("before\n")
    with file.open("a") as stream:
        sink = Sink(stream)
        for line in LINES:
            sink.add(line, MOST)
        assert sink.pour()
        sink.close()
    assert file.read_bytes() == b"before\n" + b"".join(LINES)
