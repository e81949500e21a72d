"""What is answered from the cache, to whom and how long: hints, callers, changes, many at once (B08, B51)."""

import asyncio
import contextlib
import json

import pytest

from tests.support.running import Clock, running
from tests.support.scripted import META, ScriptedUpstream, cut, error, event, hang, result, sse, status, tool

ANN, BOB = "TOK-A", "TOK-B"
UI = {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}}


def listing(*names, **hints):
    """Answer tools/list with these tools and exactly these hints."""
    return result({"tools": [tool(name) for name in names], **hints})


# Hits


async def test_a_hit_asks_no_upstream_and_costs_one_look_up():
    """However many upstreams and tools there are; the parts are not even looked for."""
    clock = Clock()
    names = ["alpha", "beta", "gamma"]
    upstreams = {name: ScriptedUpstream(tools=[tool(f"t{n}") for n in range(20)]) for name in names}
    async with contextlib.AsyncExitStack() as stack:
        for upstream in upstreams.values():
            await stack.enter_async_context(upstream)
        async with running(upstreams, clock=clock) as gateway:
            first = await gateway.ask("tools/list")
            lookups = await gateway.counted("cache_lookups_total")
            seen = [len(upstream.requests) for upstream in upstreams.values()]
            again = await gateway.ask("tools/list", id="other")
            assert again.result == first.result
            assert again.message["id"] == "other"
            assert [len(upstream.requests) for upstream in upstreams.values()] == seen
            assert await gateway.counted("cache_lookups_total") == lookups + 1
            assert (
                await gateway.counted(
                    "cache_lookups_total"
                    '{mcp_method_name="tools/list",reason="fresh",result="hit",upstream="*"}'
                )
                == 1
            )


async def test_a_hit_emits_what_remains_of_the_ttl():
    """The original value again would let staleness grow per hop (C-09, C-10); floored, never negative."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, clock=clock) as gateway,
    ):
        assert (await gateway.ask("tools/list")).hints == (60_000, "public")
        clock.advance(12.3456)
        assert (await gateway.ask("tools/list")).hints == (47_654, "public")
        clock.advance(47.654)
        assert (await gateway.ask("tools/list")).hints == (0, "public")
        assert len(alpha.seen("tools/list")) == 1
        clock.advance(0.001)
        assert (await gateway.ask("tools/list")).hints == (60_000, "public")
        assert len(alpha.seen("tools/list")) == 2


async def test_each_page_and_part_ages_by_its_own_clock():
    """What expired is fetched, the rest is not (C-26); the whole lives as long as its first to go (C-27)."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")], ttl_ms=60_000) as alpha,
        ScriptedUpstream(tools=[tool("b")], ttl_ms=20_000) as beta,
        running({"alpha": alpha, "beta": beta}, clock=clock) as gateway,
    ):
        assert (await gateway.ask("tools/list")).hints == (20_000, "public")
        clock.advance(30)
        assert (await gateway.ask("tools/list")).hints == (20_000, "public")
        assert (len(alpha.seen("tools/list")), len(beta.seen("tools/list"))) == (1, 2)
        clock.advance(15)
        assert (await gateway.ask("tools/list")).hints == (5_000, "public")


async def test_the_gateways_own_ceiling_lowers_what_is_emitted():
    """max_ttl caps, and the cap is what clients are told (C-12)."""
    async with (
        ScriptedUpstream(tools=[tool("a")], ttl_ms=10**12) as alpha,
        running({"alpha": alpha}, clock=Clock(), cache={"max_ttl": 60.0}) as gateway,
    ):
        assert (await gateway.ask("tools/list")).hints == (60_000, "public")


# Hints and callers (B08)


async def test_public_is_shared_private_is_not():
    """The same uri and list for ann and bob: what is public once for both, what is private once for each."""
    resources = [{"uri": "a:1", "name": "one"}]
    async with (
        ScriptedUpstream(tools=[tool("a")], resources=resources) as alpha,
        ScriptedUpstream(tools=[tool("b")], resources=resources, scope="private") as beta,
        running({"alpha": alpha, "beta": beta}, clock=Clock()) as gateway,
    ):
        for caller in (ANN, BOB, ANN, BOB):
            listed = await gateway.ask("tools/list", token=caller)
            assert listed.hints == (60_000, "private")
            assert (await gateway.ask("resources/read", {"uri": "alpha+a:1"}, token=caller)).hints[
                1
            ] == "public"
            assert (await gateway.ask("resources/read", {"uri": "beta+a:1"}, token=caller)).hints[
                1
            ] == "private"
        for method in ("tools/list", "resources/read"):
            assert (len(alpha.seen(method)), len(beta.seen(method))) == (1, 2), method


