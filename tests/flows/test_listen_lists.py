"""A client that listens hears of every change of a list, and finds the list new when it asks (B04)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.protocol.call import Change, UpstreamName
from tests.support.listening import (
    EVERY_LIST,
    PROMPTS,
    PROMPTS_CHANGED,
    RESOURCES_CHANGED,
    SUBSCRIPTION,
    TOOLS,
    TOOLS_CHANGED,
    listening,
    told,
)
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, error, tool

ALPHA = UpstreamName("alpha")


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("a")], prompts=[{"name": "p"}]) as upstream:
        yield upstream


@pytest.fixture
async def gateway(alpha: ScriptedUpstream) -> AsyncIterator[Running]:
    async with running({"alpha": alpha}) as gateway:
        yield gateway


async def test_a_change_is_told_and_the_list_is_new(alpha: ScriptedUpstream, gateway: Running) -> None:
    """B04 a: dropped from the cache first, told then (L-17)."""
    async with listening(gateway, TOOLS, id="listen-1") as stream:
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        alpha.tools = [tool("b")]
        await alpha.notify(TOOLS_CHANGED)
        assert await told(stream) == (TOOLS_CHANGED, None)
        assert (await gateway.ask("tools/list")).names == ["alpha__b"]


async def test_an_upstream_is_followed_for_the_cache_alone(alpha: ScriptedUpstream, gateway: Running) -> None:
    """Nobody listens, and what is cached goes all the same."""
    assert await alpha.listening() == [EVERY_LIST]
    assert (await gateway.ask("tools/list")).names == ["alpha__a"]
    alpha.tools = [tool("b")]
    await alpha.notify(TOOLS_CHANGED)
    await gateway.until_counted('cache_invalidations_total{cause="list_changed",upstream="alpha"}', 1)
    assert (await gateway.ask("tools/list")).names == ["alpha__b"]


@pytest.mark.parametrize("id", [0, 7, "seven", "7"])
async def test_every_message_carries_the_id_of_its_request(
    alpha: ScriptedUpstream, gateway: Running, id: int | str
) -> None:
    """L-05, with its JSON type, the end included (L-10)."""
    async with listening(gateway, TOOLS, id=id) as stream:
        await alpha.notify(TOOLS_CHANGED)
        assert (await stream.event())["params"]["_meta"] == {SUBSCRIPTION: id}
        gateway.runtime.stopping.set()
        ended = await stream.event()
        assert ended["id"] == id
        assert ended["result"]["resultType"] == "complete"
        assert ended["result"]["_meta"][SUBSCRIPTION] == id


async def test_nothing_is_told_that_was_not_asked_for(alpha: ScriptedUpstream, gateway: Running) -> None:
    """L-06: another list's change goes by."""
    async with listening(gateway, PROMPTS) as stream:
        await alpha.notify(TOOLS_CHANGED)
        await alpha.notify(PROMPTS_CHANGED)
        assert await told(stream) == (PROMPTS_CHANGED, None)


async def test_the_listens_of_one_client_are_independent(alpha: ScriptedUpstream, gateway: Running) -> None:
    """L-09: each hears its own, and the end of one is no end of the other."""
    async with listening(gateway, TOOLS, id=1) as one, listening(gateway, PROMPTS, id=2) as two:
        await alpha.notify(TOOLS_CHANGED)
        assert (await one.event())["params"]["_meta"] == {SUBSCRIPTION: 1}
        one.leave()
        await gateway.subscribed(1)
        await alpha.notify(PROMPTS_CHANGED)
        assert (await two.event())["params"]["_meta"] == {SUBSCRIPTION: 2}


async def test_too_many_listens_are_refused_before_the_acknowledgement(alpha: ScriptedUpstream) -> None:
    """L-09: the setting is about one caller."""
    limits = {"streams_per_caller": 1}
    async with running({"alpha": alpha}, limits=limits) as gateway, listening(gateway, TOOLS, token="A"):
        refused = await gateway.ask("subscriptions/listen", {"notifications": TOOLS}, token="A")
        assert refused.code == -32603
        async with listening(gateway, TOOLS, token="B"):
            pass


async def test_callers_without_a_token_share_a_limit_of_their_own(alpha: ScriptedUpstream) -> None:
    """L-09: all of them look like one caller."""
    limits = {"streams_per_caller": 1, "anonymous_streams": 2}
    async with (
        running({"alpha": alpha}, limits=limits) as gateway,
        listening(gateway, TOOLS),
        listening(gateway, TOOLS),
        listening(gateway, TOOLS, token="A"),
    ):
        refused = await gateway.ask("subscriptions/listen", {"notifications": TOOLS})
        assert refused.code == -32603
        assert "limits.anonymous_streams" in refused.error["message"]


