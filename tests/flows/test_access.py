"""Rules say who may see and use what: in lists, calls, reads, prompts, completions, tasks, streams (Z-08).

Callers are told apart by endpoint here, and prove nothing: what rules make of those who do, is in
test_access_callers.
"""

import json
import posixpath
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.listening import RESOURCES_CHANGED, TOOLS_CHANGED, UPDATED, listening, quiet, told, uris
from tests.support.running import running
from tests.support.scripted import ScriptedUpstream, error, result, tool

SEARCH = "com.example/search"
TASKS = "io.modelcontextprotocol/tasks"
ABLE = {"extensions": {TASKS: {}}}
TASK = {
    "resultType": "task",
    "taskId": "t-1",
    "status": "working",
    "createdAt": "2026-11-30T10:00:00Z",
    "lastUpdatedAt": "2026-11-30T10:00:01Z",
    "ttlMs": 60_000,
}
RULES = [
    {"endpoints": ["/all"]},
    {"upstreams": ["beta"], "deny": True},
    {"tools": ["hidden*"], "prompts": ["hidden*"], "resources": ["note://hidden*"], "deny": True},
    {"tools": ["forbidden*"], "deny": True, "refusal": "challenge"},
    {
        "tools": ["scoped*"],
        "prompts": ["scoped*"],
        "resources": ["note://scoped*"],
        "scopes": ["read", "write"],
    },
    {"tools": ["listed*"], "resources": ["note://listed*"], "scopes": ["read"], "refusal": "list"},
    {},
]
RULED = {"access": {"rules": RULES}, "endpoints": {"/mcp": {}, "/all": {}}}
OF_ALPHA = {"rules": RULES[2:]}
EVERYBODY = {"path": "/all"}


def resource(uri, **members):
    return {"uri": uri, "name": uri, **members}


@pytest.fixture
async def alpha():
    async with ScriptedUpstream(
        tools=[tool(name) for name in ("open", "hidden", "forbidden", "scoped", "listed")],
        prompts=[{"name": name} for name in ("open", "hidden", "scoped")],
        resources=[resource(f"note://{name}") for name in ("open", "hidden", "scoped", "listed")],
        templates=[{"uriTemplate": f"note://{name}/{{id}}", "name": name} for name in ("open", "hidden")],
    ) as alpha:
        alpha.capabilities["extensions"] = {TASKS: {}}
        alpha.instructions = "alpha says hello"
        yield alpha


@pytest.fixture
async def beta():
    async with ScriptedUpstream(
        tools=[tool("secret")],
        prompts=[{"name": "secret"}],
        resources=[resource("note://secret"), resource("https://example.com/shared")],
    ) as beta:
        beta.instructions = "beta says hello"
        beta.capabilities["experimental"] = {"beta": {}}
        yield beta


@pytest.fixture
async def gateway(alpha, beta):
    async with running({"alpha": alpha, "beta": beta}, extensions=[TASKS], **RULED) as gateway:
        yield gateway


# Lists


@pytest.mark.parametrize(
    ("method", "shown"),
    [
        ("tools/list", ["alpha__open", "alpha__listed"]),
        ("prompts/list", ["alpha__open"]),
        ("resources/list", ["alpha+note://open", "alpha+note://listed"]),
        ("resources/templates/list", ["alpha+note://open/{id}"]),
    ],
)
async def test_lists_hold_what_the_caller_may_use_or_may_ask_for(gateway, method, shown):
    """In the order they always have, under the names they always have."""
    assert (await gateway.ask(method)).names == shown
    everything = (await gateway.ask(method, **EVERYBODY)).names
    assert len(everything) > len(shown)
    assert [name for name in everything if name in shown] == shown
    assert (await gateway.ask(method)).names == shown


