"""What clients and intermediaries are told over HTTP about how an answer was come by."""

from hashlib import sha256

import pytest

from gateway.protocol.call import Change, UpstreamName
from tests.support.running import Answer, Clock, Running, running
from tests.support.scripted import ScriptedUpstream, error, hang, status, tool

ANN, BOB = "TOK-ANN", "TOK-BOB"
RESOURCES = [{"uri": "a:1", "name": "one"}]


def said(answer: Answer) -> tuple[str | None, str | None, str | None]:
    """Return how the cache took part, what may be kept, and the age."""
    return (
        answer.header("mcp-gateway-cache"),
        answer.header("cache-control"),
        answer.header("age"),
    )


async def read(gateway: Running, token: str | None = None) -> Answer:
    return await gateway.ask("resources/read", {"uri": "alpha+a:1"}, token=token)


@pytest.mark.parametrize("method", ["tools/list", "resources/read", "server/discover"])
async def test_a_life_from_the_fetch_to_its_end(method: str):
    """Fetched, served from memory with its age, gone: max-age less Age is the ttlMs that remains (C-10)."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")], resources=RESOURCES) as alpha,
        running({"alpha": alpha}, clock=clock) as gateway,
    ):
        params = {"uri": "alpha+a:1"} if method == "resources/read" else None
        answer = await gateway.ask(method, params)
        assert said(answer) == ("miss; reason=absent", "public, max-age=60", None)
        assert answer.header("vary") == "Authorization"
        clock.advance(20.5)
        answer = await gateway.ask(method, params, token=ANN)
        assert answer.hints == (39_500, "public")
        assert said(answer) == ("hit; reason=fresh", "public, max-age=59", "20")
        clock.advance(60)
        assert said(await gateway.ask(method, params)) == ("miss; reason=expired", "public, max-age=60", None)


async def test_a_private_answer_is_its_callers_and_an_anonymous_one_nobodys():
    """The reason says why it is fetched again each time (C-19)."""
    async with (
        ScriptedUpstream(resources=RESOURCES, scope="private") as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        assert said(await read(gateway, ANN))[:2] == ("miss; reason=absent", "private, max-age=60")
        assert said(await read(gateway, ANN)) == ("hit; reason=fresh", "private, max-age=60", "0")
        for _ in range(2):
            assert said(await read(gateway))[:2] == ("bypass; reason=anonymous", "private, max-age=60")


async def test_a_joined_list_is_as_old_as_its_oldest_part_and_lives_as_long_as_its_shortest():
    """Beta was fetched anew 30 seconds after alpha (C-27)."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")], ttl_ms=20_000) as beta,
        running({"alpha": alpha, "beta": beta}, clock=clock) as gateway,
    ):
        await gateway.ask("tools/list")
        clock.advance(30)
        answer = await gateway.ask("tools/list")
        assert answer.hints == (20_000, "public")
        assert said(answer) == ("miss; reason=expired", "public, max-age=50", "30")


async def test_no_hints_and_a_missing_upstream_mean_no_store():
    """Neither is kept here, so nobody else should (C-13, C-28)."""
    async with (
        ScriptedUpstream(tools=[tool("a")], ttl_ms=0) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": {"url": beta.url, "list_timeout": 0.2}}) as gateway,
    ):
        assert said(await gateway.ask("tools/list")) == ("bypass; reason=ttl", "no-store", None)
        beta.on("tools/list", hang())
        await gateway.runtime.cache.invalidate(Change(UpstreamName("beta")))
        assert said(await gateway.ask("tools/list"))[:2] == ("bypass; reason=partial", "no-store")


async def test_pages_cut_from_a_remembered_list_are_hits():
    """The first page is what the parts are; the next ones cost no upstream anything (F-21)."""
    async with (
        ScriptedUpstream(tools=[tool("a"), tool("b"), tool("c")]) as alpha,
        running({"alpha": alpha}, clock=Clock(), limits={"page_size": 2}) as gateway,
    ):
        first, second = await gateway.pages("tools/list")
        assert said(first)[0] == "miss; reason=absent"
        assert said(second)[:2] == ("hit; reason=fresh", "public, max-age=60")
        assert said(await gateway.ask("tools/list"))[0] == "hit; reason=fresh"


async def test_a_retry_with_input_responses_goes_past_the_cache():
    """Its answer depends on what the client said (C-03)."""
    async with (
        ScriptedUpstream(resources=RESOURCES) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        answer = await gateway.ask("resources/read", {"uri": "alpha+a:1", "inputResponses": {}})
        assert said(answer) == ("bypass; reason=mrtr", "no-store", None)


async def test_what_is_never_cached_says_no_store_and_no_more():
    """Calls, their errors, and refusals before a call: a 404 or 405 could be kept for ever otherwise."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        for answer in (
            await gateway.ask("tools/call", {"name": "alpha__a"}),
            await gateway.ask("tools/call", {"name": "nope"}),
            await gateway.ask("tools/list", path="/nowhere", judged=False),
            await gateway.ask("tools/list", headers={"mcp-method": "prompts/list"}),
        ):
            assert said(answer) == (None, "no-store", None)


async def test_an_error_of_a_cacheable_method_says_why_nothing_was_kept():
    """The upstream's own error, and no answer from it."""
    async with (
        ScriptedUpstream(resources=RESOURCES) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        await read(gateway)
        await gateway.runtime.cache.invalidate(Change(UpstreamName("alpha")))
        alpha.once("resources/read", error(-32000, "no"))
        assert said(await read(gateway)) == ("bypass; reason=error", "no-store", None)
        alpha.on("resources/read", status(500))
        assert said(await read(gateway)) == ("bypass; reason=upstream-down", "no-store", None)


async def test_the_headers_can_be_switched_off():
    """Then nothing may be kept by anybody, and nothing is told."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, clock=Clock(), cache={"headers": False}) as gateway,
    ):
        for _ in range(2):
            answer = await gateway.ask("tools/list")
            assert said(answer) == (None, "no-store", None)
            assert answer.header("vary") is None
        assert len(alpha.seen("tools/list")) == 1


async def test_what_is_only_for_callers_who_prove_themselves_is_private_to_caches_on_the_way():
    """Such a cache knows neither keys nor certificates; to MCP clients a public result stays public."""
    key = "mgk_" + "k" * 43
    known = {"keys": {"ci": {"hash": "sha256:" + sha256(key.encode()).hexdigest()}}}
    async with (
        ScriptedUpstream(resources=RESOURCES) as alpha,
        running({"alpha": alpha}, clock=Clock(), authentication=known) as gateway,
    ):
        for source in ("miss; reason=absent", "hit; reason=fresh"):
            answer = await read(gateway, key)
            assert said(answer)[:2] == (source, "private, max-age=60")
            assert answer.hints == (60_000, "public")


async def test_a_stream_keeps_its_own_word_on_caching():
    """Its head has left before anything is known of the result."""
    async with (
        ScriptedUpstream(resources=RESOURCES) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
        gateway.open("subscriptions/listen", {"notifications": {}}, judged=False) as exchange,
    ):
        answer = await exchange.begun()
        assert answer.header("cache-control") == "no-cache, no-transform"
        assert answer.header("mcp-gateway-cache") is None
