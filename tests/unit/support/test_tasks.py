"""That background tasks are kept, named, logged when they fail, and gone after close."""

import asyncio
import gc
import logging

import pytest

from gateway.support.tasks import Background


async def forever(started: asyncio.Event) -> None:
    started.set()
    await asyncio.Event().wait()


async def test_a_task_runs_under_its_name_and_gives_its_result() -> None:
    """The caller may await what it started."""
    background = Background()

    async def answer() -> int:
        return 42

    task = background.start(answer(), name="answer")
    assert repr(background) == "<Background [answer]>"
    assert await task == 42
    await asyncio.sleep(0)
    assert repr(background) == "<Background []>"


async def test_a_task_nobody_holds_survives_garbage_collection() -> None:
    """The loop keeps only weak references; Background keeps real ones."""
    background = Background()
    woken = asyncio.Event()

    async def wait_on_a_cycle() -> None:
        await asyncio.get_running_loop().create_future()

    background.start(wait_on_a_cycle(), name="cycle").add_done_callback(lambda _: woken.set())
    await asyncio.sleep(0)
    gc.collect()
    assert repr(background) == "<Background [cycle]>"
    await background.close(1)
    assert woken.is_set()


async def test_a_failure_is_logged_with_the_name_and_the_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody awaits a background task, so the log is where its failure shows."""
    background = Background()

    async def fail() -> None:
        raise ValueError("broken pipe of state")

    task = background.start(fail(), name="follow gh")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert [record.message for record in caplog.records] == ["task follow gh failed"]
    assert "broken pipe of state" in caplog.text


async def test_close_cancels_and_waits_for_clean_up(caplog: pytest.LogCaptureFixture) -> None:
    """A task's own `finally` has run when close returns, and a cancellation is no failure."""
    background = Background()
    started = asyncio.Event()
    cleaned: list[str] = []

    async def careful() -> None:
        try:
            await forever(started)
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    background.start(careful(), name="careful")
    await started.wait()
    await background.close(1)
    assert cleaned == ["up"]
    assert repr(background) == "<Background []>"
    assert not caplog.records


async def test_close_gives_up_on_a_task_that_will_not_end(caplog: pytest.LogCaptureFixture) -> None:
    """The deadline holds, and the stubborn task is named."""
    background = Background()
    started, let_go = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        try:
            await forever(started)
        except asyncio.CancelledError:
            await let_go.wait()

    task = background.start(stubborn(), name="stubborn")
    await started.wait()
    with caplog.at_level(logging.WARNING):
        await background.close(0.01)
    assert caplog.messages == ["task stubborn did not end within 0.01s"]
    let_go.set()
    await task


async def test_a_task_started_after_close_never_runs() -> None:
    """A late start, from another task's clean-up, must not outlive the gateway."""
    background = Background()
    await background.close(1)
    ran: list[str] = []

    async def late() -> None:
        ran.append("late")

    task = background.start(late(), name="late")
    await asyncio.wait([task])
    assert task.cancelled()
    assert not ran


async def test_close_called_by_one_of_its_own_tasks_does_not_wait_for_itself() -> None:
    """The task that decides to stop everything gets to the end of its own work."""
    background = Background()
    task = background.start(background.close(1), name="stop")
    await asyncio.wait_for(task, 0.5)