async def test_a_filtered_list_is_private_to_everybody_on_the_way(gateway, alpha):
    """Though it is made once for all who are shown the same, and is public at its servers (C-21, C-22)."""
    first = await gateway.ask("tools/list")
    ttl, scope = first.hints
    assert ttl > 0
    assert scope == "private"
    assert "private" in (first.header("cache-control") or "")
    again = await gateway.ask("tools/list", token="somebody-else")
    assert again.names == first.names
    assert (again.header("mcp-gateway-cache") or "").startswith("hit")
    assert len(alpha.seen("tools/list")) == 1
    read = await gateway.ask("resources/read", {"uri": "alpha+note://open"})
    assert read.hints[1] == "private"
    assert "private" in (read.header("cache-control") or "")


async def test_an_upstream_out_of_reach_is_not_asked_and_not_missed(alpha, beta):
    """Neither its names nor its troubles are shown."""
    beta.on("*", error(-32603, "no"))
    async with running({"alpha": alpha, "beta": beta}, settled=False, **RULED) as gateway:
        listed = await gateway.ask("tools/list")
        assert listed.names == ["alpha__open", "alpha__listed"]
        assert listed.missing == []
        assert (await gateway.ask("tools/call", {"name": "beta__secret"})).code == -32602
        assert not beta.seen("tools/list")


async def test_pages_of_a_list_hold_what_the_caller_may_see(alpha):
    """A page for a page."""
    alpha.tools = [tool(f"{kind}{n}") for n in range(6) for kind in ("open", "hidden")]
    async with running({"alpha": alpha}, limits={"page_size": 2}, access=OF_ALPHA) as gateway:
        pages = await gateway.pages("tools/list")
        assert [page.names for page in pages] == [
            [f"alpha__open{n}", f"alpha__open{n + 1}"] for n in range(0, 6, 2)
        ]
        assert {page.hints[1] for page in pages} == {"private"}


async def test_discover_tells_of_what_the_caller_may_reach(gateway):
    """Instructions and capabilities of other upstreams are left out."""
    shown = (await gateway.ask("server/discover")).result
    assert "alpha says hello" in shown["instructions"]
    assert "beta" not in json.dumps(shown)
    everything = (await gateway.ask("server/discover", **EVERYBODY)).result
    assert "beta says hello" in everything["instructions"]


async def test_discover_tells_of_kinds_that_the_caller_may_use(alpha):
    """Whoever may not use any tool has no tools to list or call, nor tasks."""
    rules = [{"prompts": ["*"]}]
    async with running({"alpha": alpha}, extensions=[TASKS], access={"rules": rules}) as gateway:
        shown = (await gateway.ask("server/discover")).result["capabilities"]
        assert "prompts" in shown
        assert not {"tools", "resources"} & shown.keys()
        assert TASKS not in shown.get("extensions", {})
        for method, params in [("tools/list", {}), ("tools/call", {"name": "alpha__open"})]:
            assert (await gateway.ask(method, params)).code == -32601


async def test_whoever_may_use_nothing_is_told_so(alpha):
    """An empty gateway, not a broken one."""
    async with running({"alpha": alpha}, access={"rules": [{"callers": ["corp:*"]}]}) as gateway:
        assert (await gateway.ask("server/discover")).result["capabilities"] == {}
        assert (await gateway.ask("tools/list")).code == -32601
        assert not alpha.seen("tools/list")


# Hidden is unknown, to the byte


