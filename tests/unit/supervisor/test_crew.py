"""What a supervisor does by itself, before there is any worker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest_asyncio

from gateway import config
from gateway.config import Config
from gateway.supervisor.admin import CrewAdmin
from gateway.supervisor.crew import Crew, Source
from gateway.support.tasks import Background

TEXT = "upstreams: {a: 'http://127.0.0.1:1/mcp'}\nlisten: 127.0.0.1:0\nadmin: off\n"
CONFIG = config.load(TEXT)


class File:
    """A configuration that is read when it may be, and how often it was."""

    def __init__(self) -> None:
        self.reads = 0
        self.begun = threading.Event()
        self.may = threading.Event()

    def load(self, _: Callable[[Path], None]) -> tuple[Config, str]:
        self.reads += 1
        self.begun.set()
        assert self.may.wait(60)
        return CONFIG, TEXT


@pytest_asyncio.fixture
async def background() -> AsyncIterator[Background]:
    background = Background()
    yield background
    await background.close(5)


async def test_many_signals_at_once_are_one_or_two_readings(background: Background) -> None:
    """Whoever sends hundreds of SIGHUP has the file read once more than it is being read."""
    file = File()
    source = Source([], file.load)
    crew = await asyncio.to_thread(Crew, 2, CONFIG, TEXT, source, background, lambda *_: None)
    try:
        for _ in range(100):
            crew.hang_up()
        assert await asyncio.to_thread(file.begun.wait, 60)
        for _ in range(100):
            crew.hang_up()
        file.may.set()
        while crew.generation < 3:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)
        crew.hang_up()
        while crew.generation < 4:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        assert file.reads == 3
        # What is in force is told also while no worker can be asked.
        said = await CrewAdmin(crew, background).look()
        assert (said.config.generation, said.config.loaded) == (4, round(crew.loaded, 3))
    finally:
        await crew.down()
    crew.hang_up()  # who is stopping neither reads nor starts anything
    crew.roll()
    assert "reload" not in repr(asyncio.all_tasks())
    assert "rolling restart" not in repr(asyncio.all_tasks())
    assert file.reads == 3
