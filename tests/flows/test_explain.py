"""Why an answer is cached or not, asked of the whole running gateway, and what a purge forgets."""

import asyncio
import json
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from tests.support.front import Client, Reply
from tests.support.running import ONCE, Clock, Running, running
from tests.support.scripted import ScriptedUpstream, tool

ANN, BOB = "TOK-ANN-SECRET", "TOK-BOB-SECRET"
RESOURCES = [{"uri": "a:1?key=hidden", "name": "one"}]
READ = {"uri": "alpha+a:1?key=hidden"}


async def http(gateway: Running, verb: str, path: str, body: bytes = b"", **headers: str) -> Reply:
    """Ask the operators' listener as curl does."""
    assert gateway.addresses.admin is not None
    at = urlsplit(gateway.addresses.admin)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    lines = {"Host": at.netloc, "Connection": "close", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in lines.items())
    writer.write(f"{verb} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
    try:
        return await Client(reader, writer).reply()
    finally:
        writer.transport.abort()


async def explain(gateway: Running, method: str, token: str | None = None, **query: str) -> dict[str, Any]:
    """Return what the gateway says it would do."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    reply = await http(gateway, "GET", f"/explain?{urlencode({'method': method, **query})}", **headers)
    assert reply.status == 200, reply.body
    assert b"SECRET" not in reply.body
    return dict(reply.json)


async def purge(gateway: Running, **wish: Any) -> list[dict[str, Any]]:
    """Make the gateway forget; return what it says it forgot."""
    reply = await http(gateway, "POST", "/purge", json.dumps(wish).encode(), Content_Type="application/json")
    assert reply.status == 200, reply.body
    return list(reply.json["purged"])


def verdict(said: dict[str, Any]) -> tuple[str, str]:
    return said["verdict"], said["reason"]


async def test_it_says_what_the_next_request_then_finds():
    """The same words as the header, before and after: absent, fresh, expired."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")], resources=RESOURCES) as alpha,
        running({"alpha": alpha}, clock=clock, admin="127.0.0.1:0") as gateway,
    ):
        for method, params in (("tools/list", {}), ("server/discover", {}), ("resources/read", READ)):
            for step in (0, 20, 60):
                clock.advance(step)
                source, reason = verdict(await explain(gateway, method, **params))
                answer = await gateway.ask(method, params)
                assert answer.header("mcp-gateway-cache") == f"{source.lower()}; reason={reason}", (
                    method,
                    step,
                )


async def test_it_shows_the_entry_and_its_key_without_what_may_be_secret():
    """Arm, scope, age, what is left; hashes of settings, profile and partition; no query of a URI."""
    clock = Clock()
    async with (
        ScriptedUpstream(resources=RESOURCES, scope="private") as alpha,
        running({"alpha": alpha}, clock=clock, admin="127.0.0.1:0") as gateway,
    ):
        await gateway.ask("resources/read", READ, token=ANN)
        clock.advance(20)
        said = await explain(gateway, "resources/read", ANN, **READ)
        assert "hidden" not in json.dumps(said)
        ((lookup,),) = (part["lookups"] for part in said["parts"])
        assert (lookup["arm"], lookup["scope"], lookup["age"], lookup["remaining"]) == (
            "private", "private", 20, 40
        )  # fmt: skip
        assert lookup["key"]["upstream"] == "alpha"
        assert lookup["key"]["target"].startswith("a:1?#")
        assert lookup["key"]["partition"] == said["caller"] != "anonymous"


async def test_private_is_explained_to_each_caller():
    """Ann's own, Bob's to be fetched for himself, and nobody's without a token (C-18, C-19)."""
    async with (
        ScriptedUpstream(resources=RESOURCES, scope="private") as alpha,
        running({"alpha": alpha}, clock=Clock(), admin="127.0.0.1:0") as gateway,
    ):
        await gateway.ask("resources/read", READ, token=ANN)
        assert verdict(await explain(gateway, "resources/read", ANN, **READ)) == ("HIT", "fresh")
        assert verdict(await explain(gateway, "resources/read", BOB, **READ)) == ("MISS", "private")
        assert verdict(await explain(gateway, "resources/read", **READ)) == ("BYPASS", "anonymous")