@pytest.mark.parametrize(
    ("method", "hidden", "unknown"),
    [
        ("tools/call", {"name": "alpha__hidden"}, {"name": "alpha__absent"}),
        ("tools/call", {"name": "beta__secret"}, {"name": "beta__absent"}),
        ("tools/call", {"name": "beta__secret"}, {"name": "zeta__absent"}),
        ("prompts/get", {"name": "alpha__hidden"}, {"name": "alpha__absent"}),
        ("prompts/get", {"name": "beta__secret"}, {"name": "beta__absent"}),
        ("resources/read", {"uri": "beta+note://secret"}, {"uri": "zeta+note://absent"}),
    ],
)
async def test_what_is_hidden_looks_like_what_nobody_has(gateway, alpha, beta, method, hidden, unknown):
    """Status, headers and body are the same, but for the name that the client wrote itself."""
    await gateway.ask(method, hidden, **EVERYBODY)
    asked = len(alpha.seen(method)) + len(beta.seen(method))
    answers = [await gateway.ask(method, params) for params in (hidden, unknown)]
    told = [
        (
            answer.status,
            answer.header("content-type"),
            answer.header("cache-control"),
            _masked(answer, params),
        )
        for answer, params in zip(answers, (hidden, unknown), strict=True)
    ]
    assert told[0] == told[1]
    assert answers[0].code == -32602
    assert len(alpha.seen(method)) + len(beta.seen(method)) == asked


@pytest.mark.parametrize(
    "refusal",
    [
        error(-32002, "Not here, sorry", {"uri": "note://absent", "more": 1}),
        error(-32602, "note://absent: no such file"),
    ],
)
async def test_a_hidden_resource_of_a_reachable_upstream_is_not_found(gateway, alpha, refusal):
    """As it is said of one that its server has not, in whatever words that says it."""
    alpha.on("resources/read", refusal)
    unknown = await gateway.ask("resources/read", {"uri": "alpha+note://absent"})
    hidden = await gateway.ask("resources/read", {"uri": "alpha+note://hidden"})
    assert _masked(hidden, {"uri": "alpha+note://hidden"}) == _masked(unknown, {"uri": "alpha+note://absent"})
    assert (hidden.status, hidden.code) == (unknown.status, unknown.code)
    assert [seen.params["uri"] for seen in alpha.seen("resources/read")] == ["note://absent"]


@pytest.mark.parametrize("kind", ["prompt", "resource"])
async def test_completions_for_what_is_hidden_are_those_for_what_nobody_has(gateway, alpha, kind):
    """By name, URI or template."""

    def about(name):
        key, place = ("name", f"alpha__{name}") if kind == "prompt" else ("uri", f"beta+note://{name}/{{id}}")
        return {"ref": {"type": f"ref/{kind}", key: place}, "argument": {"name": "id", "value": "x"}}

    answers = [await gateway.ask("completion/complete", about(name)) for name in ("hidden", "absent")]
    assert [answer.code for answer in answers] == [-32602, -32602]
    texts = [
        answer.body.replace(name, b"*") for answer, name in zip(answers, (b"hidden", b"absent"), strict=True)
    ]
    assert texts[0] == texts[1]
    assert not alpha.seen("completion/complete")


async def test_a_hidden_method_is_not_served(alpha):
    """Also where the only upstream would take any; what it does not know is told in the same words."""
    scoped = {"methods": ["com.example/scoped"], "scopes": ["read"]}
    rules = [{"methods": ["com.example/open", "com.example/absent"]}, scoped, {"tools": ["*"]}]
    async with running({"alpha": alpha}, access={"rules": rules}) as gateway:
        alpha.on("com.example/open", result({}))
        assert (await gateway.ask("com.example/open", judged=False)).status == 200
        same = {"X-Request-Id": "the-same"}  # else each answer has one of its own
        hidden = await gateway.ask("com.example/hidden", headers=same)
        for method in ("tasks/absent.hidden", "com.example/absent"):
            unknown = await gateway.ask(method, headers=same)
            assert (hidden.status, hidden.code) == (unknown.status, unknown.code) == (404, -32601)
            assert unknown.body.replace(method.encode(), b"com.example/hidden") == hidden.body
            assert _headers(unknown) == _headers(hidden)
        assert len(alpha.seen("com.example/absent")) == 1
        assert (await gateway.ask("com.example/scoped")).status == 403
        assert not alpha.seen("com.example/hidden")
        assert not alpha.seen("com.example/scoped")


# What takes more than the caller has


