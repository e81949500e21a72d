"""What one upstream answers, by mischance or ill will, costs the others and their callers nothing."""

import asyncio
import zlib

import pytest
from aiohttp import web

from gateway.core import catalogue
from gateway.core.lists import parse_page
from gateway.protocol.call import Change, UpstreamName
from tests.support.running import Clock, running
from tests.support.scripted import ScriptedUpstream, default, error, hang, result, status, tool


async def test_a_retry_after_of_any_year_costs_no_list():
    """Its upstream is missing, as with any other 503 (U-27, B01)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        beta.on("tools/list", status(503, Retry_After="Mon, 01 Jan 99999999999 00:00:00 GMT"))
        listed = await gateway.ask("tools/list")
        assert (listed.names, listed.missing) == (["alpha__a"], ["beta"])


@pytest.mark.parametrize("others", [1, 0])
async def test_a_bug_that_one_answer_hits_is_that_upstreams_failure(others, monkeypatch, caplog):
    """Whoever reads the log learns whose answer it was, and where it hurt; the others are listed (B01)."""

    def trips(method, result, most):
        if b"trap" in bytes(result):
            raise ZeroDivisionError("stumbled")
        return parse_page(method, result, most)

    monkeypatch.setattr(catalogue, "parse_page", trips)
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, ScriptedUpstream(tools=[tool("trap")]) as beta:
        upstreams = {"alpha": alpha, "beta": beta} if others else {"beta": beta}
        async with running(upstreams) as gateway:
            listed = await gateway.ask("tools/list")
            if others:
                assert (listed.names, listed.missing) == (["alpha__a"], ["beta"])
            else:
                assert (listed.code, "upstream beta" in listed.error["message"]) == (-32603, True)
                assert "stumbled" not in listed.error["message"]
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "beta" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


ODD = {
    "icons": [{"src": "https://x.example/i.png", "theme": "blue"}, {"src": ""}],
    "annotations": {"priority": 2, "audience": ["bot"], "title": 5, "readOnlyHint": True},
    "execution": {"taskSupport": "maybe"},
    "size": 1.5,
}


async def test_decorations_no_client_could_read_cost_no_list_and_no_item(caplog):
    """The official types would refuse the lists of all upstreams; what was left out is told (B11)."""
    async with (
        ScriptedUpstream(
            tools=[tool("t", **ODD)],
            prompts=[{"name": "p", **ODD}],
            resources=[{"uri": "a:b", "name": "r", **ODD}],
            templates=[{"uriTemplate": "a:{b}", "name": "m", **ODD}],
        ) as alpha,
        running({"alpha": alpha}) as gateway,
    ):
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            (item,) = (await gateway.ask(method)).items
            assert item["icons"] == [{"src": "https://x.example/i.png"}], method
        assert await gateway.counted('dropped_total{upstream="alpha",what="member"}') == 4
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len([text for text in told if text.startswith("upstream alpha: ")]) == 4


# What it says to one caller is said to that caller (B07, B48)

ANN, BOB = "TOK-A", "TOK-B"


def only_for(token, otherwise):
    """Behave well towards who shows this token."""

    async def behave(exchange):
        shown = exchange.received.header("authorization")
        await (default if shown == f"Bearer {token}" else otherwise)(exchange)

    return behave


def forwarding(upstream, **members):
    return {"url": upstream.url, "auth": "forward", **members}


async def test_a_list_that_is_not_served_to_one_caller_is_served_to_others():
    """And to that one again after a while; the joined list says no more than that of itself (C-10, C-27)."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")], ttl_ms=600_000) as alpha,
        ScriptedUpstream(tools=[tool("b")], ttl_ms=600_000) as beta,
        running({"alpha": alpha, "beta": forwarding(beta)}, clock=clock) as gateway,
    ):
        beta.on("tools/list", only_for(BOB, error(-32601, http=404)))
        for age in (0, 10):
            clock.advance(age)
            listed = await gateway.ask("tools/list", token=ANN)
            assert (listed.names, listed.missing) == (["alpha__a"], [])
            assert listed.hints == (60_000 - 1000 * age, "private")
        assert len(beta.seen("tools/list")) == 1
        assert (await gateway.ask("tools/list", token=BOB)).names == ["alpha__a", "beta__b"]
        assert (await gateway.ask("tools/call", {"name": "beta__b"}, token=BOB)).text["tool"] == "b"
        beta.reset("tools/list")
        clock.advance(51)
        assert (await gateway.ask("tools/list", token=ANN)).names == ["alpha__a", "beta__b"]


