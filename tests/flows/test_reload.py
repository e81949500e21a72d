"""A gateway that goes on by another configuration: what stays, what goes, and who is told (C-30, L-10)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Tls, Upstream
from tests.support.certificates import Authority
from tests.support.listening import (
    EVERY_LIST,
    PROMPTS_CHANGED,
    RESOURCES_CHANGED,
    SUBSCRIPTION,
    TOOLS,
    TOOLS_CHANGED,
    listening,
    quiet,
    told,
    uris,
)
from tests.support.running import Running, running, settings
from tests.support.scripted import (
    ScriptedUpstream,
    answer,
    default,
    event,
    hang,
    notification,
    sse,
    tool,
)


@pytest.fixture
async def alpha() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("a")]) as upstream:
        yield upstream


@pytest.fixture
async def beta() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(tools=[tool("b")]) as upstream:
        yield upstream


@pytest.fixture
async def gateway(alpha: ScriptedUpstream) -> AsyncIterator[Running]:
    async with running({"alpha": alpha}) as gateway:
        yield gateway


# What is the same goes on


async def test_an_upstream_that_is_the_same_is_not_touched(
    alpha: ScriptedUpstream, beta: ScriptedUpstream, gateway: Running
) -> None:
    """Its stream, and what is kept of it, outlive the arrival of another one."""
    await alpha.listening()
    assert (await gateway.ask("tools/list")).names == ["alpha__a"]
    asked = len(alpha.requests)
    await gateway.reload({"alpha": alpha, "beta": beta})
    await gateway.until("beta", "up")
    assert (await gateway.ask("tools/list")).names == ["alpha__a", "beta__b"]
    await beta.listening()
    assert len(alpha.requests) == asked
    alpha.tools = [tool("a2")]
    await alpha.notify(TOOLS_CHANGED)
    await gateway.until_counted('cache_invalidations_total{cause="list_changed",upstream="alpha"}', 1)
    assert (await gateway.ask("tools/list")).names == ["alpha__a2", "beta__b"]


async def test_the_same_configuration_changes_nothing(alpha: ScriptedUpstream, gateway: Running) -> None:
    """Not even the answer that was put together."""
    async with listening(gateway, TOOLS) as stream:
        await gateway.ask("tools/list")
        asked = len(alpha.requests)
        await gateway.reload({"alpha": alpha})
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        assert len(alpha.requests) == asked
        await alpha.notify(TOOLS_CHANGED)
        assert await told(stream) == (TOOLS_CHANGED, None)
    assert gateway.gateway.generation == 2


async def test_a_request_under_way_ends_as_it_began(
    alpha: ScriptedUpstream, beta: ScriptedUpstream, gateway: Running
) -> None:
    """Its upstream is gone from the configuration, and is closed when the last request has ended."""
    go = asyncio.Event()
    alpha.once("tools/call", hang(go, default))
    async with gateway.open("tools/call", {"name": "alpha__a"}) as exchange:
        await alpha.arrived("tools/call")
        await gateway.reload({"beta": beta})
        await gateway.until("beta", "up")
        assert (await gateway.ask("tools/list")).names == ["beta__b"]
        refused = await gateway.ask("tools/call", {"name": "alpha__a"})
        assert refused.code == -32602
        go.set()
        assert not (await exchange.answer()).result.get("isError")
    while gateway.runtime.pool.retired:  # noqa: ASYNC110  # nothing says so
        await asyncio.sleep(0.002)
    await alpha.unlistened()


async def test_what_does_not_end_within_the_grace_is_cut_off(
    alpha: ScriptedUpstream, beta: ScriptedUpstream, gateway: Running
) -> None:
    """A removed upstream is not kept for ever by a call that hangs."""
    alpha.once("tools/call", hang(asyncio.Event()))
    async with gateway.open("tools/call", {"name": "alpha__a"}) as exchange:
        await alpha.arrived("tools/call")
        await gateway.reload({"beta": beta}, shutdown_grace=0.01)
        assert "error" in (await exchange.answer()).message


@pytest.mark.parametrize("instead", ["nobody", "another"])
async def test_a_removed_upstream_speaks_to_nobody(
    alpha: ScriptedUpstream, beta: ScriptedUpstream, gateway: Running, instead: str
) -> None:
    """Its last call ends as it began; what it says meanwhile is about lists that nobody is shown any more."""
    speak = asyncio.Event()
    alpha.once("tools/call", sse(speak, event(notification(TOOLS_CHANGED)), answer({"content": []})))
    name = "alpha" if instead == "another" else "beta"
    told_of = 'cache_invalidations_total{cause="list_changed"'
    async with (
        gateway.open("tools/call", {"name": "alpha__a"}) as exchange,
        listening(gateway, TOOLS) as stream,
    ):
        await alpha.arrived("tools/call")
        await gateway.reload({name: beta})
        assert await told(stream) == (TOOLS_CHANGED, None)
        await beta.listening()
        assert (await gateway.ask("tools/list")).names == [f"{name}__b"]
        await quiet(gateway)
        delivered = await gateway.counted('notices_total{fate="delivered"}')
        speak.set()
        assert not (await exchange.answer()).result.get("isError")
        await quiet(gateway)
        assert await gateway.counted(told_of) == 0
        assert await gateway.counted('notices_total{fate="delivered"}') == delivered
        beta.tools = [tool("c")]
        await beta.notify(TOOLS_CHANGED)
        await gateway.until_counted(told_of, 1)
        assert await told(stream) == (TOOLS_CHANGED, None)
        assert (await gateway.ask("tools/list")).names == [f"{name}__c"]


async def test_an_upstream_that_comes_back_is_not_what_it_was(
    alpha: ScriptedUpstream, beta: ScriptedUpstream, gateway: Running
) -> None:
    """What was kept of it is from a time in which it was heard; since then nobody listened (C-30)."""
    assert (await gateway.ask("tools/list")).names == ["alpha__a"]
    await gateway.reload({"beta": beta})
    await alpha.unlistened()
    alpha.tools = [tool("later")]
    await gateway.reload({"alpha": alpha})
    await gateway.until("alpha", "up")
    assert (await gateway.ask("tools/list")).names == ["alpha__later"]


async def test_of_another_upstream_at_the_same_address_nothing_is_kept(alpha: ScriptedUpstream) -> None:
    """Nor where it is one that tells nobody of changes: with another name of ours it may answer otherwise."""
    alpha.capabilities, alpha.ttl_ms, alpha.scope = {"tools": {}, "resources": {}}, 600_000, "public"
    alpha.resources = [{"uri": "x://r", "name": "r"}]
    async with running({"alpha": alpha}) as gateway:
        for asked in (1, 1, 2, 2):
            if asked == 2:
                await gateway.reload({"alpha": alpha}, identity={"name": "another"})
            await gateway.ask("resources/read", {"uri": "alpha+x://r"})
            assert len(alpha.seen("resources/read")) == asked


async def test_with_other_certificates_it_is_another_upstream(
    alpha: ScriptedUpstream, tmp_path: Path
) -> None:
    """Other authorities, or another certificate of the gateway's: with the same ones it goes on."""
    first, second = (Authority(tmp_path, name).file for name in ("first", "second"))
    trusted = tmp_path / "ca.pem"
    alpha.capabilities, alpha.ttl_ms, alpha.scope = {"tools": {}, "resources": {}}, 600_000, "public"
    alpha.resources = [{"uri": "x://r", "name": "r"}]
    trusted.write_bytes(first.read_bytes())
    settings = {"alpha": {"url": alpha.url, "list_timeout": 30.0, "tls": {"ca_file": str(trusted)}}}
    async with running(settings) as gateway:
        for asked, content in ((1, first), (1, first), (2, second), (2, second)):
            trusted.write_bytes(content.read_bytes())
            await gateway.reload(settings)
            await gateway.ask("resources/read", {"uri": "alpha+x://r"})
            assert len(alpha.seen("resources/read")) == asked