@pytest.mark.parametrize(
    ("method", "params", "scopes"),
    [
        ("tools/call", {"name": "alpha__scoped"}, "read write"),
        ("tools/call", {"name": "alpha__listed"}, "read"),
        ("prompts/get", {"name": "alpha__scoped"}, "read write"),
        ("resources/read", {"uri": "alpha+note://scoped"}, "read write"),
        ("resources/read", {"uri": "alpha+note://scoped-and-not-listed"}, "read write"),
        ("resources/read", {"uri": "alpha+note://listed"}, "read"),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/resource", "uri": "alpha+note://scoped"},
                "argument": {"name": "id", "value": "x"},
            },
            "read write",
        ),
    ],
)
async def test_missing_scopes_are_named_all_at_once(gateway, alpha, method, params, scopes):
    """In one challenge, and before anybody is asked or the cache is looked into (Z-04)."""
    await gateway.ask(method, params, **EVERYBODY)
    asked = len(alpha.seen(method))
    refused = await gateway.ask(method, params)
    assert refused.status == 403
    challenge = refused.header("www-authenticate") or ""
    assert 'error="insufficient_scope"' in challenge
    assert f'scope="{scopes}"' in challenge
    assert len(alpha.seen(method)) == asked


async def test_what_is_denied_openly_is_refused_without_a_challenge(gateway, alpha):
    """No token would help, so no client is sent to fetch one."""
    refused = await gateway.ask("tools/call", {"name": "alpha__forbidden"})
    assert refused.status == 403
    assert "insufficient_scope" not in (refused.header("www-authenticate") or "")
    assert not alpha.seen("tools/call")


async def test_policy_is_decided_before_mirrored_arguments_are_compared(alpha):
    """Else the refusal would tell what the tool's schema is (S-06)."""
    schema = {"type": "object", "properties": {"q": {"type": "string", "x-mcp-header": "Q"}}}
    alpha.tools = [tool("hidden", inputSchema=schema), tool("scoped", inputSchema=schema), tool("open")]
    async with running({"alpha": alpha}, access=OF_ALPHA) as gateway:
        for name, status in (("hidden", 400), ("scoped", 403)):
            params = {"name": f"alpha__{name}", "arguments": {"q": "a"}}
            refused = await gateway.ask("tools/call", params, headers={"Mcp-Param-Q": "b"})
            assert refused.status == status
            assert b"Mcp-Param" not in refused.body


# URIs that servers spell otherwise

DETOURS = (
    "file:///data/public/%3f/../../../secret/x",
    "file:///data/public/%23/../../../secret/x",
    "file:///data/public/?/../../../secret/x",
    "file:///data/public/%252e%252e/%2e%2e/secret/x",
    "file:///data/public/a%5c..%5c..%5c..%5csecret/x",
)
SPELLINGS = (
    "file:/secret/x",
    "file:secret/x",
    "file://localhost/secret/x",
    " file:///secret/x",
    "file:///a/%23/../../secret/x",
    "file:///s%65cret/x",
    "file:///secret/x#",
    "file:///secret/x/",
)


async def normalising(exchange):
    """Read what a forgiving server reads in a URI."""
    uri = exchange.received.params["uri"].strip()
    path = posixpath.normpath("/" + unquote(unquote(urlsplit(uri).path)).replace("\\", "/").lstrip("/"))
    await result({"contents": [{"uri": uri, "text": f"READ {path}"}]})(exchange)