async def test_a_joined_list_is_explained_part_by_part():
    """One part without hints keeps the whole from being remembered; each page of a part is its own entry."""
    async with (
        ScriptedUpstream(tools=[tool("a"), tool("b")]) as alpha,
        ScriptedUpstream(tools=[tool("c")], ttl_ms=0) as beta,
        running({"alpha": alpha, "beta": beta}, clock=Clock(), admin="127.0.0.1:0") as gateway,
    ):
        alpha.page_size = 1
        await gateway.ask("tools/list")
        said = await explain(gateway, "tools/list")
        assert verdict(said) == ("BYPASS", "ttl")
        assert said["view"] == {"remembered": False}
        first, second = said["parts"]
        assert (verdict(first), len(first["lookups"])) == (("HIT", "fresh"), 2)
        assert verdict(second) == ("BYPASS", "ttl")
        one = await explain(gateway, "tools/list", name="alpha__a")
        assert [part["upstream"] for part in one["parts"]] == ["alpha"]


async def test_a_remembered_join_and_what_ended_it():
    """HIT with its age; after a change the parts say generation."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}, clock=clock, admin="127.0.0.1:0") as gateway,
    ):
        await gateway.ask("tools/list")
        clock.advance(10)
        said = await explain(gateway, "tools/list")
        assert verdict(said) == ("HIT", "fresh")
        assert said["view"] == {"remembered": True, "scope": "public", "age": 10, "remaining": 50}
        assert await purge(gateway, upstream="beta") == [{"upstream": "beta", "method": None, "uri": None}]
        said = await explain(gateway, "tools/list")
        assert verdict(said) == ("MISS", "generation")
        assert [verdict(part) for part in said["parts"]] == [("HIT", "fresh"), ("MISS", "generation")]


async def test_an_upstream_that_is_down_and_one_that_has_no_such_list():
    """The first makes the whole partial, the second is not asked."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, ScriptedUpstream() as beta:
        beta.capabilities = {"prompts": {}}
        servers = {"alpha": alpha, "beta": beta, "gone": "http://127.0.0.1:9/mcp"}
        async with running(servers, clock=Clock(), pace=ONCE, admin="127.0.0.1:0") as gateway:
            await gateway.ask("tools/list")
            said = await explain(gateway, "tools/list")
            assert verdict(said) == ("BYPASS", "partial")
            alpha_part, beta_part, gone = said["parts"]
            assert verdict(alpha_part) == ("HIT", "fresh")
            assert ("verdict" in beta_part, beta_part["lookups"]) == (False, [])
            assert verdict(gone) == ("BYPASS", "upstream-down")


async def test_an_operators_rule_is_shown():
    """What lives by a floor says so (C-24)."""
    async with (
        ScriptedUpstream(tools=[tool("a")], ttl_ms=0) as alpha,
        running(
            {"alpha": {"url": alpha.url, "cache": {"min_ttl": {"tools/list": 30.0}}}},
            clock=Clock(),
            admin="127.0.0.1:0",
        ) as gateway,
    ):
        await gateway.ask("tools/list", token=ANN)
        said = await explain(gateway, "tools/list", ANN)
        (lookup,) = said["parts"][0]["lookups"]
        assert (lookup["verdict"], lookup["remaining"], lookup["overrides"]) == ("HIT", 30, ["min_ttl"])


