"""What an upstream refuses costs only who asked for it: the others hear, and nobody is promised it (L-28)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.listening import TOOLS, TOOLS_CHANGED, UPDATED, listening, told, uris
from tests.support.running import Exchange, Running, running
from tests.support.scripted import Behaviour, ScriptedUpstream, error, hang, listen, result, status, tool
from tests.support.scripted import Exchange as Asked

BAD, GOOD = "a:bad", "a:good"
REFUSALS = [
    error(-32602, "Unknown resource", http=400),
    error(-32603, "boom"),
    status(413),
    status(500, b"oops", "text/plain"),
]
IDS = ["-32602", "-32603", "413", "500"]


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    resources = [{"uri": uri, "name": uri} for uri in (BAD, GOOD)]
    async with ScriptedUpstream(tools=[tool("a")], resources=resources) as upstream:
        yield upstream


@pytest.fixture
async def gateway(alpha: ScriptedUpstream) -> AsyncIterator[Running]:
    async with running({"alpha": alpha}) as gateway:
        yield gateway


def choking(refusal: Behaviour) -> Behaviour:
    """Refuse every listen that names the bad resource."""

    async def behave(exchange: Asked) -> None:
        await (refusal if BAD in named(exchange.received.params) else listen())(exchange)

    return behave


def named(params: dict[str, Any]) -> list[str]:
    named: list[str] = params["notifications"].get("resourceSubscriptions", [])
    return named


async def listened(alpha: ScriptedUpstream, so: Callable[[list[str]], bool]) -> None:
    """Wait until the one stream of an upstream is such."""
    while [so(named({"notifications": one.wanted})) for one in alpha.listens] != [True]:  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def ended(stream: Exchange) -> bool:
    """Whether a stream ends with a result; what it is told before that is let pass."""
    message = await stream.event()
    while "method" in message:
        message = await stream.event()
    return bool(message["result"]["resultType"] == "complete")


@pytest.mark.parametrize("refusal", REFUSALS, ids=IDS)
async def test_who_asks_for_what_is_refused_deafens_nobody(
    alpha: ScriptedUpstream, gateway: Running, refusal: Behaviour
) -> None:
    """However it is refused, and also when the stream is lost meanwhile: what was taken before is first."""
    alpha.on("subscriptions/listen", choking(refusal))
    async with listening(gateway, {**TOOLS, **uris("alpha+a:good")}, token="BOB") as bob:
        async with listening(gateway, uris("alpha+a:bad"), {}, token="EVE"):
            await listened(alpha, lambda uris: uris == [GOOD])
            alpha.listens[0].cut()
            assert await told(bob) == (UPDATED, "alpha+a:good")
        await listened(alpha, lambda uris: uris == [GOOD])
        alpha.tools = [tool("b")]
        await alpha.notify(TOOLS_CHANGED)
        while await told(bob) != (TOOLS_CHANGED, None):
            pass


@pytest.mark.parametrize("refusal", REFUSALS, ids=IDS)
async def test_of_a_wish_that_is_refused_the_good_part_is_granted(
    alpha: ScriptedUpstream, gateway: Running, refusal: Behaviour
) -> None:
    """It is searched for by halves."""
    alpha.on("subscriptions/listen", choking(refusal))
    good = [f"alpha+a:{number}" for number in range(20)]
    async with listening(gateway, uris(*good, "alpha+a:bad"), uris(*sorted(good))) as stream:
        await alpha.notify(UPDATED, uri="a:7")
        assert await told(stream) == (UPDATED, "alpha+a:7")


async def test_after_a_restart_only_who_lost_something_is_let_go(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-28: refused for one name, the stream is opened without, and whoever was promised it listens again."""
    async with (
        listening(gateway, uris("alpha+a:bad"), token="ANN") as ann,
        listening(gateway, uris("alpha+a:good"), token="BOB") as bob,
    ):
        alpha.on("subscriptions/listen", choking(REFUSALS[0]))
        while not any(set(named({"notifications": one.wanted})) == {BAD, GOOD} for one in alpha.listens):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.002)
        for one in list(alpha.listens):
            one.cut()
        assert await ended(ann)
        await listened(alpha, lambda uris: uris == [GOOD])
        assert await told(bob) == (UPDATED, "alpha+a:good")
        async with listening(gateway, uris("alpha+a:bad"), {}, token="ANN"):
            pass
        await gateway.until_counted('subscriptions_ended_total{cause="withdrawn"}', 1)
        assert await gateway.counted('subscriptions_ended_total{cause="withdrawn"}') == 1