@pytest.mark.parametrize(
    ("access", "others"),
    [
        ({"rules": [{"resources": ["file:///data/public/*"]}]}, (*DETOURS, *SPELLINGS)),
        ({"rules": [{"resources": ["file:///secret/*"], "deny": True}, {}]}, (*DETOURS, *SPELLINGS)),
    ],
)
async def test_no_spelling_of_a_uri_leads_to_what_it_may_not(alpha, access, others):
    """Neither in reads nor completions nor streams; what may be read is, however its names are encoded."""
    alpha.on("resources/read", normalising)
    async with running({"alpha": alpha}, access=access) as gateway:
        for uri in ("file:///data/public/a", "file:///data/public/a%20b%2Fc%3Fd%23%C3%A9?x=1#y"):
            assert (
                b"READ /data/public/a" in (await gateway.ask("resources/read", {"uri": f"alpha+{uri}"})).body
            )
        asked = len(alpha.seen("resources/read"))
        for uri in others:
            absent = await gateway.ask("resources/read", {"uri": f"alpha+{uri}"})
            assert (absent.code, b"READ" in absent.body) == (-32602, False), uri
            ref = {"type": "ref/resource", "uri": f"alpha+{uri}/{{id}}"}
            about = {"ref": ref, "argument": {"name": "id", "value": "x"}}
            assert (await gateway.ask("completion/complete", about)).code == -32602
        assert len(alpha.seen("resources/read")) == asked
        assert not alpha.seen("completion/complete")
        wanted = uris(*sorted(f"alpha+{uri}" for uri in ("file:///data/public/a", *others)))
        async with listening(gateway, wanted) as stream:  # granted like what nobody has
            (seen,) = [one for one in alpha.listens if "resourceSubscriptions" in one.wanted]
            assert seen.wanted["resourceSubscriptions"] == ["file:///data/public/a"]
            for uri in ("file:///secret/x", *others, "file:///data/public/a"):
                await alpha.notify("notifications/resources/updated", uri=uri)
            assert await told(stream) == (UPDATED, "alpha+file:///data/public/a")


async def test_a_uri_that_readers_disagree_on_may_be_read_where_it_is_listed(alpha):
    """Its server knows what it means by it."""
    mine, its = "db://ann@server/mine", "db://ann@server/unlisted"
    alpha.resources.append(resource(mine))
    async with running({"alpha": alpha}, access={"rules": [{"resources": ["db://*"]}]}) as gateway:
        assert (await gateway.ask("resources/list")).names == [f"alpha+{mine}"]
        assert (await gateway.ask("resources/read", {"uri": f"alpha+{mine}"})).status == 200
        assert (await gateway.ask("resources/read", {"uri": f"alpha+{its}"})).code == -32602
        assert [seen.params["uri"] for seen in alpha.seen("resources/read")] == [mine]


# Others may have what is hidden


async def test_a_uri_that_two_upstreams_list_leads_to_the_one_that_may_be_read(alpha, beta):
    """Whoever may not know of the first is given the second's, in lists and reads alike (A-41)."""
    shared = "https://example.com/shared"
    alpha.resources.append(resource(shared))
    rules = [{"endpoints": ["/all"]}, {"upstreams": ["beta"], "deny": True}, {}]
    upstreams = {"beta": beta, "alpha": alpha}
    async with running(upstreams, access={"rules": rules}, endpoints=RULED["endpoints"]) as gateway:
        for method in ("resources/list", "resources/read"):
            await gateway.ask(method, {"uri": shared} if method == "resources/read" else None, **EVERYBODY)
        assert len(beta.seen("resources/read")) == 1
        assert shared in (await gateway.ask("resources/list")).names
        assert (await gateway.ask("resources/read", {"uri": shared})).status == 200
        assert len(beta.seen("resources/read")) == 1
        assert [seen.params["uri"] for seen in alpha.seen("resources/read")] == [shared]


async def test_a_uri_that_nobody_lists_leads_to_who_may_be_asked_for_it(alpha, beta):
    """The first in the configuration from which it is not hidden."""
    rules = [{"upstreams": ["beta"], "resources": ["https://*"], "deny": True}, {}]
    async with running({"beta": beta, "alpha": alpha}, access={"rules": rules}) as gateway:
        await gateway.ask("resources/read", {"uri": "https://example.com/unlisted"})
        assert len(alpha.seen("resources/read")) == 1
        assert not beta.seen("resources/read")