async def test_it_asks_no_upstream_counts_nothing_and_makes_nothing_last_longer():
    """A cold gateway stays cold, a warm one as warm as it was."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")], resources=RESOURCES) as alpha,
        ScriptedUpstream(tools=[tool("b")], resources=RESOURCES) as beta,
        running({"alpha": alpha, "beta": beta}, clock=clock, admin="127.0.0.1:0") as gateway,
    ):
        asked = len(alpha.requests), len(beta.requests)
        for token in (None, ANN):
            for method, query in (
                ("tools/list", {}),
                ("server/discover", {}),
                ("resources/read", READ),
                ("tools/call", {"name": "alpha__a"}),
                ("prompts/get", {"name": "x"}),
                ("completion/complete", {}),
            ):
                await explain(gateway, method, token, **query)
        assert (len(alpha.requests), len(beta.requests)) == asked
        assert await gateway.counted("cache_lookups_total") == 0
        assert gateway.runtime.cache.held == (0, 0)


async def test_what_is_never_cached_says_so_and_where_it_goes():
    """A call is a call; a name nobody listed is a problem."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, clock=Clock(), admin="127.0.0.1:0") as gateway,
    ):
        await gateway.ask("tools/list")
        said = await explain(gateway, "tools/call", name="alpha__a")
        assert (verdict(said), said["parts"][0]["upstream"]) == (("BYPASS", "method"), "alpha")
        assert "nope" in (await explain(gateway, "tools/call", name="nope"))["problem"]


async def test_a_single_call_of_a_tool_whose_results_are_kept_is_explained():
    """With its arguments, however they are spelled, and for its caller; in the words of the header."""
    clock = Clock()
    kept = {"calls": {"a": {"ttl": 60.0}}}
    async with (
        ScriptedUpstream(tools=[tool("a"), tool("b")]) as alpha,
        running({"alpha": {"url": alpha.url, "cache": kept}}, clock=clock, admin="127.0.0.1:0") as gateway,
    ):
        await gateway.ask("tools/list")

        async def said(token: str | None, arguments: str | None, name: str = "alpha__a") -> tuple[str, str]:
            query = {"name": name} | ({} if arguments is None else {"arguments": arguments})
            return verdict(await explain(gateway, "tools/call", token, **query))

        async def called(token: str | None, arguments: str | None) -> str | None:
            params = {"name": "alpha__a"} | (
                {} if arguments is None else {"arguments": json.loads(arguments)}
            )
            return (await gateway.ask("tools/call", params, token=token)).header("mcp-gateway-cache")

        for token, arguments, again in (
            (ANN, '{"q":"SECRET","n":1}', '{ "n": 1, "q": "\\u0053ECRET" }'),
            (ANN, "{}", "{}"),
            (ANN, None, None),
        ):
            for step, spelled in ((0, arguments), (20, again), (60, again)):
                clock.advance(step)
                source, reason = await said(token, spelled)
                assert await called(token, spelled) == f"{source.lower()}; reason={reason}", (spelled, step)
        assert await said(BOB, '{"q":"SECRET","n":1}') == ("MISS", "private")
        assert await said(BOB, '{"q":"SECRET","n":2}') == ("MISS", "absent")
        assert (await said(None, "{}"))[0] == "BYPASS"
        assert await said(ANN, "{}", "alpha__b") == ("BYPASS", "method")
        assert await said(ANN, '{"q":1,"q":2}') == ("BYPASS", "method")
        long = '{"q":"' + "%" * 60_000 + '"}'
        assert (await said(ANN, long))[0] == "MISS"
        clock.advance(60)
        await alpha.stop()
        assert await called(ANN, "{}") is None
        assert await said(ANN, "{}") == ("BYPASS", "upstream-down")


