"""Resources of many upstreams: a URI leads where it came from, exactly as it was (B35, F-09 to F-17)."""

import pytest

from tests.support.running import Clock, running
from tests.support.scripted import ScriptedUpstream, error, result, status, tool


def resource(uri, **members):
    return {"uri": uri, "name": uri[:20], **members}


def template(text):
    return {"uriTemplate": text, "name": "t"}


ODD = [
    "config://app",
    "file:///a%20b/%7Ec?x=1&y=%2F#f",
    "FILE:///Upper",
    "urn:isbn:1",
    "a+b:x",
    "beta+a:1",
    "mailto:ann@example.com",
    "no-scheme/path",
    "memo://größe und mehr",
    "ui://widget/1.html",
    "ui://",
    "x:" + "y" * 4000,
]


async def test_equal_uris_of_two_upstreams_are_two_resources():
    """Each is readable, reaches who listed it, and comes back under the URI the client knows (B35)."""
    async with (
        ScriptedUpstream(
            resources=[resource("config://app")], templates=[template("file:///{path}")]
        ) as alpha,
        ScriptedUpstream(
            resources=[resource("config://app")], templates=[template("file:///{path}")]
        ) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        listed = await gateway.ask("resources/list")
        assert listed.names == ["alpha+config://app", "beta+config://app"]
        templates = await gateway.ask("resources/templates/list")
        assert templates.names == ["alpha+file:///{path}", "beta+file:///{path}"]
        for name, upstream in (("alpha", alpha), ("beta", beta)):
            read = await gateway.ask("resources/read", {"uri": f"{name}+config://app"})
            assert read.result["contents"][0]["uri"] == f"{name}+config://app"
            assert (await upstream.arrived("resources/read")).params["uri"] == "config://app"
            upstream.resources.append(resource("file:///x/1"))
            expanded = f"{name}+file:///x/1"
            assert (await gateway.ask("resources/read", {"uri": expanded})).result["contents"][0][
                "uri"
            ] == expanded
            assert (await upstream.arrived("resources/read")).params["uri"] == "file:///x/1"


@pytest.mark.parametrize("uri", ODD)
async def test_every_listed_uri_can_be_read_and_is_not_touched(uri):
    """No normalising, decoding or encoding; the header holds the original (F-09, F-15)."""
    async with (
        ScriptedUpstream(resources=[resource(uri)]) as alpha,
        ScriptedUpstream(resources=[resource("other:1")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        exposed = (await gateway.ask("resources/list", judged=":" in uri)).names[0]
        assert exposed != uri
        read = await gateway.ask("resources/read", {"uri": exposed}, judged=":" in uri)
        assert read.result["contents"][0]["uri"] == exposed
        assert (await alpha.arrived("resources/read")).params["uri"] == uri
        assert beta.seen("resources/read") == []


@pytest.mark.parametrize(
    "uri", ["https://x.example/a?b#c", "http://x.example", "HTTPS://X.example", "data:,x"]
)
async def test_web_addresses_stay_and_are_routed_by_who_listed_them(uri):
    """Clients may fetch them themselves (F-09); configuration order decides between two (A-41)."""
    async with (
        ScriptedUpstream(resources=[resource("other:1")]) as alpha,
        ScriptedUpstream(resources=[resource(uri, title="beta's")]) as beta,
        ScriptedUpstream(resources=[resource(uri, title="gamma's")]) as gamma,
        running({"alpha": alpha, "beta": beta, "gamma": gamma}) as gateway,
    ):
        listed = await gateway.ask("resources/list")
        assert listed.names == ["alpha+other:1", uri]
        assert listed.items[1]["title"] == "beta's"
        assert (await gateway.ask("resources/read", {"uri": uri})).result["contents"][0]["uri"] == uri
        assert (len(beta.seen("resources/read")), len(gamma.seen("resources/read"))) == (1, 0)


async def test_a_web_address_is_found_without_a_list_before_it():
    """The lists that could tell are read; a template that fits counts too (F-11)."""
    async with (
        ScriptedUpstream() as alpha,
        ScriptedUpstream(templates=[template("https://x.example/{id}")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        beta.on("resources/read", result({"contents": []}))
        assert (await gateway.ask("resources/read", {"uri": "https://x.example/7"})).status == 200
        assert (len(alpha.seen("resources/read")), len(beta.seen("resources/read"))) == (0, 1)


async def test_a_link_in_a_result_can_be_read_though_no_list_holds_it():
    """Links in tools and prompts are exposed, web addresses remembered (F-12, F-14)."""
    content = [
        {"type": "resource_link", "uri": "memo:7", "name": "m"},
        {"type": "resource", "resource": {"uri": "memo:8", "text": "t"}},
        {"type": "resource_link", "uri": "https://x.example/9", "name": "w"},
        {"type": "text", "text": "memo:7"},
        {"type": "future", "uri": "memo:7"},
    ]
    async with (
        ScriptedUpstream() as alpha,
        ScriptedUpstream(tools=[tool("a")], prompts=[{"name": "p"}]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        beta.on("tools/call", result({"content": content[:4], "structuredContent": {"uri": "memo:7"}}))
        beta.on("resources/read", result({"contents": [{"uri": "memo:7", "text": "x"}]}))
        called = await gateway.ask("tools/call", {"name": "beta__a"}, token="TOK-A")
        uris = [
            called.result["content"][0]["uri"],
            called.result["content"][1]["resource"]["uri"],
            called.result["content"][2]["uri"],
        ]
        assert uris == ["beta+memo:7", "beta+memo:8", "https://x.example/9"]
        assert called.result["content"][3]["text"] == "memo:7"
        assert called.result["structuredContent"] == {"uri": "memo:7"}
        for uri in uris:
            assert (await gateway.ask("resources/read", {"uri": uri}, token="TOK-A")).status == 200, uri
        assert [seen.params["uri"] for seen in beta.seen("resources/read")] == [
            "memo:7",
            "memo:8",
            "https://x.example/9",
        ]
        beta.on("prompts/get", result({"messages": [{"role": "user", "content": content[0]}]}))
        got = await gateway.ask("prompts/get", {"name": "beta__p"})
        assert got.result["messages"][0]["content"]["uri"] == "beta+memo:7"
        beta.on("tools/call", result({"content": content}))
        called = await gateway.ask("tools/call", {"name": "beta__a"}, judged=False)
        assert called.result["content"][4] == content[4], "a kind of block nobody knows is not touched (K-03)"


async def test_a_link_in_a_public_cached_resource_leads_everybody():
    """Whoever fetched it first: the next reader gets the hit and can follow the link too (F-11)."""
    async with (
        ScriptedUpstream() as alpha,
        ScriptedUpstream(resources=[resource("index:1")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        contents = [{"uri": "https://x.example/part", "text": "x"}]
        beta.once("resources/read", result({"contents": contents, "ttlMs": 60_000, "cacheScope": "public"}))
        beta.on("resources/read", result({"contents": []}))
        for caller in ("TOK-A", "TOK-B"):
            await gateway.ask("resources/read", {"uri": "beta+index:1"}, token=caller)
            await gateway.ask("resources/read", {"uri": "https://x.example/part"}, token=caller)
        assert alpha.seen("resources/read") == []


async def test_one_entry_serves_every_endpoint_and_namespace():
    """Stored under the upstream's own URI, rewritten on the way out (C-36)."""
    async with (
        ScriptedUpstream(resources=[resource("a:1")]) as alpha,
        running({"alpha": alpha}, endpoints={"/mcp": {}, "/two": {}}, clock=Clock()) as gateway,
    ):
        for path in ("/mcp", "/two", "/mcp"):
            read = await gateway.ask("resources/read", {"uri": "alpha+a:1"}, path=path)
            assert read.result["contents"][0]["uri"] == "alpha+a:1"
        assert len(alpha.seen("resources/read")) == 1


async def test_reads_are_kept_apart_byte_by_byte():
    """`a:%41` is not `a:A` (C-04)."""
    uris = ["a:%41", "a:A", "a:a", "a:A/"]
    async with (
        ScriptedUpstream(resources=[resource(uri) for uri in uris]) as alpha,
        running({"alpha": alpha}, clock=Clock()) as gateway,
    ):
        for uri in [*uris, *uris]:
            read = await gateway.ask("resources/read", {"uri": f"alpha+{uri}"})
            assert read.result["contents"][0]["text"] == f"content of {uri}"
        assert len(alpha.seen("resources/read")) == len(uris)


@pytest.mark.parametrize(
    "uri", ["alpha+nope:1", "nobody+a:1", "a:1", "ui://nobody/x", "ui://alpha/nope", "alpha+", "no scheme"]
)
async def test_an_unknown_resource_is_invalid_params_with_its_uri(uri):
    """The client's own spelling, never an empty `contents` (F-16)."""
    async with (
        ScriptedUpstream(resources=[resource("a:1")]) as alpha,
        ScriptedUpstream(resources=[resource("a:1")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        refused = await gateway.ask("resources/read", {"uri": uri})
        assert (refused.status, refused.code) == (400, -32602)
        assert refused.error["data"] == {"uri": uri}


@pytest.mark.parametrize(
    "answered", [error(-32002, "gone"), error(-32602, "gone"), error(-32602, "gone", {"uri": "a:1"})]
)
async def test_not_found_of_any_upstream_reads_the_same(answered):
    """-32002 of older servers too, with or without data (F-16, F-31)."""
    async with ScriptedUpstream(resources=[resource("a:1")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.on("resources/read", answered)
        refused = await gateway.ask("resources/read", {"uri": "alpha+a:1"})
        assert (refused.status, refused.code, refused.error["data"]) == (400, -32602, {"uri": "alpha+a:1"})


@pytest.mark.parametrize("uri", ["", "alpha+a:\n1", "alpha+" + "x" * 9000, 7, None, ["alpha+a:1"]])
async def test_what_is_no_uri_is_refused_unasked(uri):
    """Empty, control characters, overlong, no string (F-17)."""
    async with ScriptedUpstream(resources=[resource("a:1")]) as alpha, running({"alpha": alpha}) as gateway:
        refused = await gateway.ask(
            "resources/read", {"uri": uri}, headers=None if isinstance(uri, str) else {"mcp-name": "x"}
        )
        assert refused.status == 400
        assert alpha.seen("resources/read") == []


async def test_a_hidden_upstreams_resource_is_unknown():
    """Its prefix is nobody's on an endpoint that does not serve it (F-17, C-21), warm cache or not."""
    async with (
        ScriptedUpstream(resources=[resource("a:1")]) as alpha,
        ScriptedUpstream(resources=[resource("a:1"), resource("https://x.example/s")]) as secret,
        running(
            {"alpha": alpha, "secret": secret}, endpoints={"/mcp": {"upstreams": ["alpha"]}, "/all": {}}
        ) as gateway,
    ):
        for uri in ("secret+a:1", "https://x.example/s"):
            assert (await gateway.ask("resources/read", {"uri": uri}, path="/all")).status == 200
            assert (await gateway.ask("resources/read", {"uri": uri})).code == -32602
        assert len(secret.seen("resources/read")) == 2


async def test_one_dead_upstream_does_not_keep_web_addresses_from_the_others():
    """Its lists are skipped (B01)."""
    async with (
        ScriptedUpstream(resources=[resource("https://x.example/1")]) as alpha,
        ScriptedUpstream() as beta,
    ):
        await beta.stop()
        async with running({"beta": beta, "alpha": alpha}) as gateway:
            assert (await gateway.ask("resources/read", {"uri": "https://x.example/1"})).status == 200


# Completions (F-34)


async def test_completions_are_routed_by_what_they_are_about():
    """Prompts by exposed name, templates and resources by exposed URI; argument and context verbatim."""
    async with (
        ScriptedUpstream(prompts=[{"name": "p"}], templates=[template("a:{x}")]) as alpha,
        ScriptedUpstream(
            prompts=[{"name": "p"}], templates=[template("a:{x}"), template("https://x.example/{y}")]
        ) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        argument, context = {"name": "x", "value": "v"}, {"arguments": {"k": "1.0"}}
        for ref, original in (
            ({"type": "ref/prompt", "name": "beta__p"}, {"type": "ref/prompt", "name": "p"}),
            ({"type": "ref/resource", "uri": "beta+a:{x}"}, {"type": "ref/resource", "uri": "a:{x}"}),
            (
                {"type": "ref/resource", "uri": "https://x.example/{y}"},
                {"type": "ref/resource", "uri": "https://x.example/{y}"},
            ),
        ):
            done = await gateway.ask(
                "completion/complete", {"ref": ref, "argument": argument, "context": context}
            )
            assert done.result["completion"]["values"] == ["v-one", "v-two"]
            sent = (await beta.arrived("completion/complete")).params
            assert (sent["ref"], sent["argument"], sent["context"]) == (original, argument, context)
        assert alpha.seen("completion/complete") == []


async def test_an_upstream_without_completions_completes_to_nothing():
    """The merged capability is another upstream's; an empty answer, not -32601 (F-34)."""
    async with ScriptedUpstream(prompts=[{"name": "p"}]) as alpha, ScriptedUpstream() as beta:
        alpha.capabilities = {"prompts": {}}
        async with running({"alpha": alpha, "beta": beta}) as gateway:
            ref = {"ref": {"type": "ref/prompt", "name": "alpha__p"}, "argument": {"name": "x", "value": ""}}
            assert (await gateway.ask("completion/complete", ref)).result["completion"] == {"values": []}
            assert alpha.seen("completion/complete") == []


@pytest.mark.parametrize(
    "ref",
    [
        None,
        "alpha__p",
        {},
        {"type": "ref/prompt"},
        {"type": "ref/tool", "name": "alpha__p"},
        {"type": "ref/prompt", "name": "alpha__nope"},
        {"type": "ref/resource", "uri": "nobody+a:{x}"},
    ],
)
async def test_a_completion_about_nothing_known_is_invalid_params(ref):
    """Whatever is wrong with the reference."""
    async with (
        ScriptedUpstream(prompts=[{"name": "p"}]) as alpha,
        ScriptedUpstream() as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        params = {"argument": {"name": "x", "value": ""}} | ({} if ref is None else {"ref": ref})
        refused = await gateway.ask("completion/complete", params)
        assert (refused.status, refused.code) == (400, -32602)


async def test_a_read_that_fails_upstream_names_the_upstream_only():
    """Not its address (B13, F-33)."""
    async with ScriptedUpstream(resources=[resource("a:1")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.on("resources/read", status(500, b"<html>10.0.0.1</html>", "text/html"))
        failed = await gateway.ask("resources/read", {"uri": "alpha+a:1"})
        assert (failed.status, failed.code) == (200, -32603)
        assert failed.error["message"] == "upstream alpha: unexpected HTTP status"
