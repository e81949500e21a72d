"""What the gateway does not know: extensions let through, their methods, results and notifications."""

import json

import pytest

from tests.support.listening import SUBSCRIPTION, TOOLS, TOOLS_CHANGED, listening
from tests.support.running import running
from tests.support.scripted import (
    META,
    ScriptedUpstream,
    answer,
    error,
    event,
    notification,
    result,
    sse,
    tool,
)

ANN = "TOK-ann"
UI = "io.modelcontextprotocol/ui"
TASKS = "io.modelcontextprotocol/tasks"
SEARCH = "com.example/search"
APPS = {"extensions": {UI: {"mimeTypes": ["text/html;profile=mcp-app"]}}}
KNOWS = {"extensions": {SEARCH: {"depth": 1.0}}}


@pytest.fixture
async def alpha():
    async with ScriptedUpstream(tools=[tool("find")], resources=[{"uri": "a:1", "name": "one"}]) as alpha:
        alpha.capabilities["extensions"] = {SEARCH: {"v": 1}}
        yield alpha


@pytest.fixture
async def beta():
    async with ScriptedUpstream(tools=[tool("other")]) as beta:
        yield beta


# Which extensions are let through


@pytest.mark.parametrize(
    ("members", "told"),
    [({}, {}), ({"extensions": [SEARCH]}, KNOWS["extensions"]), ({"extensions": [TASKS]}, {})],
)
async def test_an_extension_is_let_through_when_the_operator_says_so(alpha, members, told):
    """K-01: advertised, and declared upstream for a client that declares it, with its very settings."""
    async with running({"alpha": alpha}, **members) as gateway:
        offered = (await gateway.ask("server/discover")).result["capabilities"]
        assert offered.get("extensions", {}) == ({SEARCH: {"v": 1}} if told else {})
        for capabilities in (KNOWS, {}):
            await gateway.ask("tools/call", {"name": "alpha__find"}, capabilities=capabilities)
        knowing, other = (seen.meta[f"{META}clientCapabilities"] for seen in alpha.seen("tools/call"))
        assert (knowing.get("extensions", {}), other) == (told, {})
        assert b'"depth": 1.0' in alpha.seen("tools/call")[0].body or not told


async def test_lists_differ_by_what_is_let_through_only(alpha):
    """K-12, C-06: settings of a carried extension are part of a list's profile, others make no difference."""
    async with running({"alpha": alpha}, extensions=[SEARCH]) as gateway:
        for settings in ({"depth": 1}, {"depth": 2}, {"depth": 2}):
            await gateway.ask("tools/list", capabilities={"extensions": {SEARCH: settings}})
        assert len(alpha.seen("tools/list")) == 2
        for strange in ({}, {"extensions": {"com.example/x": {"n": 1}}}):
            await gateway.ask("tools/list", capabilities=strange)
        assert len(alpha.seen("tools/list")) == 3


# Results of a kind that only an extension knows


FOREIGN = {
    "resultType": "search.partial",
    "ttlMs": 5,
    "cacheScope": "public",
    "hits": [1.0, None],
    "_meta": {"v/x": 1, f"{META}serverInfo": {"name": "theirs", "version": "1"}},
}


@pytest.mark.parametrize(
    ("method", "params"), [("tools/call", {"name": "alpha__find"}), ("resources/read", {"uri": "alpha+a:1"})]
)
async def test_a_result_of_an_extension_passes_where_both_ends_have_it(alpha, method, params):
    """K-06: as it is, but for who answers (E-24); and it is never kept."""
    alpha.on(method, result(FOREIGN))
    async with running({"alpha": alpha}, extensions=[SEARCH]) as gateway:
        for _ in range(2):
            told = await gateway.ask(method, params, capabilities=KNOWS, judged=False)
            meta = told.result["_meta"]
            assert {**told.result, "_meta": 0} == {**FOREIGN, "_meta": 0}
            assert (meta["v/x"], meta[f"{META}serverInfo"]["name"]) == (1, "mcp-gateway")
            assert b"1.0" in told.messages[-1]
            assert told.header("cache-control") == "no-store"
        assert len(alpha.seen(method)) == 2


