"""Finds the processes that a test started, and whatever those started, by a mark in their environment."""

import asyncio
import itertools
import os
import time
from pathlib import Path

MARK = "GATEWAY_TEST_MARK"
_numbers = itertools.count(1)


def mark() -> str:
    """Return a mark that no other test has."""
    return f"{os.getpid()}-{next(_numbers)}"


def marked(text: str) -> list[str]:
    """Return `PID COMMAND` of every living process whose environment holds the mark."""
    wanted = f"{MARK}={text}".encode()
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{process.name} {command}")
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return found


def zombies() -> list[int]:
    """Return the children of this process that ended and were not waited for."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state == "Z" and int(parent) == os.getpid():
            found.append(int(process.name))
    return found


def family(pid: int) -> set[tuple[int, str]]:
    """Return every living process below this one, as its id and when it started."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            state, parent, *more = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z":
            parents.setdefault(int(parent), []).append((int(process.name), more[17]))
    found, below = set(), parents.get(pid, [])
    while below:
        found.update(below)
        below = [child for one, _ in below for child in parents.get(one, [])]
    return found


def alive(process: tuple[int, str]) -> bool:
    """Whether a process of a family still runs."""
    pid, since = process
    try:
        state, *more = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return state != "Z" and more[18] == since


async def none_left(text: str, within: float = 15.0) -> None:
    """Return once no process with the mark is left; what ends by itself sends no event to wait for."""
    give_up = time.monotonic() + within
    while left := await asyncio.to_thread(marked, text):
        assert time.monotonic() < give_up, f"still running: {left}"
        await asyncio.sleep(0.02)