# Tasks


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_task_is_its_tools(alpha, method):
    """Whoever may not call the tool may not ask about its tasks, whoever gave him the id."""
    alpha.on("tools/call", result(TASK))
    endpoints = {"/mcp": {}}
    secrets = {"keys": ["a-key-of-all-replicas"]}
    given = {}
    async with running({"alpha": alpha}, extensions=[TASKS], secrets=secrets, endpoints=endpoints) as before:
        for name in ("open", "hidden", "scoped"):
            promised = await before.ask("tools/call", {"name": f"alpha__{name}"}, capabilities=ABLE)
            given[name] = {"taskId": promised.result["taskId"], "inputResponses": {}}
    alpha.on(method, result({**TASK, "resultType": "complete"}))
    async with running({"alpha": alpha}, extensions=[TASKS], secrets=secrets, access=OF_ALPHA) as gateway:
        await gateway.ask("tools/list")
        assert (await gateway.ask(method, given["open"], capabilities=ABLE)).status == 200
        asked = len(alpha.seen(method))
        hidden = await gateway.ask(method, given["hidden"], capabilities=ABLE)
        unknown = await gateway.ask(method, {**given["open"], "taskId": "none"}, capabilities=ABLE)
        assert hidden.body == unknown.body
        assert (await gateway.ask(method, given["scoped"], capabilities=ABLE)).status == 403
        assert len(alpha.seen(method)) == asked


async def test_a_stream_hears_of_tasks_of_tools_that_may_be_called(alpha):
    """The rest is left out, like tasks of others."""
    alpha.on("tools/call", result(TASK))
    settings = {"extensions": [TASKS], "secrets": {"keys": ["a-key-of-all-replicas"]}}
    ids = []
    async with running({"alpha": alpha}, **settings) as before:
        for number, name in enumerate(("open", "hidden", "scoped")):
            alpha.on("tools/call", result({**TASK, "taskId": f"t-{number}"}))
            promised = await before.ask("tools/call", {"name": f"alpha__{name}"}, capabilities=ABLE)
            ids.append(promised.result["taskId"])
    async with running({"alpha": alpha}, access=OF_ALPHA, **settings) as gateway:
        await gateway.ask("tools/list")
        async with listening(gateway, {"taskIds": ids}, {"taskIds": ids[:1]}, capabilities=ABLE):
            (seen,) = [one for one in alpha.listens if "taskIds" in one.wanted]
            assert seen.wanted["taskIds"] == ["t-0"]


# Streams


async def test_a_stream_is_promised_what_its_client_may_read(gateway, alpha):
    """What takes scopes or leads nowhere is left out; what is hidden is granted like what nobody has."""
    await gateway.ask("resources/list", **EVERYBODY)
    granted = uris("alpha+note://absent", "alpha+note://hidden", "alpha+note://open")
    wanted = uris(*granted["resourceSubscriptions"], "alpha+note://scoped", "beta+note://secret")
    async with listening(gateway, wanted, granted) as stream:
        (seen,) = [one for one in alpha.listens if "resourceSubscriptions" in one.wanted]
        assert seen.wanted["resourceSubscriptions"] == ["note://absent", "note://open"]
        await alpha.notify("notifications/resources/updated", uri="note://hidden")
        await alpha.notify("notifications/resources/updated", uri="note://open")
        assert await told(stream) == (UPDATED, "alpha+note://open")


async def test_a_stream_for_nothing_but_what_is_hidden_is_like_one_for_what_nobody_has(gateway, alpha):
    """To the shape of what is acknowledged."""
    for name in ("hidden", "absent"):
        wanted = uris(f"alpha+note://{name}")
        async with listening(gateway, wanted) as stream:
            await alpha.notify("notifications/resources/updated", uri="note://hidden")
            await quiet(gateway)
            stream.leave()


async def test_nothing_is_promised_of_an_upstream_that_tells_of_no_updates(alpha):
    """Neither of what is hidden nor of what nobody has."""
    alpha.capabilities["resources"] = {}
    async with running({"alpha": alpha}, access=OF_ALPHA) as gateway:
        wanted = uris("alpha+note://absent", "alpha+note://hidden")
        async with listening(gateway, wanted, {}):
            pass