@pytest.mark.parametrize("case", ["client", "upstream", "gateway", "core"])
async def test_a_result_of_an_extension_that_one_side_lacks_is_an_invalid_response(alpha, case):
    """K-06, E-09: the extensions that the gateway knows have no such results."""
    alpha.on("tools/call", result(FOREIGN))
    capabilities, members = KNOWS, {"extensions": [SEARCH]}
    if case == "client":
        capabilities = {}
    elif case == "upstream":
        alpha.capabilities["extensions"] = {}
    elif case == "gateway":
        members = {}
    else:
        alpha.capabilities["extensions"] = {TASKS: {}, UI: {}}
        capabilities, members = {"extensions": {TASKS: {}, UI: {}}}, {}
    async with running({"alpha": alpha}, **members) as gateway:
        told = await gateway.ask("tools/call", {"name": "alpha__find"}, capabilities=capabilities)
        assert (told.code, told.error["message"]) == (-32603, "upstream alpha: invalid response")


# Notifications


async def test_a_notification_of_an_extension_reaches_whoever_made_the_call(alpha):
    """K-07: as it is, and none that bears a core name, whatever comes behind that."""
    foreign = notification("notifications/com.example/hit", n=1.0, _meta={"v/x": 1})
    core = [notification(f"notifications/{name}", x=1) for name in ("tasks", "tasks/status", "tools/other")]
    alpha.on("tools/call", sse(*map(event, (*core, foreign)), answer({"content": []})))
    async with running({"alpha": alpha}) as gateway:
        told = await gateway.ask("tools/call", {"name": "alpha__find"}, judged=False)
        assert told.notices == [foreign]


async def test_a_notification_of_an_extension_reaches_whoever_listens_and_knows_it(alpha):
    """L-22, K-07: where the operator lets the extension through."""
    found = "notifications/com.example/search/found"
    options = {"capabilities": KNOWS, "judged": False}
    async with (
        running({"alpha": alpha}, extensions=[SEARCH]) as gateway,
        listening(gateway, TOOLS, **options) as knowing,
        listening(gateway, TOOLS, id=2) as other,
    ):
        await alpha.notify(found, n=1)
        notice = await knowing.event()
        assert (notice["method"], notice["params"]["n"]) == (found, 1)
        assert notice["params"]["_meta"] == {SUBSCRIPTION: 1}
        await alpha.notify(TOOLS_CHANGED)
        assert (await other.event())["method"] == TOOLS_CHANGED
    async with (
        running({"alpha": alpha}) as gateway,
        listening(gateway, TOOLS, **options) as knowing,
    ):
        await alpha.notify(found, n=1)
        await alpha.notify(TOOLS_CHANGED)
        assert (await knowing.event())["method"] == TOOLS_CHANGED


# Methods


async def test_a_method_goes_to_the_upstream_it_is_configured_for(alpha, beta):
    """K-08: params and result as they are, with the headers of this hop and the caller's own capabilities."""
    beta.on("com.example/query", result({"n": 1.0, "uri": "b:1", "ttlMs": 9, "cacheScope": "public"}))
    upstreams = {"alpha": alpha, "beta": {"url": beta.url, "methods": ["com.example/*"]}}
    params = {"name": "x", "uri": "a:1", "cursor": None, "deep": {"n": 1.0}}
    async with running(upstreams, extensions=[SEARCH]) as gateway:
        told = await gateway.ask(
            "com.example/query", params, capabilities=KNOWS, token=ANN, headers={"mcp-name": "a:1"}
        )
        assert (told.status, told.result["n"], told.result["uri"]) == (200, 1.0, "b:1")
        assert told.result["resultType"] == "complete"
        assert told.result["_meta"][f"{META}serverInfo"]["name"] == "mcp-gateway"
        assert not {"ttlMs", "cacheScope"} & told.result.keys()  # K-05
        assert told.header("cache-control") == "no-store"
        (seen,) = beta.seen("com.example/query")
        assert {key: value for key, value in seen.params.items() if key != "_meta"} == params
        assert b'"n": 1.0' in seen.body
        assert [seen.header(name) for name in ("mcp-method", "mcp-name", "authorization")] == [
            "com.example/query",
            "a:1",
            None,
        ]
        assert seen.meta[f"{META}clientCapabilities"] == KNOWS
        assert not alpha.seen("com.example/query")