async def test_capabilities_are_part_of_the_key():
    """A list fetched for a client with an extension is another one (C-06)."""
    ui = {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}}}
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, clock=Clock(), admin="127.0.0.1:0") as gateway,
    ):
        await gateway.ask("tools/list", capabilities=ui)
        assert verdict(await explain(gateway, "tools/list"))[0] == "MISS"
        told = await explain(gateway, "tools/list", capabilities=json.dumps(ui))
        assert verdict(told) == ("HIT", "fresh")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "say which method"),
        ("method=tools/lisst", "tools/list"),
        ("method=subscriptions/listen", "none of"),
        ("method=resources/read", "needs the uri"),
        ("method=tools/list&uri=a:1", "not asked for by uri"),
        ("method=resources/read&uri=a:1&name=x", "not asked for by name"),
        ("method=tools/list&endpoint=/nope", "no endpoint"),
        ("method=tools/list&endpont=/mcp", "is none of"),
        ("method=tools/list&capabilities=[", "JSON object"),
        ("method=tools/list&arguments={}", "go with tools/call"),
        ("method=tools/call&arguments={}", "the name of a tool"),
        ("method=prompts/get&name=a&arguments={}", "go with tools/call"),
        ("method=tools/call&name=a&arguments=[]", "arguments are a JSON object"),
        ("method=tools/call&name=a&arguments={%22q%22:tru}", "arguments are a JSON object"),
        ("method=tools/call&name=a&arguments=", "arguments are a JSON object"),
    ],
)
async def test_a_question_no_request_could_ask_is_refused(query: str, said: str):
    """400, and what would make sense."""
    async with (
        ScriptedUpstream() as alpha,
        running({"alpha": alpha}, admin="127.0.0.1:0") as gateway,
    ):
        reply = await http(gateway, "GET", f"/explain?{query}")
        assert reply.status == 400
        assert said in reply.json["error"]


# purge