async def test_an_empty_wish_is_acknowledged_and_kept_open(alpha: ScriptedUpstream, gateway: Running) -> None:
    """L-08."""
    async with listening(gateway, {}) as stream:
        await alpha.notify(TOOLS_CHANGED)
        gateway.runtime.stopping.set()
        assert "result" in await stream.event()


async def test_only_lists_that_somebody_has_are_promised(alpha: ScriptedUpstream) -> None:
    """L-04, L-07: and those of an upstream that does not tell of its changes, too."""
    alpha.capabilities = {"tools": {}}
    async with running({"alpha": alpha}) as gateway, listening(gateway, EVERY_LIST, TOOLS):
        discovered = (await gateway.ask("server/discover")).result["capabilities"]
        assert discovered == {"tools": {"listChanged": True}}


async def test_a_listen_begins_whatever_state_the_upstreams_are_in() -> None:
    """Clients open it while they connect, and give up on an error."""
    settings = {"alpha": "http://127.0.0.1:9/mcp"}
    async with running(settings) as gateway, listening(gateway, EVERY_LIST):
        pass


async def test_an_upstream_that_serves_no_listens_is_not_asked_again_soon(alpha: ScriptedUpstream) -> None:
    """-32601: its lists age by their ttl; clients listen to the gateway all the same."""
    alpha.on("subscriptions/listen", error(-32601, "Method not found", http=404))
    waits = {"longest_retry": 1000.0}
    async with (
        running({"alpha": alpha}, admin="127.0.0.1:0", subscriptions=waits) as gateway,
        listening(gateway, TOOLS),
    ):
        assert await followed(gateway) == "unsupported"
        for _ in range(3):
            await gateway.ask("tools/list")
        assert len(alpha.seen("subscriptions/listen")) == 1


async def test_an_upstream_that_tells_of_nothing_is_not_listened_to(alpha: ScriptedUpstream) -> None:
    """There is nothing to ask it for."""
    alpha.capabilities = {"tools": {}, "prompts": {"listChanged": False}}
    async with running({"alpha": alpha}, admin="127.0.0.1:0") as gateway:
        assert await followed(gateway) == "idle"
        assert alpha.seen("subscriptions/listen") == []


async def test_the_status_says_whether_an_upstream_is_followed(alpha: ScriptedUpstream) -> None:
    """As long as its stream is open."""
    async with running({"alpha": alpha}, admin="127.0.0.1:0") as gateway:
        assert await followed(gateway) == "following"


@pytest.mark.parametrize(("capability", "name"), [("tools", TOOLS_CHANGED), ("resources", RESOURCES_CHANGED)])
async def test_only_what_is_declared_is_asked_for(
    alpha: ScriptedUpstream, capability: str, name: str
) -> None:
    """L-14, L-16: an upstream is not asked to tell what it says it does not."""
    alpha.capabilities = {capability: {"listChanged": True}, "prompts": {}}
    async with running({"alpha": alpha}):
        assert await alpha.listening() == [{f"{capability}ListChanged": True}]


async def test_a_change_said_on_the_stream_of_a_call_is_told(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """And whatever else reaches the gateway of changes: an operator's purge, for one."""
    async with listening(gateway, TOOLS) as stream:
        await gateway.runtime.pool.on_change(Change(ALPHA, "tools/list"))  # type: ignore[misc]
        assert await told(stream) == (TOOLS_CHANGED, None)
        await gateway.runtime.hub.changed(Change(ALPHA, cause="purge"))
        assert await told(stream) == (TOOLS_CHANGED, None)


async def test_each_endpoint_hears_of_its_own_upstreams(alpha: ScriptedUpstream) -> None:
    """L-19: of no others."""
    endpoints: Any = {"/mcp": {}, "/mcp/beta": {"upstreams": ["beta"]}}
    async with (
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}, endpoints=endpoints) as gateway,
        listening(gateway, TOOLS) as all_of_them,
        listening(gateway, TOOLS, path="/mcp/beta") as only_beta,
    ):
        await alpha.notify(TOOLS_CHANGED)
        assert await told(all_of_them) == (TOOLS_CHANGED, None)
        await beta.notify(TOOLS_CHANGED)
        assert await told(only_beta) == (TOOLS_CHANGED, None)
        assert await told(all_of_them) == (TOOLS_CHANGED, None)
        assert await gateway.counted('notices_total{fate="delivered"}') == 3


async def followed(gateway: Running) -> str:
    _, status = await gateway.admin("/status.json")
    return str(status["upstreams"]["alpha"]["followed"])