@pytest.mark.parametrize(
    ("params", "header", "sent"),
    [
        ({"name": "a"}, "a", "a"),
        ({"uri": "ä"}, "=?base64?w6Q=?=", "=?base64?w6Q=?="),
        ({"taskId": "t"}, "t", "t"),
        ({"name": "a"}, "b", None),
        ({"other": "a"}, "a", None),
        ({"name": 7}, "7", None),
        ({"name": "a"}, "=?base64?w6Q?=", None),
        ({"name": "a"}, None, None),
    ],
)
async def test_the_name_header_passes_when_it_mirrors_a_param(alpha, params, header, sent):
    """K-08, U-02: else it is dropped, for nobody here can tell what it should have been."""
    alpha.on("com.example/query", result({}))
    async with running({"alpha": alpha}) as gateway:
        assert (await gateway.ask("com.example/query", params, headers={"mcp-name": header})).status == 200
        assert alpha.seen("com.example/query")[0].header("mcp-name") == sent


async def test_the_only_upstream_gets_every_method_that_is_nobodys(alpha, beta):
    """K-08: and says itself that it does not serve one; several upstreams are not asked in turn."""
    async with running({"alpha": alpha}) as gateway:
        refused = await gateway.ask("no/such", id="x")
        assert (refused.status, refused.code, refused.message["id"]) == (404, -32601, "x")
        assert len(alpha.seen("no/such")) == 1
    only = {"/mcp": {}, "/beta": {"upstreams": ["beta"]}}
    async with running({"alpha": alpha, "beta": beta}, endpoints=only) as gateway:
        assert (await gateway.ask("no/such")).status == 404
        assert not beta.seen("no/such")
        await gateway.ask("no/such", path="/beta")
        assert len(beta.seen("no/such")) == 1
        assert len(alpha.seen("no/such")) == 1


@pytest.mark.parametrize(
    "method",
    ["initialize", "ping", "Tools/List", "TASKS/GET", "tasks/list", "notifications/x", "roots/list",
     "sampling/createMessage", "resources/subscribe", "logging/setLevel", ""],
)  # fmt: skip
async def test_what_is_known_is_never_taken_for_foreign(alpha, method):
    """K-08, S-03: reserved names reach no upstream, in no spelling."""
    async with running({"alpha": {"url": alpha.url, "methods": ["*"]}}) as gateway:
        refused = await gateway.ask(method)
        assert (refused.status, refused.code) == (404, -32601)
        assert not alpha.seen(method)


async def test_a_foreign_call_is_made_once_and_its_error_passes(alpha):
    """U-27: nobody knows whether it may run twice; F-31: its errors are its own."""
    alpha.on("com.example/query", error(-31_000, "odd", {"uri": "a:1", "n": 1}))
    async with running({"alpha": alpha}) as gateway:
        told = await gateway.ask("com.example/query")
        assert told.error == {"code": -31_000, "message": "odd", "data": {"uri": "alpha+a:1", "n": 1}}
        alpha.on("com.example/query", lambda exchange: _drop(exchange))
        assert (await gateway.ask("com.example/query")).code == -32603
        assert len(alpha.seen("com.example/query")) == 2


async def _drop(exchange):
    exchange.abort()


async def test_nothing_can_be_asked_back_by_a_foreign_method(alpha):
    """M-01: nor does it become a task (T-02)."""
    async with running({"alpha": alpha}) as gateway:
        for kind in ("input_required", "task"):
            alpha.on("com.example/query", result({"resultType": kind, "requestState": "s", "taskId": "t"}))
            both = {"extensions": {TASKS: {}}}
            assert (await gateway.ask("com.example/query", capabilities=both)).code == -32603


async def test_the_callers_credential_goes_along_where_the_upstream_has_it(alpha):
    """Z-09 as for any other call, progress and log messages included."""
    alpha.on("com.example/query", result({}))
    async with running({"alpha": {"url": alpha.url, "auth": "forward"}}) as gateway:
        meta = {"progressToken": "p", f"{META}logLevel": "info", "v/x": 1}
        await gateway.ask("com.example/query", token=ANN, meta=meta)
        (seen,) = alpha.seen("com.example/query")
        assert seen.header("authorization") == f"Bearer {ANN}"
        assert {f"{META}logLevel", "v/x", "progressToken"} <= seen.meta.keys()
        assert seen.meta["progressToken"] != "p"