async def test_anonymous_callers_share_no_private_answer_and_all_public_ones():
    """Without a credential there is no context that could be theirs (C-19)."""
    async with (
        ScriptedUpstream(tools=[tool("a")], scope="private") as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        await gateway.ask("tools/list", token=ANN)
        for asked in (2, 3):
            assert (await gateway.ask("tools/list")).hints == (60_000, "private")
            assert len(alpha.seen("tools/list")) == asked
        alpha.scope = "public"
        await gateway.ask("tools/list")
        await gateway.ask("tools/list")
        assert len(alpha.seen("tools/list")) == 4


async def test_a_single_tenants_anonymous_callers_are_one_person():
    """They share private answers, and a hit is one look-up for them too (C-19)."""
    async with (
        ScriptedUpstream(tools=[tool("a")], scope="private") as alpha,
        running({"alpha": alpha}, clock=Clock(), cache={"single_tenant": True}) as gateway,
    ):
        await gateway.ask("tools/list")
        lookups = await gateway.counted("cache_lookups_total")
        assert (await gateway.ask("tools/list")).hints == (60_000, "private")
        assert len(alpha.seen("tools/list")) == 1
        assert await gateway.counted("cache_lookups_total") == lookups + 1
        await gateway.ask("tools/list", token=ANN)
        assert len(alpha.seen("tools/list")) == 2


@pytest.mark.parametrize(
    ("hints", "emitted"),
    [
        ({}, (0, "private")),
        ({"ttlMs": -5, "cacheScope": "shared"}, (0, "private")),
        ({"ttlMs": 300_000}, (300_000, "private")),
        ({"ttlMs": 300_000, "cacheScope": "shared"}, (300_000, "private")),
        ({"ttlMs": 300_000, "cacheScope": None}, (300_000, "private")),
        ({"ttlMs": "300000", "cacheScope": "public"}, (0, "public")),
        ({"ttlMs": True, "cacheScope": "public"}, (0, "public")),
        ({"ttlMs": 1.5, "cacheScope": "public"}, (0, "public")),
        ({"ttlMs": None, "cacheScope": "public"}, (0, "public")),
        ({"ttlMs": 300_000.0, "cacheScope": "public"}, (300_000, "public")),
        ({"cacheScope": "public"}, (0, "public")),
    ],
)
async def test_absent_and_invalid_hints_share_and_keep_nothing(hints, emitted):
    """Doubt is private and stale at once (C-11, C-17), on lists, discover and reads alike."""
    contents = [{"uri": "a:1", "text": "x"}]
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}, clock=Clock()) as gateway:
        alpha.on("tools/list", listing("a", **hints))
        alpha.on("resources/read", result({"contents": contents, **hints}))
        shared = emitted[1] == "public" and emitted[0] > 0
        for method, params in (("tools/list", None), ("resources/read", {"uri": "alpha+a:1"})):
            for caller in (ANN, BOB):
                assert (await gateway.ask(method, params, token=caller)).hints == emitted, method
            assert len(alpha.seen(method)) == (1 if shared else 2), method
            await gateway.ask(method, params, token=ANN)
            expected = 1 if shared else 2 if emitted[0] else 3
            assert len(alpha.seen(method)) == expected, method


async def test_a_merged_answer_is_as_short_lived_and_as_private_as_its_narrowest_part():
    """public 300 s, private 60 s and nothing: private and 0; discover alike (C-27, C-38)."""
    async with (
        ScriptedUpstream(tools=[tool("a")], ttl_ms=300_000) as alpha,
        ScriptedUpstream(tools=[tool("b")], ttl_ms=60_000, scope="private") as beta,
        ScriptedUpstream(tools=[tool("c")]) as gamma,
        running({"alpha": alpha, "beta": beta, "gamma": gamma}, clock=Clock()) as gateway,
    ):
        for method in ("tools/list", "server/discover"):
            assert (await gateway.ask(method, token=ANN)).hints == (60_000, "private"), method
        gamma.on("tools/list", listing("c"))
        gamma.on("server/discover", result({"supportedVersions": ["2026-07-28"], "capabilities": {}}))
        await gateway.runtime.catalogue.forget("gamma", "tools/list", "list_changed")
        await gateway.runtime.catalogue.forget("gamma", "server/discover", "list_changed")
        for method in ("tools/list", "server/discover"):
            assert (await gateway.ask(method, token=ANN)).hints == (0, "private"), method
            await gateway.ask(method, token=ANN)
        assert len(alpha.seen("tools/list")) == len(beta.seen("tools/list")) == 1
        assert len(gamma.seen("tools/list")) == 3


