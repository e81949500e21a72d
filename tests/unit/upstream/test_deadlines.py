"""The two limits of a call."""

import asyncio

import pytest

from gateway.upstream.deadlines import Deadline


async def outlast(deadline, first, finally_do=lambda: None):
    """Wait in the deadline's scope for ever; whether the deadline ended that."""
    try:
        async with deadline:
            first()
            try:
                await asyncio.Event().wait()
            finally:
                finally_do()
    except TimeoutError:
        return deadline.expired


async def test_silence_is_one_limit():
    """It is named as the configuration names it."""
    deadline = Deadline(0.01, 60.0)
    assert await outlast(deadline, lambda: None)
    assert deadline.limit == "timeout of 0.01s without progress"


async def test_the_whole_is_the_other_limit():
    """Progress moves the end of silence, never the end."""
    deadline = Deadline(60.0, 0.01)
    assert await outlast(deadline, deadline.progressed)
    assert deadline.limit == "max_timeout of 0.01s"


async def test_progress_gives_the_whole_time_again():
    """What is left grows back."""
    async with Deadline(60.0, 600.0) as deadline:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while loop.time() == begun:  # noqa: ASYNC110  # until the clock has moved, however little that is
            await asyncio.sleep(0)
        now = loop.time()
        deadline.progressed()
        assert loop.time() + deadline.remaining >= now + 60.0


async def test_a_foreign_timeout_is_not_ours():
    """A TimeoutError from inside passes, and the deadline has not expired."""
    deadline = Deadline(60.0, 60.0)
    with pytest.raises(TimeoutError):
        async with deadline:
            raise TimeoutError
    assert not deadline.expired


async def test_progress_after_the_end_changes_nothing():
    """A report that comes while the call is being ended is no error."""
    deadline = Deadline(0.0, 60.0)
    assert await outlast(deadline, lambda: None, finally_do=deadline.progressed)