async def test_a_purge_forgets_just_what_it_names():
    """One resource by either spelling, one method, one upstream, everything."""
    two = [{"uri": "a:1", "name": "one"}, {"uri": "a:2", "name": "two"}]
    async with (
        ScriptedUpstream(tools=[tool("a")], resources=two) as alpha,
        ScriptedUpstream(tools=[tool("b")], resources=two) as beta,
        running({"alpha": alpha, "beta": beta}, clock=Clock(), admin="127.0.0.1:0") as gateway,
    ):

        async def fetched(**wish: Any) -> tuple[int, ...]:
            """Return how often alpha and beta were asked for lists and reads after this purge."""
            for server in (alpha, beta):
                server.requests.clear()
            if wish:
                assert await purge(gateway, **wish)
            await gateway.ask("tools/list")
            for uri in ("alpha+a:1", "alpha+a:2", "beta+a:1"):
                await gateway.ask("resources/read", {"uri": uri})
            return tuple(
                len(server.seen(method))
                for server in (alpha, beta)
                for method in ("tools/list", "resources/read")
            )

        await fetched()
        assert await fetched() == (0, 0, 0, 0)
        assert await fetched(uri="alpha+a:1") == (0, 1, 0, 0)
        assert await fetched(upstream="beta", uri="a:1") == (0, 0, 0, 1)
        assert await fetched(method="tools/list") == (1, 0, 1, 0)
        assert await fetched(upstream="alpha", method="resources/read") == (0, 2, 0, 0)
        assert await fetched(upstream="beta") == (0, 0, 1, 1)
        assert await fetched(all=True) == (1, 2, 1, 1)
        assert await gateway.counted('cache_invalidations_total{cause="purge"') > 0


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Origin": "https://evil.example"}, b'{"all":true}', 403),
        ({"Sec-Fetch-Site": "cross-site"}, b'{"all":true}', 403),
        ({"Sec-Fetch-Site": "same-origin"}, b'{"all":true}', 403),
        ({"Content-Type": "text/plain"}, b'{"all":true}', 415),
        ({}, b"", 400),
        ({}, b"[]", 400),
        ({}, b"{}", 400),
        ({}, b'{"all":"yes"}', 400),
        ({}, b'{"all":true,"upstream":"alpha"}', 400),
        ({}, b'{"upstream":"nope"}', 400),
        ({}, b'{"upstream":7}', 400),
        ({}, b'{"upstram":"alpha"}', 400),
        ({}, b'{"method":"prompts/get"}', 400),
        ({}, b'{"caller":true}', 400),
        ({"Authorization": "Bearer T"}, b'{"caller":"T"}', 400),
        ({"Authorization": "Bearer T"}, b'{"caller":true,"all":true}', 400),
        ({"Authorization": "Bearer T"}, b'{"caller":true,"uri":"a:1"}', 400),
        ({"Authorization": "Bearer T"}, b"{}", 400),
        ({}, b'{"method":"tools/list","uri":"a:1"}', 400),
        ({}, b'{"uri":"' + b"x" * 70_000 + b'"}', 413),
    ],
)
async def test_a_purge_that_cannot_be_meant_or_comes_from_a_web_page_forgets_nothing(
    headers: dict[str, str], body: bytes, status: int
):
    """Not even from the page's own origin: a name rebound to this address would be that, too."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, clock=Clock(), admin="127.0.0.1:0") as gateway,
    ):
        await gateway.ask("tools/list")
        reply = await http(gateway, "POST", "/purge", body, **{"Content-Type": "application/json", **headers})
        assert (reply.status, "error" in reply.json) == (status, True)
        assert reply.header("access-control-allow-origin") is None
        assert (await gateway.ask("tools/list")).header("mcp-gateway-cache") == "hit; reason=fresh"
        assert (await http(gateway, "GET", "/purge")).status == 405
        assert (await http(gateway, "POST", "/explain?method=tools/list")).status == 405


# Rules of access

RULED = {
    "access": {
        "rules": [
            {"tools": ["hidden"], "deny": True},
            {"tools": ["scoped"], "scopes": ["write"]},
            {"resources": ["a:*"], "callers": ["corp:*"]},
            {"tools": ["*"]},
        ]
    }
}


async def test_explain_says_which_rule_decides():
    """By its place in the configuration, also of what the caller is told nothing of."""
    async with (
        ScriptedUpstream(tools=[tool("open"), tool("hidden"), tool("scoped")], resources=RESOURCES) as alpha,
        running({"alpha": alpha}, admin="127.0.0.1:0", **RULED) as gateway,
    ):
        await gateway.ask("tools/list")

        async def why(method, **query):
            (part,) = (await explain(gateway, method, **query))["parts"]
            return part["access"]["allowed"], part["access"]["rule"], part["access"]["why"]

        assert await why("tools/call", name="alpha__open") == (
            True,
            "access.rules[3]",
            "allowed by access.rules[3]",
        )
        assert await why("tools/list", name="alpha__hidden") == (
            False,
            "access.rules[0]",
            "hidden: access.rules[0] denies it",
        )
        assert (await why("tools/call", name="alpha__scoped"))[2] == (
            "not listed: access.rules[1] wants the scopes write"
        )
        allowed, rule, _ = await why("tools/call", name="alpha__scoped", caller="corp:ann", scopes="write")
        assert (allowed, rule) == (True, "access.rules[1]")
        told = await explain(gateway, "tools/call", name="alpha__scoped", caller="corp:ann")
        assert told["warning"] == "without `authentication` everybody is `anonymous`"
        assert "warning" not in await explain(gateway, "tools/call", name="alpha__scoped")
        assert (await why("resources/read", uri="alpha+a:1"))[:2] == (False, "access.default")
        assert (await why("resources/read", uri="alpha+a:1", caller="corp:ann"))[:2] == (
            True,
            "access.rules[2]",
        )


async def test_explain_knows_the_joined_answer_of_those_who_are_shown_the_same():
    """And says of an upstream that is out of reach that it is not asked."""
    async with (
        ScriptedUpstream(tools=[tool("open")]) as alpha,
        running({"alpha": alpha}, admin="127.0.0.1:0", **RULED) as gateway,
    ):
        await gateway.ask("tools/list")
        said = await explain(gateway, "tools/list")
        assert verdict(said) == ("HIT", "fresh")
        assert said["view"]["remembered"] is True
        assert (await explain(gateway, "tools/list", caller="corp:ann"))["view"]["remembered"] is False
        (part,) = (await explain(gateway, "prompts/list"))["parts"]
        assert part["note"] == "the rules of access hide all of it from this caller"