async def test_a_list_of_which_one_page_is_private_is_private():
    """Its public pages are taken back: bob is not shown ann's page one (C-23)."""
    async with (
        ScriptedUpstream(tools=[tool("a"), tool("b")], page_size=1) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        first = listing("a", ttlMs=60_000, cacheScope="public", nextCursor="at-1")
        alpha.once("tools/list", first, listing("b", ttlMs=60_000, cacheScope="private"))
        assert (await gateway.ask("tools/list", token=ANN)).hints == (60_000, "private")
        alpha.once("tools/list", first, listing("c", ttlMs=60_000, cacheScope="private"))
        assert (await gateway.ask("tools/list", token=BOB)).names == ["alpha__a", "alpha__c"]
        assert len(alpha.seen("tools/list")) == 4


@pytest.mark.parametrize(
    ("cache", "emitted", "asked"),
    [
        ({"share_public": False}, (60_000, "private"), 2),
        ({"scope": "private"}, (60_000, "private"), 2),
        ({"max_ttl": 10.0}, (10_000, "public"), 1),
        ({"min_ttl": {"tools/list": 120.0}}, (120_000, "public"), 1),
    ],
)
async def test_an_operators_settings_narrow_what_an_upstream_says(cache, emitted, asked):
    """share_public, scope, max_ttl, min_ttl, per upstream (C-24, C-15)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": {"url": alpha.url, "cache": cache}}, clock=Clock()) as gateway,
    ):
        for caller in (ANN, BOB, ANN):
            assert (await gateway.ask("tools/list", token=caller)).hints == emitted
        assert len(alpha.seen("tools/list")) == asked


async def test_a_floor_alone_is_never_shared():
    """min_ttl lengthens a life; without hints of the upstream the scope stays private."""
    async with ScriptedUpstream() as alpha:
        floor = {"url": alpha.url, "cache": {"min_ttl": {"tools/list": 60.0}}}
        async with running({"alpha": floor}, clock=Clock()) as gateway:
            alpha.on("tools/list", listing("a", ttlMs=0, cacheScope="public"))
            for caller in (ANN, BOB, ANN):
                assert (await gateway.ask("tools/list", token=caller)).hints == (60_000, "private")
            assert len(alpha.seen("tools/list")) == 2


async def test_lists_vary_by_the_capabilities_sent_upstream():
    """A client without `ui` never gets a list fetched for one that has it; capabilities that are not
    relayed do not split the cache (C-06, C-07)."""

    async def by_extension(exchange):
        apps = "io.modelcontextprotocol/ui" in exchange.received.meta[f"{META}clientCapabilities"].get(
            "extensions", {}
        )
        await listing("app" if apps else "plain", ttlMs=60_000, cacheScope="public")(exchange)

    async with ScriptedUpstream() as alpha, running({"alpha": alpha}, clock=Clock()) as gateway:
        alpha.on("tools/list", by_extension)
        for _ in range(2):
            assert (await gateway.ask("tools/list", capabilities=UI)).names == ["alpha__app"]
            assert (await gateway.ask("tools/list")).names == ["alpha__plain"]
            assert (await gateway.ask("tools/list", capabilities={"experimental": {"x": {}}})).names == [
                "alpha__plain"
            ]
        assert len(alpha.seen("tools/list")) == 2
        assert (await gateway.ask("tools/call", {"name": "alpha__app"}, capabilities=UI)).code == -32602
        assert len(alpha.seen("tools/call")) == 1, "routed: a name known to one profile is not unknown"


async def test_nothing_of_one_request_is_replayed_to_another():
    """Hop-owned `_meta` is not stored, vendor members are (C-39); ids, tokens and traces do not split."""
    about = {f"{META}serverInfo": {"name": "inner", "version": "9"}, f"{META}subscriptionId": 7, "v/x": [1.0]}
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}, clock=Clock()) as gateway:
        read = {"contents": [{"uri": "a:1", "text": "x"}], "ttlMs": 60_000, "cacheScope": "public"}
        alpha.on("resources/read", result({**read, "_meta": about}))
        trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        first = await gateway.ask(
            "resources/read", {"uri": "alpha+a:1"}, id=1, meta={"progressToken": 5, **trace, "v/q": 1}
        )
        again = await gateway.ask("resources/read", {"uri": "alpha+a:1"}, id=2, token=BOB)
        assert first.result == again.result
        assert again.result["_meta"] == {
            "v/x": [1.0],
            f"{META}serverInfo": first.result["_meta"][f"{META}serverInfo"],
        }
        assert again.result["_meta"][f"{META}serverInfo"]["name"] == "mcp-gateway"
        assert len(alpha.seen("resources/read")) == 1


# What is never cached (C-03)


async def test_calls_prompts_and_completions_are_never_cached():
    """Not even with hints on them, which do not belong there and are taken off (C-02)."""
    hints = {"ttlMs": 60_000, "cacheScope": "public"}
    async with (
        ScriptedUpstream(tools=[tool("a")], prompts=[{"name": "p"}]) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        alpha.on("tools/call", result({"content": [], **hints}))
        alpha.on("prompts/get", result({"messages": [], **hints}))
        alpha.on("completion/complete", result({"completion": {"values": []}, **hints}))
        ref = {"ref": {"type": "ref/prompt", "name": "alpha__p"}, "argument": {"name": "a", "value": ""}}
        for method, params in (
            ("tools/call", {"name": "alpha__a"}),
            ("prompts/get", {"name": "alpha__p"}),
            ("completion/complete", ref),
        ):
            for _ in range(2):
                answered = await gateway.ask(method, params, token=ANN)
                assert not {"ttlMs", "cacheScope"} & answered.result.keys(), method
            assert len(alpha.seen(method)) == 2, method


@pytest.mark.parametrize(
    "answered",
    [
        error(-32603, "later"),
        error(-32602, "no"),
        error(-32002, "gone", {"uri": "a:1"}),
        status(503),
        cut(),
        result({"contents": 5, "ttlMs": 60_000, "cacheScope": "public"}),
    ],
)
async def test_failures_are_never_cached(answered):
    """The next request asks again (C-03, B51)."""
    async with (
        ScriptedUpstream(resources=[{"uri": "a:1", "name": "one"}]) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        alpha.on("resources/read", answered)
        assert "error" in (await gateway.ask("resources/read", {"uri": "alpha+a:1"}, token=ANN)).message
        alpha.reset()
        assert (await gateway.ask("resources/read", {"uri": "alpha+a:1"}, token=ANN)).hints[1] == "public"


def asks_for_input(**members):
    """Answer with input_required, hints and all."""

    async def behave(exchange):
        asked = {
            "resultType": "input_required",
            "requestState": "opaque==",
            "ttlMs": 60_000,
            "cacheScope": "public",
            **members,
        }
        await exchange.reply({"result": asked})

    return behave


async def test_input_required_is_not_stored():
    """Whatever hints it carries, and whether the caller could answer it or not (C-03)."""
    schema = {"type": "object", "properties": {}}
    elicit = {"k": {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": schema}}}
    async with (
        ScriptedUpstream(resources=[{"uri": "a:1", "name": "one"}]) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        alpha.on("resources/read", asks_for_input(inputRequests=elicit))
        lacking = await gateway.ask("resources/read", {"uri": "alpha+a:1"}, token=ANN)
        assert (lacking.status, lacking.code) == (400, -32021)
        able = await gateway.ask(
            "resources/read", {"uri": "alpha+a:1"}, token=ANN, capabilities={"elicitation": {}}
        )
        assert able.result["resultType"] == "input_required"
        alpha.reset()
        assert (await gateway.ask("resources/read", {"uri": "alpha+a:1"}, token=ANN)).status == 200
        assert len(alpha.seen("resources/read")) == 3


async def test_a_retry_with_input_is_neither_looked_up_nor_stored():
    """A warm entry does not answer it, and its answer warms nothing (C-03)."""
    extra = {"inputResponses": {"k": {"action": "accept"}}}
    async with (
        ScriptedUpstream(resources=[{"uri": "a:1", "name": "one"}, {"uri": "a:2", "name": "two"}]) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        await gateway.ask("resources/read", {"uri": "alpha+a:1"}, token=ANN)
        retried = await gateway.ask("resources/read", {"uri": "alpha+a:1", **extra}, token=ANN)
        assert retried.hints == (0, "private")
        last = alpha.seen("resources/read")[-1]
        assert len(alpha.seen("resources/read")) == 2
        assert {key: last.params[key] for key in extra} == extra
        await gateway.ask("resources/read", {"uri": "alpha+a:2", **extra}, token=ANN)
        await gateway.ask("resources/read", {"uri": "alpha+a:2"}, token=ANN)
        assert len(alpha.seen("resources/read")) == 4


async def test_a_list_that_nobody_can_read_is_not_kept():
    """Its hints say an hour, but it would be an hour of errors."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        alpha.once("tools/list", result({"tools": {"a": 1}, "ttlMs": 3_600_000, "cacheScope": "public"}))
        assert (await gateway.ask("tools/list")).error["message"] == "upstream alpha: invalid response"
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]


