"""A parked call is gone on with once, by whom it belongs to, and dropped when nobody comes (M-19, M-20)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from gateway.protocol.call import Context, Emit, Notice, Reply
from gateway.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, Json, McpError
from gateway.support.mailbox import LocalMailbox
from gateway.support.tasks import Background
from gateway.upstream.parked import Parked

ME = Context(caller="me")


class Call:
    """An upstream's call that waits."""

    def __init__(self) -> None:
        self.answers: list[Mapping[str, Json]] = []
        self.reports: list[tuple[str, dict[str, Json]]] = []
        self.withdrawn: dict[str, Callable[[], None]] = {}
        self.asked = asyncio.Event()
        self.dropped = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def go_on(self, answers: Mapping[str, Json], emit: Emit | None) -> Reply:
        self.answers.append(answers)
        self.asked.set()
        await self.go.wait()
        if emit is not None:
            await emit(Notice("notifications/progress", {"progress": b"1"}))
        return Reply(b'{"content":[]}')

    def report(self, key: str, params: Mapping[str, Json]) -> None:
        self.reports.append((key, dict(params)))

    def on_withdrawn(self, key: str, tell: Callable[[], None]) -> None:
        self.withdrawn[key] = tell

    async def drop(self) -> None:
        self.dropped.set()


@asynccontextmanager
async def parked(
    most: int = 10, each: int = 10, wait: float = 60.0, anonymous_wait: float = 60.0
) -> AsyncIterator[Parked]:
    background = Background()
    calls = Parked(LocalMailbox(), background, most=most, each=each, wait=wait, anonymous_wait=anonymous_wait)
    yield calls
    await calls.close()
    await background.close(1)


async def test_a_retry_goes_on_with_the_call_once() -> None:
    heard = []

    async def emit(notice: Notice) -> None:
        heard.append(notice.method)

    async with parked() as calls:
        call = Call()
        state = calls.park(call, ME)
        reply = await calls.resume(state, ME, {"a": b"{}"}, emit)
        assert reply.result == b'{"content":[]}'
        assert heard == ["notifications/progress"]
        with pytest.raises(McpError) as refused:
            await calls.resume(state, ME, {"a": b"{}"})
        assert refused.value.code == INVALID_PARAMS
        assert call.answers == [{"a": b"{}"}]
    assert not call.dropped.is_set()


async def test_of_two_retries_at_once_one_reaches_the_upstream() -> None:
    async with parked() as calls:
        call = Call()
        state = calls.park(call, ME)
        both = await asyncio.gather(
            calls.resume(state, ME, {"a": b"1"}), calls.resume(state, ME, {"a": b"2"}), return_exceptions=True
        )
        assert [type(one) for one in both] == [Reply, McpError]
        assert call.answers == [{"a": b"1"}]


async def test_anothers_call_is_as_good_as_none_and_stays_where_it_is() -> None:
    async with parked() as calls:
        call = Call()
        state = calls.park(call, ME)
        for other in (Context(), Context(caller="me", session="other"), Context(alone=True)):
            with pytest.raises(McpError) as refused:
                await calls.resume(state, other, {})
            assert refused.value.code == INVALID_PARAMS
        await calls.resume(state, ME, {})


@pytest.mark.parametrize("state", ["", ".", "nobody", "nobody.nothing", "\x00.é"])
async def test_a_state_of_nobody_is_refused(state: str) -> None:
    async with parked() as calls:
        with pytest.raises(McpError) as refused:
            await calls.resume(state, ME, {})
        assert refused.value.code == INVALID_PARAMS


@pytest.mark.parametrize(
    ("context", "wait", "anonymous_wait"),
    [(ME, 0.01, 60), (Context(), 60, 0.01), (Context(alone=True), 0.01, 60)],
)
async def test_a_call_nobody_answers_is_dropped(context: Context, wait: float, anonymous_wait: float) -> None:
    async with parked(wait=wait, anonymous_wait=anonymous_wait) as calls:
        call = Call()
        state = calls.park(call, context)
        await call.dropped.wait()
        with pytest.raises(McpError) as late:
            await calls.resume(state, context, {})
        assert late.value.code == INVALID_PARAMS
        assert call.answers == []