async def test_a_promise_that_a_reopened_stream_does_not_keep_is_taken_back(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-28: the stream ends, and the next acknowledgement says what is true."""
    wanted = {**TOOLS, **uris("alpha+a:good")}
    async with listening(gateway, wanted) as stream, listening(gateway, TOOLS, id=2) as lists:
        alpha.on("subscriptions/listen", listen({"toolsListChanged": True}))
        alpha.listens[-1].cut()
        assert await ended(stream)
        async with listening(gateway, wanted, TOOLS, id=3):
            await alpha.notify(TOOLS_CHANGED)
            assert await told(lists) == (TOOLS_CHANGED, None)


async def test_a_promise_that_a_wider_stream_does_not_keep_is_taken_back(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-28: when the filter grows, too."""
    async with listening(gateway, uris("alpha+a:bad"), token="ANN") as ann:
        alpha.on("subscriptions/listen", listen({"resourceSubscriptions": [GOOD]}))
        async with listening(gateway, uris("alpha+a:good"), token="BOB"):
            assert await ended(ann)


@pytest.mark.parametrize("no", [error(-32601, "nope", http=404), result({})], ids=["-32601", "result"])
async def test_an_upstream_that_served_no_listen_once_is_asked_again(
    alpha: ScriptedUpstream, gateway: Running, no: Behaviour
) -> None:
    """L-28: while it declares that it tells of changes; what was promised of it is taken back."""
    wanted = {**TOOLS, **uris("alpha+a:good")}
    async with listening(gateway, wanted) as stream, listening(gateway, TOOLS, id=2) as lists:
        alpha.once("subscriptions/listen", no)
        alpha.listens[-1].cut()
        assert await ended(stream)
        await alpha.listening()
        await alpha.notify(TOOLS_CHANGED)
        assert await told(lists) == (TOOLS_CHANGED, None)


async def test_a_stream_that_dies_is_not_left_for_one_that_hangs(alpha: ScriptedUpstream) -> None:
    """L-15: while the new one is being opened, the old one is watched."""
    async with (
        running({"alpha": alpha}, subscriptions={"acknowledge": 0.2}) as gateway,
        listening(gateway, TOOLS) as stream,
    ):
        await gateway.ask("tools/list")
        alpha.once("subscriptions/listen", hang())
        async with listening(gateway, uris("alpha+a:good"), {}, token="BOB"):
            alpha.tools = [tool("b")]
            alpha.listens[0].cut()
            assert await told(stream) == (TOOLS_CHANGED, None)


@pytest.mark.parametrize("no", [REFUSALS[-1], hang()], ids=["500", "hangs"])
async def test_nobody_waits_for_what_only_somebody_wanted_who_left(
    alpha: ScriptedUpstream, no: Behaviour
) -> None:
    """L-28: the pause after a refusal is over when all that was refused is not wanted any more."""
    alpha.on("subscriptions/listen", choking(no))
    upstream = {"url": alpha.url, "auth": "forward", "timeout": 0.5}
    waits = {"retry": 1000.0, "longest_retry": 1000.0, "acknowledge": 1000.0}
    async with running({"alpha": upstream}, subscriptions=waits) as gateway, AsyncExitStack() as bad:
        wanted = {"notifications": uris("alpha+a:bad")}
        await bad.enter_async_context(gateway.open("subscriptions/listen", wanted, token="ANN"))
        await alpha.arrived("subscriptions/listen")
        async with listening(gateway, TOOLS, token="ANN", id=2) as stream:
            await bad.aclose()
            await alpha.listening()
            await alpha.notify(TOOLS_CHANGED)
            assert await told(stream) == (TOOLS_CHANGED, None)


@pytest.mark.parametrize("no", [REFUSALS[-1], hang()], ids=["500", "hangs"])
async def test_one_name_of_several_costs_the_others_a_while(alpha: ScriptedUpstream, no: Behaviour) -> None:
    """L-28: where no list is wanted, too, and nothing tells an upstream that is ill from a refusal."""
    alpha.on("subscriptions/listen", choking(no))
    upstream = {"url": alpha.url, "auth": "forward", "timeout": 0.2}
    wanted, granted = uris("alpha+a:bad", "alpha+a:good"), uris("alpha+a:good")
    async with (
        running({"alpha": upstream}, subscriptions={"acknowledge": 30.0}) as gateway,
        listening(gateway, wanted, granted, token="ANN") as stream,
    ):
        await alpha.notify(UPDATED, uri=GOOD)
        assert await told(stream) == (UPDATED, "alpha+a:good")


@pytest.mark.parametrize("code", [401, 403])
async def test_a_caller_refused_once_is_heard_of_later(alpha: ScriptedUpstream, code: int) -> None:
    """L-11: a first refusal is no last word."""
    alpha.once("subscriptions/listen", status(code))
    async with (
        running({"alpha": {"url": alpha.url, "auth": "forward"}}) as gateway,
        listening(gateway, TOOLS, token="ANN") as stream,
    ):
        await alpha.listening()
        await alpha.notify(TOOLS_CHANGED)
        assert await told(stream) == (TOOLS_CHANGED, None)


async def test_a_caller_that_listens_again_and_again_costs_a_refusing_upstream_nothing(
    alpha: ScriptedUpstream,
) -> None:
    """L-28: the pause is the context's, and outlasts its streams."""
    waits = {"retry": 1000.0, "longest_retry": 1000.0}
    async with running({"alpha": {"url": alpha.url, "auth": "forward"}}, subscriptions=waits) as gateway:
        alpha.on("subscriptions/listen", status(401))
        for id in range(1, 20):
            async with listening(gateway, {**TOOLS, **uris("alpha+a:good")}, TOOLS, token="ANN", id=id):
                pass
            await gateway.subscribed(0)
        assert len(alpha.seen("subscriptions/listen")) == 1


async def test_an_upstream_writes_no_log_of_ours(
    alpha: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    """Its text is an excerpt on one line, without the caller's token, and said once."""
    text = "no TOPSECRET\n2026 ERROR fake \x1b[31m" + "y" * 100_000
    alpha.on("subscriptions/listen", error(-32603, text))
    async with (
        running({"alpha": {"url": alpha.url, "auth": "forward"}}) as gateway,
        listening(gateway, TOOLS, token="TOPSECRET"),
    ):
        while len(alpha.seen("subscriptions/listen")) < 4:
            await alpha.arrived("subscriptions/listen")
    (said,) = [one.getMessage() for one in caplog.records if "refuses to be listened to" in one.getMessage()]
    assert "error -32603: no " in said
    assert said.isprintable()
    assert len(said) < 300
    assert "TOPSECRET" not in said


async def test_more_names_than_an_upstream_could_take_are_refused(alpha: ScriptedUpstream) -> None:
    """L-01: they would be sent to it in one message with those of all others."""
    async with running({"alpha": alpha}, subscriptions={"uri_bytes": 100}) as gateway:
        async with listening(gateway, uris("alpha+a:" + "x" * 92)):
            pass
        refused = await gateway.ask("subscriptions/listen", {"notifications": uris("alpha+a:" + "x" * 93)})
        assert refused.code == -32602