# MCP Apps


APP = {
    "ui": {"resourceUri": "ui://w/1.html", "visibility": ["app"], "x": 1.0},
    "v/x": None,
}
PAGE = {
    "uri": "ui://w/1.html",
    "mimeType": "text/html;profile=mcp-app",
    "text": "<a href='ui://w/1.html'>find</a>",
    "_meta": {"ui": {"csp": {"connectDomains": ["ui://w"]}, "permissions": {"camera": {}}}},
}


async def test_an_app_comes_through_with_its_page(alpha):
    """K-09: settings reach the upstream, the tool leads to the page, which stays as it is, and is cached."""
    alpha.capabilities["extensions"] = {UI: {}}
    alpha.tools = [tool("find", _meta=APP)]
    alpha.on("resources/read", result({"contents": [PAGE], "ttlMs": 60_000, "cacheScope": "public"}))
    async with running({"alpha": alpha}) as gateway:
        assert (await gateway.ask("server/discover")).result["capabilities"]["extensions"] == {UI: {}}
        (item,) = (await gateway.ask("tools/list", capabilities=APPS)).items
        assert alpha.seen("tools/list")[0].meta[f"{META}clientCapabilities"] == APPS
        assert item["_meta"] == {**APP, "ui": {**APP["ui"], "resourceUri": "ui://alpha/w/1.html"}}
        for _ in range(2):
            read = await gateway.ask("resources/read", {"uri": "ui://alpha/w/1.html"}, capabilities=APPS)
            assert read.result["contents"] == [{**PAGE, "uri": "ui://alpha/w/1.html"}]
        assert len(alpha.seen("resources/read")) == 1


async def called(gateway, name, **options):
    """Call a tool and return which it was, None when nobody has it."""
    told = await gateway.ask("tools/call", {"name": name}, **options)
    return told.text["tool"] if "result" in told.message else None


async def test_an_app_may_use_its_servers_own_names_where_the_operator_lets_it(alpha, beta):
    """K-10: with header and body at one about the bare name; off by default, and for hosts' apps only."""
    alpha.capabilities["extensions"] = {UI: {}}
    upstreams = {"alpha": alpha, "beta": beta}
    async with running(upstreams) as gateway:
        assert await called(gateway, "find") is None
    async with running(upstreams, names={"bare_name_fallback": True}) as gateway:
        assert await called(gateway, "find") == "find"
        assert await called(gateway, "alpha__find") == "find"
        assert alpha.seen("tools/call")[-1].header("mcp-name") == "find"
        assert await called(gateway, "other") is None  # beta has no apps
        assert await called(gateway, "nobody") is None
        differs = await gateway.ask("tools/call", {"name": "find"}, headers={"mcp-name": "alpha__find"})
        assert differs.code == -32020


async def test_a_bare_name_that_two_have_or_that_is_hidden_means_nobodys(alpha, beta):
    """K-10: exactly one visible tool, wherever it is."""
    for upstream in (alpha, beta):
        upstream.capabilities["extensions"] = {UI: {}}
    alpha.tools = [tool("find"), tool("both"), tool("secret")]
    beta.tools = [tool("both"), tool("find")]
    upstreams = {
        "alpha": {"url": alpha.url, "tools": {"deny": ["secret"]}},
        "beta": {"url": beta.url, "tools": {"deny": ["find"]}},
    }
    async with running(upstreams, names={"bare_name_fallback": True}) as gateway:
        assert await called(gateway, "both") is None
        assert await called(gateway, "secret") is None
        assert await called(gateway, "find") == "find"
        assert len(alpha.seen("tools/call")) == 1


async def test_an_exposed_name_goes_before_a_bare_one(alpha, beta):
    """K-10: what a list shows means what it always meant."""
    alpha.capabilities["extensions"] = {UI: {}}
    alpha.tools = [tool("beta__other")]
    async with running({"alpha": alpha, "beta": beta}, names={"bare_name_fallback": True}) as gateway:
        assert await called(gateway, "beta__other") == "other"
        assert json.loads(beta.seen("tools/call")[0].body)["params"]["name"] == "other"