async def test_a_caller_has_a_share_of_the_room() -> None:
    """What it has too much is dropped and says why; the others find room, and so does it once one is over."""
    async with parked(most=10, each=2) as calls:
        states = [calls.park(Call(), ME) for _ in range(2)]
        third = Call()
        with pytest.raises(McpError, match=r"of your calls.*questions_per_caller"):
            calls.park(third, ME)
        await third.dropped.wait()
        with pytest.raises(McpError, match="of your calls"):  # another session of the same caller
            calls.park(Call(), Context(caller="me", session="other"))
        calls.park(Call(), Context(caller="you"))
        calls.park(Call(), Context())
        await calls.resume(states[0], ME, {})
        calls.park(Call(), ME)


async def test_who_finds_no_room_is_told_and_its_call_dropped() -> None:
    async with parked(most=1) as calls:
        first, second = Call(), Call()
        state = calls.park(first, ME)
        with pytest.raises(McpError, match="too many") as refused:
            calls.park(second, ME)
        assert refused.value.code == INTERNAL_ERROR
        await second.dropped.wait()
        await calls.resume(state, ME, {})
        calls.park(Call(), ME)


async def test_a_retry_that_is_cancelled_cancels_the_call() -> None:
    async with parked() as calls:
        call = Call()
        call.go.clear()
        retry = asyncio.create_task(calls.resume(calls.park(call, ME), ME, {}))
        await call.asked.wait()
        retry.cancel()
        with pytest.raises(asyncio.CancelledError):
            await retry
        assert len(calls) == 0


async def test_stopping_drops_what_waits_and_takes_nothing_more() -> None:
    async with parked() as calls:
        first, late = Call(), Call()
        calls.park(first, ME)
        await calls.close()
        assert first.dropped.is_set()
        with pytest.raises(McpError, match="stopping"):
            calls.park(late, ME)
        await late.dropped.wait()


async def test_a_call_that_is_given_up_is_dropped_by_whom_it_belongs_to() -> None:
    async with parked() as calls:
        call = Call()
        state = calls.park(call, ME)
        await calls.give_up(state, Context(caller="another"))
        assert len(calls) == 1
        await calls.give_up(state, ME)
        await call.dropped.wait()
        assert len(calls) == 0
        await calls.give_up(state, ME)


async def test_progress_of_an_answer_reaches_the_call_that_waits_for_it() -> None:
    """For as long as it waits, from whom it belongs to."""
    async with parked() as calls:
        call = Call()
        state = calls.park(call, ME)
        calls.report(state, ME, "a", {"progress": b"1"})
        calls.report(state, Context(caller="another"), "a", {"progress": b"2"})
        calls.report("nobody.nothing", ME, "a", {"progress": b"2"})
        await calls.resume(state, ME, {})
        calls.report(state, ME, "a", {"progress": b"3"})
        assert call.reports == [("a", {"progress": b"1"})]


async def test_words_that_nobody_waits_for_are_bounded() -> None:
    """What is too much is dropped; there is room again once the others were said."""
    told: list[tuple[str, str]] = []
    heard = asyncio.Event()

    async def completed(session: str, key: str) -> None:
        await heard.wait()
        told.append((session, key))

    async with parked() as calls:
        assert not calls.completed("session", "q")  # nobody listens
        calls.on_completed = completed
        said = [calls.completed("session", f"q{number}") for number in range(101)]
        assert said == [True] * 100 + [False]
        heard.set()
        while len(told) < 100:  # noqa: ASYNC110  # each is told in a task of its own
            await asyncio.sleep(0)
        assert set(told) == {("session", f"q{number}") for number in range(100)}
        while not calls.completed("session", "q"):  # noqa: ASYNC110  # as above
            await asyncio.sleep(0)
