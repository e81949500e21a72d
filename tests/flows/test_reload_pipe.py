"""A gateway whose configuration came through a pipe: it goes on by that, whatever is asked of it."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from gateway.reloader import Origin, Reloader
from tests.support.running import running
from tests.support.scripted import ScriptedUpstream, tool


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are none here")
async def test_what_came_through_a_pipe_is_not_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither at the start, which would find nothing there, nor when that is asked for."""
    caplog.set_level(logging.INFO)
    pipe = tmp_path / "config"
    os.mkfifo(pipe)
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        reloader = Reloader(
            gateway.gateway, Origin(str(pipe)), adapt=lambda wanted: wanted, guard=lambda wanted, log: None
        )
        running_on = asyncio.create_task(reloader.run(gateway.runtime.config))
        for _ in range(2):
            caplog.clear()
            reloader.ask()
            while "nothing is reloaded" not in caplog.text:  # noqa: ASYNC110  # no event tells it
                await asyncio.sleep(0.002)
        running_on.cancel()
        assert (gateway.gateway.generation, gateway.gateway.reload_problem) == (1, None)
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]