# Changes


async def test_a_notice_of_change_makes_the_list_stale_at_once():
    """Even one that strays onto the stream of a call: consumed, not passed on (U-22, C-30)."""
    changed = event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    async with (
        ScriptedUpstream(tools=[tool("a")], prompts=[{"name": "p"}]) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        await gateway.ask("tools/list")
        await gateway.ask("prompts/list")
        alpha.tools.append(tool("b"))
        done = lambda exchange: event(  # noqa: E731
            {"jsonrpc": "2.0", "id": exchange.id, "result": {"resultType": "complete", "content": []}}
        )
        alpha.on("tools/call", sse(changed, done))
        called = await gateway.ask("tools/call", {"name": "alpha__a"})
        assert called.notices == []
        assert (await gateway.ask("tools/list")).names == ["alpha__a", "alpha__b"]
        await gateway.ask("prompts/list")
        assert len(alpha.seen("prompts/list")) == 1


async def test_an_upstream_that_was_away_is_believed_nothing():
    """It may have changed unseen: everything of it is asked anew after its return (C-30)."""
    async with (
        ScriptedUpstream(tools=[tool("old")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}, clock=Clock()) as gateway,
    ):
        await gateway.ask("tools/list")
        await alpha.stop()
        assert (await gateway.ask("tools/call", {"name": "alpha__old"})).code == -32603
        alpha.tools = [tool("new")]
        await alpha.start()
        await gateway.until("alpha", "up")
        assert (await gateway.ask("tools/list")).names == ["alpha__new", "beta__b"]
        assert len(beta.seen("tools/list")) == 1


async def test_an_answer_older_than_a_change_is_not_kept():
    """The list was being fetched while it changed (C-32)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        late = asyncio.Event()
        alpha.once("tools/list", hang(late, then=listing("stale", ttlMs=60_000, cacheScope="public")))
        asked = asyncio.create_task(gateway.ask("tools/list"))
        await alpha.arrived("tools/list")
        await gateway.runtime.catalogue.forget("alpha", "tools/list", "list_changed")
        late.set()
        assert (await asked).hints[0] == 0
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]


# Many at once (B51)


async def crowd(gateway, method, count, params=None, token=None, already=0):
    """Make so many requests at once; return their tasks once the gateway has begun on each."""
    tasks = [
        asyncio.create_task(gateway.ask(method, params, token=token, judged=number == 0))
        for number in range(count)
    ]
    await gateway.busy(already + count)
    return tasks


@pytest.mark.parametrize(
    ("token", "warm", "count"), [(None, False, 200), (None, True, 30), (ANN, False, 30), (ANN, True, 30)]
)
async def test_a_crowd_at_a_public_list_costs_one_fetch(token, warm, count):
    """Many at once, cold and just expired, and the one who came first leaves (B51, C-34)."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, clock=clock) as gateway,
    ):
        if warm:
            await gateway.ask("tools/list", token=token)
            await alpha.arrived("tools/list")
            clock.advance(61)
        late = asyncio.Event()
        alpha.on("tools/list", hang(late, then=listing("a", ttlMs=60_000, cacheScope="public")))
        async with gateway.open("tools/list", token=token) as leader:
            first = await alpha.arrived("tools/list")
            tasks = await crowd(gateway, "tools/list", count, token=token, already=1)
            leader.leave()
        await gateway.busy(count)
        late.set()
        answers = await asyncio.gather(*tasks)
        assert {tuple(answer.names) for answer in answers} == {("alpha__a",)}
        assert len(alpha.seen("tools/list")) == 1 + warm
        assert not first.closed.is_set()


