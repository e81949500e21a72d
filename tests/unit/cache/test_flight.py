"""That shared work runs once, survives its leader, ends with its last caller, and leaves nothing behind."""

import asyncio
import gc

import pytest

from gateway.cache.flight import Interrupted, SingleFlight
from gateway.support.tasks import Background

EMPTY = "<SingleFlight []>"


@pytest.fixture
def background() -> Background:
    return Background()


@pytest.fixture
def flight(background: Background) -> SingleFlight:
    return SingleFlight(background)


class Work:
    """Work that takes several steps, and says how far it got."""

    def __init__(self, steps: int = 4, fail: Exception | None = None) -> None:
        self.runs = 0
        self.cancelled = 0
        self.step = asyncio.Event()
        self._steps = steps
        self._fail = fail

    async def __call__(self) -> int:
        self.runs += 1
        try:
            for _ in range(self._steps):
                await asyncio.sleep(0)
            if self._fail is not None:
                raise self._fail
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.runs


class Held(Work):
    """Work that goes on when it is told to."""

    def __init__(self, fail: Exception | None = None) -> None:
        super().__init__(0, fail)
        self.started = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self) -> int:
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().__call__()


async def settle() -> None:
    """Let everything that can go on go on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_work_runs_once_for_all_who_wait(flight: SingleFlight) -> None:
    """B51: 200 callers, one fetch."""
    work = Work()
    assert await asyncio.gather(*(flight.run("k", work) for _ in range(200))) == [1] * 200
    assert work.runs == 1
    assert repr(flight) == EMPTY


async def test_work_of_other_keys_runs_apart(flight: SingleFlight) -> None:
    """Without a cursor and with an empty one are two pages (C-04)."""
    work = Work()
    assert sorted(await asyncio.gather(flight.run(("k", None), work), flight.run(("k", ""), work))) == [2, 2]
    assert work.runs == 2


async def test_a_result_is_not_kept(flight: SingleFlight) -> None:
    """Keeping is the store's business."""
    work = Work()
    assert await flight.run("k", work) == 1
    assert await flight.run("k", work) == 2


async def test_the_leader_leaves_and_the_others_stay(flight: SingleFlight) -> None:
    """B51: a leaving leader must not cancel the others' fetch."""
    work = Held()
    leader = asyncio.create_task(flight.run("k", work))
    await work.started.wait()
    others = [asyncio.create_task(flight.run("k", work)) for _ in range(3)]
    await settle()
    leader.cancel()
    await settle()
    assert leader.cancelled()
    assert repr(flight) == "<SingleFlight [k: 3 waiting]>"
    work.go.set()
    assert await asyncio.gather(*others) == [1] * 3
    assert work.cancelled == 0
    assert repr(flight) == EMPTY


async def test_the_last_to_leave_cancels_the_work(flight: SingleFlight, background: Background) -> None:
    """Nobody wants it any more, so the upstream is left alone."""
    work = Held()
    callers = [asyncio.create_task(flight.run("k", work)) for _ in range(3)]
    await work.started.wait()
    for caller in callers:
        assert work.cancelled == 0
        caller.cancel()
        await settle()
    assert work.cancelled == 1
    assert repr(flight) == EMPTY
    assert repr(background) == "<Background []>"


async def test_a_newcomer_does_not_join_work_that_is_being_cancelled(flight: SingleFlight) -> None:
    """Work whose last caller left may take a while to end; who comes then begins anew."""
    old, new = Held(), Work()
    caller = asyncio.create_task(flight.run("k", old))
    await old.started.wait()
    caller.cancel()
    newcomer = asyncio.create_task(flight.run("k", new))
    assert await newcomer == 1
    assert old.cancelled == 1
    assert repr(flight) == EMPTY


@pytest.mark.parametrize("callers", [1, 3])
@pytest.mark.parametrize("fails", [False, True])
async def test_leaving_at_any_step_leaves_nothing_behind(callers: int, fails: bool) -> None:
    """Cancelled at every await of the fill, with and without others waiting."""
    for after in range(12):
        background = Background()
        flight = SingleFlight(background)
        work = Work(6, ValueError("no") if fails else None)
        tasks = [asyncio.create_task(flight.run("k", work)) for _ in range(callers)]
        for _ in range(after):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(
            result == 1 or isinstance(result, (ValueError, asyncio.CancelledError)) for result in results
        )
        assert repr(flight) == EMPTY
        await settle()
        assert repr(background) == "<Background []>"
        assert work.runs in (0, 1)


async def test_a_failure_reaches_everybody_who_waits_and_nobody_later(
    flight: SingleFlight, caplog: pytest.LogCaptureFixture
) -> None:
    """B51: a failed fetch is neither kept nor turned into a hang, nor is it the log's business."""
    failing, working = Work(fail=ValueError("no")), Work()
    results = await asyncio.gather(*(flight.run("k", failing) for _ in range(5)), return_exceptions=True)
    assert [str(result) for result in results] == ["no"] * 5
    assert failing.runs == 1
    assert repr(flight) == EMPTY
    assert await flight.run("k", working) == 1
    assert not caplog.records


async def test_a_failure_nobody_waits_for_is_not_reported(flight: SingleFlight) -> None:
    """The last caller leaves in the very moment the work fails: no `exception was never retrieved`."""
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    for after in range(10):
        work = Held(fail=ValueError("no"))
        caller = asyncio.create_task(flight.run("k", work))
        await work.started.wait()
        work.go.set()
        for _ in range(after):
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        if not caller.cancelled():
            caller.exception()
        del caller, work
        await settle()
        gc.collect()
    assert reported == []


async def test_a_failure_after_the_leader_left_is_not_reported_twice(flight: SingleFlight) -> None:
    """It belongs to those who are still there."""
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    work = Held(fail=ValueError("no"))
    leader, other = (asyncio.create_task(flight.run("k", work)) for _ in range(2))
    await work.started.wait()
    leader.cancel()
    await settle()
    work.go.set()
    with pytest.raises(ValueError, match="no"):
        await other
    gc.collect()
    assert reported == []


async def test_callers_learn_when_the_gateway_stops_under_them(
    flight: SingleFlight, background: Background
) -> None:
    """They were not cancelled themselves, so they get an error, not a CancelledError."""
    work = Held()
    callers = [asyncio.create_task(flight.run("k", work)) for _ in range(2)]
    await work.started.wait()
    await background.close(1)
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(result) for result in results] == [Interrupted] * 2
    assert repr(flight) == EMPTY


async def test_work_begun_while_stopping_is_interrupted_too(
    flight: SingleFlight, background: Background
) -> None:
    """Its task is cancelled before the first step; the caller must not wait forever."""
    await background.close(1)
    work = Work()
    with pytest.raises(Interrupted):
        await asyncio.wait_for(flight.run("k", work), 1)
    assert work.runs == 0
    assert repr(flight) == EMPTY


async def test_a_caller_in_a_hurry_leaves_by_its_own_deadline(flight: SingleFlight) -> None:
    """A deadline is a cancellation: the others' is not touched."""
    work = Held()
    patient = asyncio.create_task(flight.run("k", work))
    await work.started.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(flight.run("k", work), 0)
    work.go.set()
    assert await patient == 1