async def test_what_nobody_declared_nor_serves_is_not_found():
    """Also where the upstream never said what it can do: to the gateway itself it says nothing."""
    async with ScriptedUpstream(tools=[tool("b")]) as beta:
        beta.on("server/discover", only_for(BOB, status(401)))
        beta.on("prompts/list", error(-32601, http=404))
        async with running({"beta": forwarding(beta)}) as gateway:
            for _ in range(2):
                refused = await gateway.ask("prompts/list", token=ANN)
                assert (refused.status, refused.code) == (404, -32601)
            assert len(beta.seen("prompts/list")) == 1
            assert (await gateway.ask("tools/list", token=ANN)).names == ["beta__b"]


async def test_an_absence_ends_with_a_change_and_is_not_learnt_across_one():
    """What was said before a change says nothing of what is after it (C-32)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        catalogue = gateway.runtime.catalogue
        change = Change(UpstreamName("beta"), "tools/list")

        async def changing(exchange):
            await catalogue.changed(change)
            await error(-32601, http=404)(exchange)

        beta.on("tools/list", error(-32601, http=404))
        for _ in range(2):
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        assert len(beta.seen("tools/list")) == 1
        await catalogue.changed(change)
        beta.on("tools/list", changing)
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        beta.reset("tools/list")
        assert (await gateway.ask("tools/list")).names == ["alpha__a", "beta__b"]


async def test_a_list_that_hangs_for_one_caller_is_not_kept_from_others():
    """Who waited in vain is not made to wait again at once; nobody else is told that it rests (B01)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")], scope="private") as beta,
    ):
        upstreams = {"alpha": alpha, "beta": forwarding(beta, list_timeout=0.3)}
        async with running(upstreams, clock=Clock()) as gateway:
            beta.on("tools/list", only_for(BOB, hang()))
            assert (await gateway.ask("tools/list", token=ANN)).missing == ["beta"]
            listed = await gateway.ask("tools/list", token=BOB)
            assert (listed.names, listed.missing) == (["alpha__a", "beta__b"], [])
            assert (await gateway.ask("prompts/list", token=ANN)).missing == ["beta"]
            assert beta.seen("prompts/list") == []
            beta.reset()
            assert (await gateway.ask("tools/list", token=ANN)).missing == ["beta"]
            await gateway.runtime.catalogue.changed(Change(UpstreamName("beta"), cause="reconnect"))
            assert (await gateway.ask("tools/list", token=ANN)).missing == []


# What is still fresh needs nobody (C-09)


