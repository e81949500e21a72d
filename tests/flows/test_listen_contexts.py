"""Where an upstream sees its callers' own credentials, each has a stream of its own there (L-11, L-13)."""

import time
from collections.abc import AsyncIterator

import pytest

from gateway.protocol.call import Call, Notice, Principal, RequestMeta
from tests.support.listening import TOOLS, TOOLS_CHANGED, UPDATED, listening, told, uris
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, status, tool


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    resources = [{"uri": "a:1", "name": "one"}]
    async with ScriptedUpstream(tools=[tool("a")], resources=resources, scope="private") as upstream:
        yield upstream


@pytest.fixture
async def gateway(alpha: ScriptedUpstream) -> AsyncIterator[Running]:
    async with running({"alpha": {"url": alpha.url, "auth": "forward"}}) as gateway:
        yield gateway


async def test_each_caller_hears_what_the_upstream_says_to_it(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-13: with its own credential there, and nothing of another's."""
    async with (
        listening(gateway, uris("alpha+a:1"), token="ANN") as ann,
        listening(gateway, uris("alpha+a:1"), token="BOB") as bob,
    ):
        streams = {
            one.exchange.received.header("authorization"): one
            for one in alpha.listens
            if "resourceSubscriptions" in one.wanted
        }
        assert set(streams) == {"Bearer ANN", "Bearer BOB"}
        await streams["Bearer ANN"].notify(UPDATED, uri="a:1")
        assert await told(ann) == (UPDATED, "alpha+a:1")
        await streams["Bearer BOB"].notify(UPDATED, uri="a:1")
        assert await told(bob) == (UPDATED, "alpha+a:1")
        assert await gateway.counted('notices_total{fate="delivered"}') == 2


async def test_two_streams_of_one_caller_share_one_upstream_stream(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-13: one is enough."""
    async with listening(gateway, TOOLS, token="ANN") as one:
        await alpha.listening()
        async with listening(gateway, TOOLS, token="ANN", id=2) as two:
            (stream,) = alpha.listens
            await stream.notify(TOOLS_CHANGED)
            assert await told(one) == await told(two) == (TOOLS_CHANGED, None)


async def test_nobody_is_followed_without_a_credential(alpha: ScriptedUpstream, gateway: Running) -> None:
    """There is none to follow such an upstream with while nobody listens."""
    assert alpha.seen("subscriptions/listen") == []
    async with listening(gateway, TOOLS, token="ANN"):
        await alpha.listening()
    await alpha.unlistened()
    assert await gateway.counted("subscriptions ") == 0


async def test_a_stream_ends_when_its_credential_is_refused(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """L-11: it was taken before, so it was revoked; the other caller's goes on."""
    async with (
        listening(gateway, TOOLS, token="ANN") as ann,
        listening(gateway, TOOLS, token="BOB") as bob,
    ):
        await alpha.listening(2)
        (mine,) = (
            one for one in alpha.listens if one.exchange.received.header("authorization") == "Bearer ANN"
        )
        (others,) = (one for one in alpha.listens if one is not mine)
        alpha.on("subscriptions/listen", status(401))
        mine.cut()
        assert (await ann.event())["result"]["resultType"] == "complete"
        await others.notify(TOOLS_CHANGED)
        assert await told(bob) == (TOOLS_CHANGED, None)
        await gateway.until_counted('subscriptions_ended_total{cause="refused"}', 1)


async def test_a_caller_whom_one_upstream_never_took_hears_of_the_others(alpha: ScriptedUpstream) -> None:
    """A refusal from the start costs that upstream's share only."""
    async with (
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": {"url": alpha.url, "auth": "forward"}, "beta": beta}) as gateway,
    ):
        alpha.on("subscriptions/listen", status(401))
        wanted = {**TOOLS, **uris("alpha+a:1")}
        async with listening(gateway, wanted, TOOLS, token="ANN") as stream:
            await beta.notify(TOOLS_CHANGED)
            assert await told(stream) == (TOOLS_CHANGED, None)


async def test_a_stream_ends_with_the_token_that_opened_it(gateway: Running) -> None:
    """L-11: gracefully, at the moment it expires."""
    said: list[str] = []

    class Client:
        async def emit(self, notice: Notice) -> None:
            said.append(notice.method)

        def tell(self, before: bytes, id: bytes, behind: bytes) -> bool:
            raise AssertionError("nothing happens that it could be told of")

        async def writable(self) -> None:
            raise AssertionError("it is never slow")

    principal = Principal(expires=time.time() + 0.05)
    call = Call(b"1", "subscriptions/listen", {"notifications": b"{}"}, RequestMeta("2026-07-28"))
    answer = await gateway.runtime.pipelines["/mcp"].listen(call, principal, Client())
    assert said == ["notifications/subscriptions/acknowledged"]
    assert b'"resultType":"complete"' in b"".join(map(bytes, answer.result))
    assert await gateway.counted('subscriptions_ended_total{cause="expired"}') == 1