async def test_callers_with_tokens_of_their_own_share_a_public_fetch_too():
    """What was public before is fetched once for everybody (B51); each still gets his own if it is not."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, clock=clock) as gateway,
    ):
        await gateway.ask("tools/list")
        await alpha.arrived("tools/list")
        for scope, fetches in (("public", 1), ("private", 20)):
            clock.advance(61)
            before = len(alpha.seen("tools/list"))
            late = asyncio.Event()
            alpha.on("tools/list", hang(late, then=listing("a", ttlMs=60_000, cacheScope=scope)))
            tasks = [asyncio.create_task(gateway.ask("tools/list", token=f"T{n}")) for n in range(20)]
            await gateway.busy(20)
            late.set()
            assert {answer.hints[1] for answer in await asyncio.gather(*tasks)} == {scope}
            assert len(alpha.seen("tools/list")) - before == fetches


async def test_a_crowd_of_strangers_shares_no_private_answer():
    """Each anonymous caller has its own fetch once the list turns out private (C-19, C-34)."""
    async with (
        ScriptedUpstream(tools=[tool("a")], scope="private") as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        late = asyncio.Event()
        numbers = iter(range(100))

        async def numbered(exchange):
            await late.wait()
            await listing(f"n{next(numbers)}", ttlMs=60_000, cacheScope="private")(exchange)

        alpha.on("tools/list", numbered)
        tasks = await crowd(gateway, "tools/list", 10)
        late.set()
        assert len({tuple(answer.names) for answer in await asyncio.gather(*tasks)}) == 10


async def test_a_failed_fetch_reaches_everybody_who_waited_and_nobody_later():
    """Not cached, and nobody hangs (B51)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        late = asyncio.Event()
        alpha.once("tools/list", hang(late, then=status(500)))
        tasks = await crowd(gateway, "tools/list", 20, token=ANN)
        late.set()
        assert {answer.code for answer in await asyncio.gather(*tasks)} == {-32603}
        assert len(alpha.seen("tools/list")) == 1
        assert (await gateway.ask("tools/list", token=ANN)).names == ["alpha__a"]


