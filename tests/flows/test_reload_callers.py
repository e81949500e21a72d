"""What a reload means for callers: who would not be let in again, older clients, own credentials."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from hashlib import sha256
from typing import Any

import pytest

from gateway.config import Authentication
from gateway.core.standing import counts
from gateway.protocol.call import Principal
from tests.support.authorization_server import AuthorizationServer
from tests.support.legacy_client import LegacyClient
from tests.support.legacy_upstream import LegacyServer
from tests.support.listening import ACKNOWLEDGED, TOOLS, TOOLS_CHANGED, listening, told, uris
from tests.support.redis import redis_server
from tests.support.running import Running, message, running
from tests.support.scripted import ScriptedUpstream, default, hang, tool

ANN, BOB = "mcpgw_ann-0123456789abcdef", "mcpgw_bob-0123456789abcdef"


def keys(**held: str) -> Mapping[str, Any]:
    """Return who has which key."""
    return {name: {"hash": f"sha256:{sha256(key.encode()).hexdigest()}"} for name, key in held.items()}


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    resources = [{"uri": "a:1", "name": "one"}]
    async with ScriptedUpstream(tools=[tool("a")], resources=resources) as upstream:
        yield upstream


@pytest.fixture
async def beta() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("b")]) as upstream:
        yield upstream


async def test_the_streams_of_those_end_whose_key_is_gone(alpha: ScriptedUpstream) -> None:
    """In either era, and they are not let in again; those of others stay (L-11)."""
    both: dict[str, Any] = {"authentication": {"keys": keys(ann=ANN, bob=BOB)}}
    async with running({"alpha": alpha}, **both) as gateway:
        url = gateway.addresses.endpoints[0]
        async with (
            listening(gateway, TOOLS, token=ANN, id="ann") as ann,
            listening(gateway, TOOLS, token=BOB) as bob,
            LegacyClient(url, token=ANN) as older,
            older.listen() as hers,
        ):
            await gateway.subscribed(3)
            await gateway.reload({"alpha": alpha}, authentication={"keys": keys(bob=BOB)})
            assert (await ann.event())["id"] == "ann"
            assert await hers.next() is None
            assert (await gateway.ask("tools/list", token=ANN, judged=False)).status == 401
            await alpha.notify(TOOLS_CHANGED)
            assert await told(bob) == (TOOLS_CHANGED, None)
            assert (await gateway.ask("tools/list", token=BOB)).names == ["alpha__a"]


async def test_who_is_still_speaking_is_judged_by_what_counts_when_he_has_spoken(
    alpha: ScriptedUpstream,
) -> None:
    """He was let in with the head of his request; who still has his key gets what he asks for."""
    both: dict[str, Any] = {"authentication": {"keys": keys(ann=ANN, bob=BOB)}}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("subscriptions/listen", {"notifications": TOOLS}),
        ("tools/call", {"name": "alpha__a"}),
    ]
    async with running({"alpha": alpha}, **both) as gateway, AsyncExitStack() as stack:
        open_ones = {}
        for method, params in calls:
            asked = message(method, params)
            half: dict[str, Any] = {"body": asked[:20], "headers": {"content-length": str(len(asked))}}
            for key in (ANN, BOB):
                opened = gateway.open(method, params, token=key, **half)
                open_ones[method, key] = await stack.enter_async_context(opened), asked[20:]
        await gateway.busy(4)
        await gateway.reload({"alpha": alpha}, authentication={"keys": keys(bob=BOB)}, endpoints={"/mcp": {}})
        for one, rest in open_ones.values():
            one.send(rest)
        for method, _ in calls:
            one, _ = open_ones[method, ANN]
            assert (await one.begun()).status == 401
        assert not (await open_ones["tools/call", BOB][0].answer()).result.get("isError")
        assert (await open_ones["subscriptions/listen", BOB][0].event())["method"] == ACKNOWLEDGED
        await gateway.subscribed(1)
        assert len(alpha.seen("tools/call")) == 1


async def test_who_is_still_being_served_when_his_endpoint_goes_is_told_so(alpha: ScriptedUpstream) -> None:
    """As everybody is who comes later."""
    both: dict[str, Any] = {"endpoints": {"/mcp": {}, "/old": {}}}
    asked = message("tools/list")
    half: dict[str, Any] = {"body": asked[:20], "headers": {"content-length": str(len(asked))}}
    async with (
        running({"alpha": alpha}, **both) as gateway,
        gateway.open("tools/list", path="/old", judged=False, **half) as exchange,
    ):
        await gateway.busy(1)
        await gateway.reload({"alpha": alpha}, endpoints={"/mcp": {}})
        exchange.send(asked[20:])
        assert (await exchange.begun()).status == 404


async def test_no_stream_begins_for_whose_key_goes_while_it_is_made(
    alpha: ScriptedUpstream, beta: ScriptedUpstream
) -> None:
    """It is being found out meanwhile whose the resource is that he wants to hear of."""
    both: dict[str, Any] = {"authentication": {"keys": keys(ann=ANN, bob=BOB)}}
    upstreams = {"alpha": alpha, "beta": {"url": beta.url, "prefix": ""}}
    beta.resources, go = alpha.resources, asyncio.Event()
    alpha.once("resources/list", hang(go, default))
    wanted = {"notifications": uris("alpha+a:1")}
    async with (
        running(upstreams, **both) as gateway,
        gateway.open("subscriptions/listen", wanted, token=ANN) as exchange,
    ):
        await alpha.arrived("resources/list")
        await gateway.reload(upstreams, authentication={"keys": keys(bob=BOB)})
        go.set()
        assert "not accepted" in (await exchange.answer()).error["message"]
        assert len(gateway.runtime.hub) == 0


async def test_the_keys_of_an_issuer_that_is_the_same_need_not_be_fetched_again(
    alpha: ScriptedUpstream,
) -> None:
    """Nor does anybody whom its token proves lose a stream when others get a key."""
    async with AuthorizationServer() as corp:
        tokens = {"corp": {"issuer": corp.issuer, "audiences": ["https://gw"]}}
        token = corp.mint("alice", aud="https://gw")
        async with (
            running({"alpha": alpha}, authentication={"tokens": tokens}) as gateway,
            listening(gateway, TOOLS, token=token) as stream,
        ):
            asked = len(corp.asked)
            await gateway.reload(
                {"alpha": alpha}, authentication={"tokens": tokens, "keys": keys(ann=ANN), "anonymous": False}
            )
            assert (await gateway.ask("tools/list", token=token)).names == ["alpha__a"]
            assert (await gateway.ask("tools/list", token=ANN)).names == ["alpha__a"]
            assert len(corp.asked) == asked
            await alpha.notify(TOOLS_CHANGED)
            assert await told(stream) == (TOOLS_CHANGED, None)


TOKENS = {"corp": {"issuer": "https://corp.example"}, "other": {"issuer": "https://other.example"}}


@pytest.mark.parametrize(
    ("id", "after", "still"),
    [
        ("key:ann", {"keys": keys(ann=ANN)}, True),
        ("key:ann", {"keys": keys(ann=BOB)}, False),
        ("key:ann", {"keys": keys(ann=ANN), "remembered": 7}, True),
        ("key:ann", {"keys": keys(ann=ANN), "implies": {"a": ["b"]}}, False),
        ("key:ann", {"tokens": TOKENS}, False),
        ("corp:x", {"tokens": {"corp": TOKENS["corp"]}}, True),
        ("corp:x", {"tokens": {"corp": {**TOKENS["corp"], "audiences": ["z"]}}}, False),
        ("corp:x", {"tokens": {"other": TOKENS["other"]}}, False),
        ("cert:x", {"certificates": {"source": "header"}}, True),
        ("cert:x", {"certificates": {"source": "header", "names": ["y"]}}, False),
        ("", {"keys": keys(ann=ANN)}, False),
        ("", {}, True),
    ],
)
def test_who_would_be_let_in_again(id: str, after: dict[str, Any], still: bool) -> None:
    """Whoever is known in the same way by the same settings (Z-18)."""
    before = Authentication(
        **{"tokens": TOKENS, "keys": keys(ann=ANN), "certificates": {"source": "header"}} if id else {}
    )
    assert counts(Principal(id=id), before, Authentication(**after)) is still


async def test_a_session_of_an_older_client_goes_on(alpha: ScriptedUpstream, beta: ScriptedUpstream) -> None:
    """Its standing stream hears of what changed, and of resources of the upstream that is still there."""
    async with running({"alpha": alpha}) as gateway:
        url = gateway.addresses.endpoints[0]
        async with LegacyClient(url) as client, client.listen() as stream:
            await client.result("resources/subscribe", {"uri": "alpha+a:1"})
            listen = list(alpha.listens)
            await gateway.reload({"alpha": alpha, "beta": beta})
            kinds = set()
            while len(kinds) < 3:
                message = await stream.next()
                assert message is not None
                kinds.add(message["method"])
            assert [one["name"] for one in (await client.result("tools/list"))["tools"]] == [
                "alpha__a",
                "beta__b",
            ]
            assert alpha.listens == listen
            await alpha.notify("notifications/resources/updated", uri="a:1")
            updated = await stream.next()
            assert updated is not None
            assert updated["params"] == {"uri": "alpha+a:1"}


async def test_a_session_of_an_older_client_hears_no_more_of_what_is_gone(
    alpha: ScriptedUpstream, beta: ScriptedUpstream
) -> None:
    """Its stream stays, and asks for it again in vain; at an endpoint that is gone it ends."""
    paths: dict[str, Any] = {"endpoints": {"/mcp": {}, "/old": {"upstreams": ["beta"]}}}
    async with running({"alpha": alpha, "beta": beta}, **paths) as gateway:
        url, old = gateway.addresses.endpoints
        async with (
            LegacyClient(url) as client,
            client.listen() as stream,
            LegacyClient(old) as leaving,
            leaving.listen() as ending,
        ):
            await client.result("resources/subscribe", {"uri": "alpha+a:1"})
            await gateway.subscribed(2)
            await gateway.reload({"beta": beta}, endpoints={"/mcp": {}})
            assert await ending.next() is None
            assert [one["name"] for one in (await client.result("tools/list"))["tools"]] == ["beta__b"]
            heard: set[str] = set()
            while len(heard) < 3:
                message = await stream.next()
                assert message is not None
                heard.add(message["method"])
            await beta.notify(TOOLS_CHANGED)
            assert (await stream.next() or {})["method"] == TOOLS_CHANGED


async def test_a_session_at_an_older_upstream_goes_on(beta: ScriptedUpstream) -> None:
    """It is the same one after the upstream's neighbours have changed, and for a new one there is another."""
    async with LegacyServer(tools=[tool("old")]) as server, running({"old": server}) as gateway:
        await gateway.ask("tools/call", {"name": "old__old"}, token="ANN")
        initialized = server.initialized
        await gateway.reload({"old": server, "beta": beta})
        await gateway.until("beta", "up")
        await gateway.ask("tools/call", {"name": "old__old"}, token="ANN")
        assert server.initialized == initialized
        await gateway.reload({"old": {"url": server.url, "timeout": 20.0}})
        await gateway.ask("tools/call", {"name": "old__old"}, token="ANN")
        assert server.initialized > initialized