async def test_what_was_kept_by_other_rules_is_fetched_anew(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """From the upstream that is not touched otherwise."""
    assert (await gateway.ask("tools/list", token="ANN")).hints[1] == "public"
    connections, listens = alpha.connections, list(alpha.listens)
    private = {"url": alpha.url, "list_timeout": 30.0, "cache": {"share_public": False}}
    await gateway.reload({"alpha": private})
    listed = await gateway.ask("tools/list", token="BOB")
    assert listed.hints[1] == "private"
    assert len(alpha.seen("tools/list")) == 2
    assert (alpha.connections, alpha.listens) == (connections, listens)


async def test_what_cannot_be_made_changes_nothing(
    alpha: ScriptedUpstream, beta: ScriptedUpstream, gateway: Running, tmp_path: Path
) -> None:
    """A file may be gone between the look at it and its use."""
    authorities = tmp_path / "ca.pem"
    with pytest.raises(ValueError, match=r"ca\.pem"):
        await gateway.gateway.reload(
            settings({"alpha": alpha, "beta": beta}).model_copy(
                update={"upstreams": {"beta": _with_authorities(beta.url, str(authorities))}}
            )
        )
    assert gateway.gateway.generation == 1
    assert (await gateway.ask("tools/list")).names == ["alpha__a"]
    await alpha.listening()


def _with_authorities(url: str, file: str) -> Upstream:
    return Upstream(url=url, prefix="beta").model_copy(update={"tls": Tls.model_construct(ca_file=file)})


# What is told


async def test_an_upstream_that_is_new_is_told_of_once_it_is_there(
    alpha: ScriptedUpstream, beta: ScriptedUpstream, gateway: Running
) -> None:
    """Those who listen hear of the lists that it has."""
    async with listening(gateway, TOOLS) as stream:
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        await gateway.reload({"alpha": alpha, "beta": beta})
        assert await told(stream) == (TOOLS_CHANGED, None)
        assert (await gateway.ask("tools/list")).names == ["alpha__a", "beta__b"]


async def test_an_upstream_that_comes_up_late_is_told_of_then(
    alpha: ScriptedUpstream, beta: ScriptedUpstream, gateway: Running
) -> None:
    """A new one may be down when it is configured."""
    await beta.stop()
    async with listening(gateway, TOOLS) as stream:
        await gateway.reload({"alpha": alpha, "beta": beta})
        await gateway.until("beta", "down")
        await beta.start()
        assert await told(stream) == (TOOLS_CHANGED, None)
        assert (await gateway.ask("tools/list")).names == ["alpha__a", "beta__b"]


async def test_an_upstream_that_goes_is_told_of(alpha: ScriptedUpstream, beta: ScriptedUpstream) -> None:
    """Its lists are, and no others."""
    beta.prompts = [{"name": "p"}]
    async with running({"alpha": alpha, "beta": beta}) as gateway, listening(gateway, TOOLS) as stream:
        assert (await gateway.ask("tools/list")).names == ["alpha__a", "beta__b"]
        await gateway.reload({"alpha": alpha})
        assert await told(stream) == (TOOLS_CHANGED, None)
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        assert await gateway.counted('upstream_up{upstream="beta"}') == 0
        await beta.unlistened()


async def test_another_upstream_of_the_same_name_is_compared_with_the_one_before(
    alpha: ScriptedUpstream, beta: ScriptedUpstream, gateway: Running
) -> None:
    """Nothing that was kept of the other is served, and clients hear that the list is another one."""
    async with listening(gateway, TOOLS) as stream:
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        await gateway.reload({"alpha": beta})
        assert await told(stream) == (TOOLS_CHANGED, None)
        assert (await gateway.ask("tools/list")).names == ["alpha__b"]
        assert not (await gateway.ask("tools/call", {"name": "alpha__b"})).result.get("isError")
        assert [one.params["name"] for one in beta.seen("tools/call")] == ["b"]
        await alpha.unlistened()
        await beta.listening()


async def test_another_upstream_that_lists_the_same_is_no_news(
    alpha: ScriptedUpstream, gateway: Running
) -> None:
    """A server that moved is what it was for its clients."""
    async with ScriptedUpstream(tools=[tool("a")]) as moved, listening(gateway, TOOLS) as stream:
        await gateway.ask("tools/list")
        await gateway.reload({"alpha": moved})
        await moved.listening()
        await quiet(gateway)
        moved.tools = [tool("new")]
        await moved.notify(TOOLS_CHANGED)
        assert await told(stream) == (TOOLS_CHANGED, None)
        assert (await gateway.ask("tools/list")).names == ["alpha__new"]


@pytest.mark.parametrize(
    ("members", "kinds"),
    [
        ({"upstreams": {"tools": {"deny": ["a"]}}}, [TOOLS_CHANGED]),
        ({"upstreams": {"prefix": "first"}}, [TOOLS_CHANGED, PROMPTS_CHANGED, RESOURCES_CHANGED]),
        ({"names": {"separator": "-"}}, [TOOLS_CHANGED, PROMPTS_CHANGED, RESOURCES_CHANGED]),
        ({"endpoints": {"/mcp": {"tools": {"rename": {"alpha__a": "x"}}}}}, [TOOLS_CHANGED]),
        ({"access": {"default": "deny"}}, [TOOLS_CHANGED, PROMPTS_CHANGED, RESOURCES_CHANGED]),
    ],
)
async def test_what_is_shown_otherwise_is_told(
    alpha: ScriptedUpstream, members: dict[str, Any], kinds: list[str]
) -> None:
    """The upstream is the same: its stream is not opened anew, and it is not asked again."""
    alpha.prompts, alpha.resources = [{"name": "p"}], [{"uri": "x://r", "name": "r"}]
    async with running({"alpha": alpha}) as gateway, listening(gateway, EVERY_LIST) as stream:
        await gateway.ask("tools/list")
        await alpha.listening()
        asked = len(alpha.requests)
        upstream = {"url": alpha.url, "list_timeout": 30.0, **members.get("upstreams", {})}
        others = {key: value for key, value in members.items() if key != "upstreams"}
        if "access" not in others:
            await gateway.reload({"alpha": upstream}, **others)
            assert sorted([(await told(stream))[0] for _ in kinds]) == sorted(kinds)
            await gateway.ask("tools/list")
        assert len(alpha.requests) == asked


async def test_what_a_stream_was_promised_ends_it_when_it_is_gone(
    alpha: ScriptedUpstream, beta: ScriptedUpstream
) -> None:
    """Who listens anew hears the truth; the streams of others stay (L-10)."""
    beta.resources = [{"uri": "x://r", "name": "r"}]
    async with running({"alpha": alpha, "beta": beta}) as gateway:
        wanted = {**TOOLS, **uris("beta+x://r")}
        async with listening(gateway, wanted) as promised, listening(gateway, TOOLS, id=2) as other:
            await gateway.reload({"alpha": alpha})
            messages = [await promised.event()]
            while "result" not in messages[-1]:
                messages.append(await promised.event())
            assert messages[-1]["result"]["_meta"][SUBSCRIPTION] == 1
            assert await told(other) == (TOOLS_CHANGED, None)
            await alpha.notify(TOOLS_CHANGED)
            assert await told(other) == (TOOLS_CHANGED, None)


async def test_an_endpoint_that_goes_ends_its_streams(alpha: ScriptedUpstream) -> None:
    """And is not found afterwards."""
    both: dict[str, Any] = {"endpoints": {"/mcp": {}, "/old": {}}}
    async with (
        running({"alpha": alpha}, **both) as gateway,
        listening(gateway, TOOLS, path="/old", id="old") as old,
        listening(gateway, TOOLS) as stream,
    ):
        await gateway.reload({"alpha": alpha}, endpoints={"/mcp": {}, "/new": {}})
        assert (await old.event())["id"] == "old"
        assert (await gateway.ask("tools/list", path="/old", judged=False)).status == 404
        assert (await gateway.ask("tools/list", path="/new")).names == ["alpha__a"]
        await alpha.notify(TOOLS_CHANGED)
        assert await told(stream) == (TOOLS_CHANGED, None)


async def test_a_stream_that_may_be_promised_more_ends(alpha: ScriptedUpstream) -> None:
    """It asked for prompts when nobody had any; a new upstream may."""
    alpha.capabilities = {"tools": {"listChanged": True}}
    async with ScriptedUpstream(prompts=[{"name": "p"}]) as beta, running({"alpha": alpha}) as gateway:
        async with listening(gateway, EVERY_LIST, TOOLS) as stream:
            await gateway.reload({"alpha": alpha, "beta": beta})
            assert "result" in await stream.event()
        await gateway.until("beta", "up")
        async with listening(gateway, EVERY_LIST):
            pass


# Settings


async def test_settings_that_wait_for_a_restart_are_named_and_the_rest_counts(
    alpha: ScriptedUpstream, beta: ScriptedUpstream, gateway: Running
) -> None:
    """The address is bound; an upstream is not."""
    await gateway.reload({"beta": beta}, listen="127.0.0.1:9", limits={"message": 2**20, "depth": 20})
    await gateway.until("beta", "up")
    assert (await gateway.ask("tools/list")).names == ["beta__b"]
    assert gateway.gateway.needs_restart == ("listen", "limits.message")
    assert gateway.runtime.config.limits.depth == 20
    assert (await gateway.gateway.look()).config.needs_restart == ("listen", "limits.message")
    await gateway.reload({"beta": beta})
    assert gateway.gateway.needs_restart == ()