async def test_a_notice_of_an_extension_is_for_those_who_may_reach_its_upstream(alpha, beta):
    """Nobody else learns that it is there (L-22)."""
    found = "notifications/com.example/search/found"
    beta.capabilities["extensions"] = {SEARCH: {}}
    options = {"capabilities": {"extensions": {SEARCH: {}}}, "judged": False}
    tools = {"toolsListChanged": True}
    async with (
        running({"alpha": alpha, "beta": beta}, extensions=[SEARCH], **RULED) as gateway,
        listening(gateway, tools, **options) as stream,
        listening(gateway, tools, **EVERYBODY, **options) as everybody,
    ):
        await beta.notify(found, n=1)
        assert (await everybody.event())["method"] == found
        await alpha.notify("notifications/tools/list_changed")
        assert await told(stream) == (TOOLS_CHANGED, None)


async def test_an_upstream_out_of_reach_is_not_shown_the_credential_of_who_listens(alpha, beta):
    """Where an upstream knows its callers it is followed as each, and only for those who may reach it."""
    upstreams = {"alpha": alpha, "beta": {"url": beta.url, "auth": "forward"}}
    tools = {"toolsListChanged": True}
    async with (
        running(upstreams, **RULED) as gateway,
        listening(gateway, tools, token="TOK-ann"),
        listening(gateway, tools, token="TOK-bob", **EVERYBODY),
    ):
        await beta.listening()
        shown = {seen.header("authorization") for seen in beta.seen("subscriptions/listen")}
        assert shown == {"Bearer TOK-bob"}


async def test_a_stream_hears_of_lists_of_upstreams_that_it_may_reach(gateway, alpha, beta):
    """What happens at others is nothing to it."""
    wanted = {"toolsListChanged": True, "resourcesListChanged": True}
    async with listening(gateway, wanted) as stream, listening(gateway, wanted, **EVERYBODY) as everybody:
        await beta.notify("notifications/tools/list_changed")
        assert await told(everybody) == (TOOLS_CHANGED, None)
        await quiet(gateway)
        await alpha.notify("notifications/resources/list_changed")
        assert await told(stream) == (RESOURCES_CHANGED, None)


async def test_a_stream_is_not_promised_lists_that_nobody_has_for_it(alpha):
    """Whoever may not use tools hears nothing of them."""
    async with running({"alpha": alpha}, access={"rules": [{"prompts": ["*"]}]}) as gateway:
        wanted = {"toolsListChanged": True, "promptsListChanged": True}
        async with listening(gateway, wanted, {"promptsListChanged": True}):
            pass


@pytest.mark.parametrize("subresources", ["exact", "parent"])
async def test_updates_below_a_resource_are_told_of_what_may_be_read(alpha, subresources):
    """Who listens to a folder is not told the names of what is hidden in it."""
    alpha.resources = [resource("note://folder/")]
    rules = [{"resources": ["note://folder/hidden*"], "deny": True}, {}]
    subscriptions = {"subresources": subresources}
    async with (
        running({"alpha": alpha}, access={"rules": rules}, subscriptions=subscriptions) as gateway,
        listening(gateway, uris("alpha+note://folder/")) as stream,
    ):
        await alpha.notify("notifications/resources/updated", uri="note://folder/hidden")
        await quiet(gateway)
        await alpha.notify("notifications/resources/updated", uri="note://folder/open")
        place = "alpha+note://folder/open" if subresources == "exact" else "alpha+note://folder/"
        assert await told(stream) == (UPDATED, place)


def _headers(answer):
    """Return what an answer says beside its body, but for when and how much."""
    return [header for header in answer.headers if header[0].lower() not in ("date", "content-length")]


def _masked(answer, params):
    (name,) = params.values()
    return answer.body.replace(name.encode(), b"*")