async def test_an_upstream_that_knows_its_callers_is_followed_for_those_who_listen_already(
    alpha: ScriptedUpstream, beta: ScriptedUpstream
) -> None:
    """With each one's own credential, though they came before it did (L-13)."""
    async with running({"beta": beta}) as gateway:
        async with listening(gateway, TOOLS, token="ANN") as ann:
            await gateway.reload({"beta": beta, "alpha": {"url": alpha.url, "auth": "forward"}})
            await alpha.listening()
            assert [one.exchange.received.header("authorization") for one in alpha.listens] == ["Bearer ANN"]
            assert await told(ann) == (TOOLS_CHANGED, None)
            await gateway.ask("tools/list", token="ANN")
            alpha.tools = [tool("other")]
            await alpha.notify(TOOLS_CHANGED)
            assert await told(ann) == (TOOLS_CHANGED, None)
            assert (await gateway.ask("tools/list", token="ANN")).names == ["beta__b", "alpha__other"]
        await alpha.unlistened()


async def test_no_credential_goes_to_what_took_the_place_of_an_upstream(
    alpha: ScriptedUpstream, beta: ScriptedUpstream
) -> None:
    """A call that is under way has a token for the one; the other is asked without any (Z-09)."""
    async with running({"alpha": {"url": alpha.url, "auth": "forward"}}) as gateway:
        await gateway.ask("tools/list", token="ANN")
        calls = [
            asyncio.ensure_future(gateway.ask("tools/call", {"name": "alpha__a"}, token="ANN", judged=False))
            for _ in range(5)
        ]
        await gateway.reload({"alpha": beta})
        await asyncio.gather(*calls)
        await gateway.ask("tools/list", token="ANN")
        assert {one.header("authorization") for one in beta.requests} == {None}


async def test_the_clients_of_other_replicas_are_told(
    alpha: ScriptedUpstream, beta: ScriptedUpstream
) -> None:
    """Whoever listens here may be given a list there, by another configuration for a while."""
    async with redis_server() as server:
        shared: dict[str, Any] = {
            "cache": {"redis": server.url, "redis_timeout": 5.0, "redis_budget": 5.0},
            "secrets": {"keys": ["0123456789abcdef-key"]},
        }
        upstreams = {"alpha": alpha, "beta": beta}
        async with running(upstreams, **shared) as one, running(upstreams, **shared) as two:
            await _hear(one, two)
            async with listening(one, TOOLS) as stream:
                await two.reload({"alpha": alpha}, **shared)
                assert await told(stream) == (TOOLS_CHANGED, None)
                assert (await one.ask("tools/list")).names == ["alpha__a", "beta__b"]
                assert (await two.ask("tools/list")).names == ["alpha__a"]


async def _hear(*replicas: Running) -> None:
    for one in replicas:
        replicated = one.runtime.replicated
        assert replicated is not None
        while not replicated.bus.hears:  # noqa: ASYNC110  # no event says so
            await asyncio.sleep(0.005)