async def test_the_last_to_leave_ends_the_fetch():
    """Nobody waits any more: the upstream's response is closed (S-21)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.on("tools/list", hang())
        async with gateway.open("tools/list", token=ANN):
            asked = await alpha.arrived("tools/list")
        await asked.closed.wait()


async def test_a_reader_who_leaves_does_not_break_the_read_of_others():
    """Progress goes to whoever began the fetch; he is gone, the fetch goes on (C-34)."""
    clock = Clock()
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}, clock=clock) as gateway:
        read = {"contents": [{"uri": "a:1", "text": "x"}], "ttlMs": 60_000, "cacheScope": "public"}
        alpha.once("resources/read", result(read))
        await gateway.ask("resources/read", {"uri": "alpha+a:1"})
        await alpha.arrived("resources/read")
        clock.advance(61)
        told, late = asyncio.Event(), asyncio.Event()

        async def reporting(exchange):
            token = exchange.received.meta["progressToken"]

            def step(value):
                params = {"progressToken": token, "progress": value}
                return event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

            whole = {"resultType": "complete", **read}
            done = event({"jsonrpc": "2.0", "id": exchange.id, "result": whole})
            await sse(step(1), told, step(2), step(3), late, done)(exchange)

        alpha.on("resources/read", reporting)
        params = {"uri": "alpha+a:1"}
        async with gateway.open("resources/read", params, meta={"progressToken": "p"}) as leader:
            assert (await leader.event())["params"] == {"progressToken": "p", "progress": 1}
            tasks = await crowd(gateway, "resources/read", 3, params, already=1)
            leader.leave()
        told.set()
        late.set()
        answers = await asyncio.gather(*tasks)
        assert {json.dumps(answer.result["contents"]) for answer in answers} == {
            json.dumps([{"uri": "alpha+a:1", "text": "x"}])
        }
        assert len(alpha.seen("resources/read")) == 2