async def test_a_fresh_part_is_listed_while_its_upstream_is_down():
    """With the ttl it still has; another upstream's change takes nothing from it."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")], ttl_ms=600_000) as alpha,
        ScriptedUpstream(tools=[tool("b0"), tool("b1")], page_size=1, ttl_ms=60_000) as beta,
        running({"alpha": alpha, "beta": beta}, clock=clock) as gateway,
    ):
        whole = (await gateway.ask("tools/list", token=ANN)).names
        said = (await gateway.ask("server/discover", token=ANN)).result["capabilities"]
        await beta.stop()
        assert (await gateway.ask("tools/call", {"name": "beta__b0"}, token=ANN)).code == -32603
        await gateway.until("beta", "down")
        for method in ("tools/list", "server/discover"):
            await gateway.runtime.catalogue.forget("alpha", method, "list_changed")
        clock.advance(10)
        listed = await gateway.ask("tools/list", token=ANN)
        assert (listed.names, listed.missing) == (whole, [])
        assert listed.hints[0] == 50_000
        discovered = await gateway.ask("server/discover", token=ANN)
        assert (discovered.result["capabilities"], discovered.missing) == (said, [])
        clock.advance(51)
        assert (await gateway.ask("tools/list", token=ANN)).missing == ["beta"]


async def test_a_fresh_part_is_listed_while_its_upstream_rests():
    """One list that hung takes no other from those who ask (B01)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": {"url": beta.url, "list_timeout": 0.3}}, clock=Clock()) as gateway,
    ):
        whole = (await gateway.ask("tools/list")).names
        beta.on("prompts/list", hang())
        assert (await gateway.ask("prompts/list")).missing == ["beta"]
        await gateway.runtime.catalogue.forget("alpha", "tools/list", "list_changed")
        listed = await gateway.ask("tools/list")
        assert (listed.names, listed.missing) == (whole, [])
        await gateway.runtime.catalogue.forget("beta", "tools/list", "list_changed")
        assert (await gateway.ask("tools/list")).missing == ["beta"], "it rests nevertheless"


# What no client is given is told to the operator (E-09)


@pytest.mark.parametrize(
    ("method", "params", "members", "reason"),
    [
        ("tools/list", None, {"tools": {}}, "tools is not an array"),
        ("tools/list", None, {"tools": [], "nextCursor": 5}, "nextCursor"),
        ("tools/call", {"name": "alpha__a"}, {"content": "done"}, "content is not an array"),
        ("tools/call", {"name": "alpha__a"}, {"resultType": "odd"}, "resultType"),
        ("tools/call", {"name": "alpha__a"}, {"resultType": "input_required"}, "without inputRequests"),
        ("resources/read", {"uri": "alpha+x:y"}, {"contents": None}, "contents is not an array"),
        ("prompts/get", {"name": "alpha__p"}, {}, "messages is not an array"),
    ],
)
async def test_an_invalid_result_is_logged_and_counted(method, params, members, reason, caplog):
    """With the upstream, the method and what is wrong: the client learns the least of it."""
    async with (
        ScriptedUpstream(tools=[tool("a")], prompts=[{"name": "p"}]) as alpha,
        running({"alpha": alpha}) as gateway,
    ):
        alpha.on(method, result(members))
        failed = await gateway.ask(method, params)
        assert (failed.code, "upstream alpha" in failed.error["message"]) == (-32603, True)
        assert await gateway.counted('dropped_total{upstream="alpha",what="response"}') == 1
    warned = [record for record in caplog.records if record.levelname == "WARNING"]
    (told,) = [record.getMessage() for record in warned if record.name.startswith("gateway.")]
    assert told.startswith(f"upstream alpha: invalid result of {method}: ")
    assert reason in told


async def test_a_stream_of_nothing_leaves_everybody_else_their_turns():
    """A few hundred bytes unfold to a million lines; they are read in pieces, and not for ever (U-21)."""
    blank_lines = zlib.compress(b"\n" * 2**20)

    async def say_nothing(exchange):
        headers = {"Content-Type": "text/event-stream", "Content-Encoding": "deflate"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(exchange.request)
        await response.write(blank_lines)
        await hang()(exchange)

    turns = 0

    async def take_turns():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with ScriptedUpstream(tools=[tool("a")]) as alpha:
        alpha.on("tools/call", say_nothing)
        async with running({"alpha": alpha}, limits={"message": "512KiB"}) as gateway:
            await gateway.ask("tools/list")
            neighbour = asyncio.create_task(take_turns())
            answer = await gateway.ask("tools/call", {"name": "alpha__a"})
            neighbour.cancel()
    assert "response too large" in answer.error["message"]
    assert turns >= 512 / 16
