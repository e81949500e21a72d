"""Many upstreams as one: names lead where they came from, and each fails alone (B01, B03, B09)."""

import asyncio
import re
import time

import pytest

from tests.support.running import ONCE, Clock, running
from tests.support.scripted import ScriptedUpstream, cut, error, hang, raw, result, status, tool

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
HTML = status(500, b"<html><h1>oops at http://10.0.0.1/</h1></html>", "text/html")


# One upstream fails, the others do not notice (B01)


async def test_upstreams_are_one_list_in_configuration_order():
    """Both list `search`; both are callable and each call reaches its own (B09)."""
    async with (
        ScriptedUpstream(tools=[tool("search"), tool("add")]) as alpha,
        ScriptedUpstream(tools=[tool("search")]) as beta,
        running({"beta": beta, "alpha": alpha}) as gateway,
    ):
        listed = await gateway.ask("tools/list")
        assert listed.names == ["beta__search", "alpha__search", "alpha__add"]
        assert listed.status == 200
        called = await gateway.ask("tools/call", {"name": "alpha__search", "arguments": {"q": 1}})
        assert called.text == {"tool": "search", "arguments": {"q": 1}}
        assert (await alpha.arrived("tools/call")).header("mcp-name") == "search"
        await gateway.ask("tools/call", {"name": "beta__search"})
        assert len(beta.seen("tools/call")) == len(alpha.seen("tools/call")) == 1


@pytest.mark.parametrize(
    "fault", [HTML, cut(), error(-32603, "kaput"), raw(b"garbage\r\n\r\n"), result({"tools": 5})]
)
async def test_one_failing_upstream_is_left_out_of_a_list(fault):
    """What is missing is said, the rest is served, stale at once and kept nowhere (C-28, F-30)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as gamma,
        running({"gamma": gamma, "alpha": alpha}, pace=ONCE) as gateway,
    ):
        gamma.on("tools/list", fault)
        listed = await gateway.ask("tools/list", token="TOK-A")
        assert listed.names == ["alpha__a"]
        assert (listed.hints, listed.missing) == ((0, "private"), ["gamma"])
        gamma.reset()
        whole = await gateway.ask("tools/list", token="TOK-A")
        assert (whole.names, whole.missing) == (["gamma__b", "alpha__a"], [])
        assert whole.hints[1] == "public"


async def test_an_upstream_that_never_answers_costs_a_list_its_deadline_once():
    """Healthy parts come back within list_timeout, and calls to healthy upstreams never wait (B01)."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as gamma,
        running({"gamma": {"url": gamma.url, "list_timeout": 0.6}, "alpha": alpha}, clock=clock) as gateway,
    ):
        gamma.on("tools/list", hang())
        slow = asyncio.create_task(gateway.ask("tools/list", token="TOK-A"))
        await gamma.arrived("tools/list")
        await gateway.ask("tools/call", {"name": "alpha__a"})
        assert not slow.done()
        assert ((await slow).names, (await slow).missing) == (["alpha__a"], ["gamma"])
        assert (await gateway.ask("tools/list", token="TOK-A")).missing == ["gamma"]
        assert len(gamma.seen("tools/list")) == 1, "a resting upstream is not asked again at once"
        await gamma.seen("tools/list")[0].closed.wait()
        gamma.reset()
        clock.advance(2)
        assert (await gateway.ask("tools/list", token="TOK-A")).names == ["gamma__b", "alpha__a"]


async def test_a_call_never_waits_for_another_upstream():
    """gamma's first probe has not ended, and its list_timeout is longer than any test (B01)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, ScriptedUpstream(tools=[tool("b")]) as gamma:
        gamma.on("server/discover", hang())
        upstreams = {"gamma": {"url": gamma.url, "list_timeout": 600.0}, "alpha": alpha}
        async with running(upstreams, settled=False) as gateway:
            assert (await gateway.ask("tools/call", {"name": "alpha__a"})).text["tool"] == "a"
            assert (await gateway.ask("tools/call", {"name": "alpha__nope"})).code == -32602
            assert (await gateway.ask("prompts/get", {"name": "alpha__nope"})).code == -32602


async def test_a_list_waits_one_list_timeout_for_an_upstream_that_is_silent_from_the_start():
    """For its probe and its answer together, and once: what hung a moment ago is not waited for (B01)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, ScriptedUpstream(tools=[tool("b")]) as gamma:
        gamma.on("server/discover", hang())
        upstreams = {"gamma": {"url": gamma.url, "list_timeout": 1.0}, "alpha": alpha}
        async with running(upstreams, settled=False, clock=Clock()) as gateway:
            began = time.monotonic()
            listed = await gateway.ask("tools/list")
            assert (listed.names, listed.missing) == (["alpha__a"], ["gamma"])
            assert (await gateway.ask("tools/list")).missing == ["gamma"]
            assert (await gateway.ask("server/discover")).missing == ["gamma"]
            assert time.monotonic() - began < 1.95


async def test_a_refusing_upstream_costs_nothing_and_comes_back_by_itself():
    """Down from the start: lists skip it at once, calls say so; no restart is needed (B01)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, ScriptedUpstream(tools=[tool("b")]) as gamma:
        await gamma.stop()
        async with running({"alpha": alpha, "gamma": gamma}) as gateway:
            assert gateway.status("gamma").state == "down"
            listed = await gateway.ask("tools/list")
            assert (listed.names, listed.missing) == (["alpha__a"], ["gamma"])
            refused = await gateway.ask("tools/call", {"name": "gamma__b"})
            assert refused.error["code"] == -32603
            assert refused.error["message"] == "upstream gamma: currently down"
            await gamma.start()
            await gateway.until("gamma", "up")
            assert (await gateway.ask("tools/list")).names == ["alpha__a", "gamma__b"]
            assert (await gateway.ask("tools/call", {"name": "gamma__b"})).text["tool"] == "b"


async def test_every_upstream_failing_is_an_error_and_no_empty_list():
    """An empty list would be a lie (B01); no address is told (F-33)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as gamma,
        running({"alpha": alpha, "gamma": gamma}, pace=ONCE) as gateway,
    ):
        for upstream in (alpha, gamma):
            upstream.on("tools/list", HTML)
        failed = await gateway.ask("tools/list")
        assert (failed.status, failed.code) == (200, -32603)
        assert "alpha" in failed.error["message"]
        assert "gamma" in failed.error["message"]
        assert "127.0.0.1" not in failed.error["message"]
        assert "10.0.0.1" not in failed.error["message"]
        alpha.reset()
        gamma.reset()
        assert (await gateway.ask("tools/list")).names == ["alpha__a", "gamma__b"]


async def test_all_upstreams_down_from_the_start_is_an_error_until_one_comes():
    """Nothing is known of them, so neither "no such method" nor an empty list would be true."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha:
        await alpha.stop()
        async with running({"alpha": alpha}) as gateway:
            for method in ("tools/list", "server/discover", "prompts/list"):
                assert (await gateway.ask(method)).code == -32603, method
            await alpha.start()
            await gateway.until("alpha", "up")
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]


async def test_a_lost_upstream_keeps_its_names_and_its_callers_learn_why():
    """What it listed last is remembered: its name does not become unknown, nor another's (B09)."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("alpha__a")]) as beta,
        running({"beta": {"url": beta.url, "prefix": ""}, "alpha": alpha}, pace=ONCE) as gateway,
    ):
        before = (await gateway.ask("tools/list")).names
        assert before[1] == "alpha__a"
        assert before[0].startswith("alpha__a_")
        await alpha.stop()
        failed = await gateway.ask("tools/call", {"name": "alpha__a"})
        assert failed.code == -32603
        assert "upstream alpha" in failed.error["message"]
        assert beta.seen("tools/call") == []


# Names (B03, B09, B43)

JIRA = "customer-internal-jira-onprem"
LONG = "synchronise_all_customer_records_across_systems"


async def test_odd_and_long_names_are_legal_outside_and_true_inside():
    """Every tool stays callable under a name model APIs accept, the same after a restart (B03)."""
    odd = [LONG, LONG + "_x", "coding.start", "a/b", "größe", "name\n", "x.y", "x_y", "ok"]
    async with ScriptedUpstream(tools=[tool(name) for name in odd]) as jira:
        async with running({JIRA: jira}) as gateway:
            names = (await gateway.ask("tools/list")).names
            assert len(set(names)) == len(odd)
            assert [name for name in names if not LEGAL.fullmatch(name)] == []
            assert names[-1] == f"{JIRA}__ok"
            for exposed, original in zip(names, odd, strict=True):
                called = await gateway.ask("tools/call", {"name": exposed})
                assert called.text["tool"] == original
        async with running({JIRA: jira}) as gateway:
            assert (await gateway.ask("tools/list")).names == names


async def test_names_are_resolved_by_table_and_never_by_splitting():
    """`a` with `b__c` and, without a prefix, `a__b__c`: both callable, whoever is configured first (B09)."""
    async with (
        ScriptedUpstream(tools=[tool("b__c")]) as prefixed,
        ScriptedUpstream(tools=[tool("a__b__c")]) as bare,
    ):
        for order in (("a", "bare"), ("bare", "a")):
            both = {"a": prefixed, "bare": {"url": bare.url, "prefix": ""}}
            async with running({name: both[name] for name in order}) as gateway:
                names = (await gateway.ask("tools/list")).names
                assert len(set(names)) == 2
                assert "a__b__c" in names
                reached = {name: await gateway.ask("tools/call", {"name": name}) for name in names}
                assert reached["a__b__c"].text["tool"] == "b__c"
                (other,) = set(names) - {"a__b__c"}
                assert reached[other].text["tool"] == "a__b__c"


@pytest.mark.parametrize(
    "name",
    ["alpha__nope", "nope", "add", "alpha__", "", "__add", "ALPHA__add", "hidden__add", "alpha__add\n"],
)
async def test_an_unknown_name_is_invalid_params(name):
    """So is the name of an upstream that this endpoint does not serve: no existence oracle (F-08)."""
    async with (
        ScriptedUpstream(tools=[tool("add")]) as alpha,
        ScriptedUpstream(tools=[tool("add")]) as hidden,
        running({"alpha": alpha, "hidden": hidden}, endpoints={"/mcp": {"upstreams": ["alpha"]}}) as gateway,
    ):
        refused = await gateway.ask("tools/call", {"name": name})
        assert (refused.status, refused.code) == (400, -32602)
        assert refused.error["message"] == f"Unknown tool: {name}"
        assert hidden.seen("tools/call") == hidden.seen("tools/list") == []


async def test_a_call_needs_no_list_before_it():
    """The list that could hold the name is read, that of its own upstream only."""
    async with (
        ScriptedUpstream(tools=[tool("add")]) as alpha,
        ScriptedUpstream(tools=[tool("add")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        assert (await gateway.ask("tools/call", {"name": "beta__add"})).text["tool"] == "add"
        assert (len(alpha.seen("tools/list")), len(beta.seen("tools/list"))) == (0, 1)
        await gateway.ask("tools/call", {"name": "beta__add"})
        assert len(beta.seen("tools/list")) == 1


async def test_prompts_are_routed_like_tools():
    """prompts/get carries Mcp-Name of the upstream's own name."""
    async with (
        ScriptedUpstream(prompts=[{"name": "greet"}]) as alpha,
        ScriptedUpstream(prompts=[{"name": "greet"}]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        assert (await gateway.ask("prompts/list")).names == ["alpha__greet", "beta__greet"]
        got = await gateway.ask("prompts/get", {"name": "beta__greet", "arguments": {"who": "ann"}})
        assert got.text == {"prompt": "greet", "arguments": {"who": "ann"}}
        assert (await beta.arrived("prompts/get")).header("mcp-name") == "greet"
        unknown = await gateway.ask("prompts/get", {"name": "beta__nope"})
        assert (unknown.status, unknown.code) == (400, -32602)


# What an endpoint shows


async def test_endpoints_show_their_own_upstreams_and_tools():
    """A subset, and rules over exposed names; what is hidden is unknown, not forbidden (F-08)."""
    endpoints = {
        "/mcp": {},
        "/mcp/dev": {
            "upstreams": ["beta", "alpha"],
            "tools": {
                "deny": ["*delete*"],
                "rename": {"alpha__add": "plus"},
                "describe": {"alpha__add": "Adds."},
            },
        },
    }
    tools = [tool("add", description="sums"), tool("delete_all")]
    async with (
        ScriptedUpstream(tools=tools) as alpha,
        ScriptedUpstream(tools=[tool("time")]) as beta,
        ScriptedUpstream(tools=[tool("secret")]) as gamma,
        running({"alpha": alpha, "beta": beta, "gamma": gamma}, endpoints=endpoints) as gateway,
    ):
        everything = await gateway.ask("tools/list")
        assert everything.names == ["alpha__add", "alpha__delete_all", "beta__time", "gamma__secret"]
        listed = await gateway.ask("tools/list", path="/mcp/dev")
        assert listed.names == ["beta__time", "plus"]
        assert listed.items[1]["description"] == "Adds."
        assert (await gateway.ask("tools/call", {"name": "plus"}, path="/mcp/dev")).text["tool"] == "add"
        for hidden in ("alpha__add", "alpha__delete_all", "gamma__secret"):
            refused = await gateway.ask("tools/call", {"name": hidden}, path="/mcp/dev")
            assert refused.code == -32602, hidden
        assert len(alpha.seen("tools/call")) == 1
        assert gamma.seen("tools/call") == []


async def test_an_upstreams_own_rules_use_its_own_names():
    """allow, deny, rename and describe before the prefix comes; the endpoint's word goes before."""
    rules = {
        "allow": ["re*", "list"],
        "deny": ["remove"],
        "rename": {"read": "get"},
        "describe": {"read": "Gets.", "list": "Lists."},
    }
    endpoints = {"/mcp": {"tools": {"describe": {"alpha__list": "All of it."}}}}
    tools = [tool("read"), tool("remove"), tool("list", description="raw"), tool("write")]
    async with (
        ScriptedUpstream(tools=tools) as alpha,
        running({"alpha": {"url": alpha.url, "tools": rules}}, endpoints=endpoints) as gateway,
    ):
        listed = await gateway.ask("tools/list")
        assert listed.names == ["alpha__get", "alpha__list"]
        assert [item["description"] for item in listed.items] == ["Gets.", "All of it."]
        assert (await gateway.ask("tools/call", {"name": "alpha__get"})).text["tool"] == "read"
        for hidden in ("alpha__read", "alpha__remove", "alpha__write"):
            assert (await gateway.ask("tools/call", {"name": hidden})).code == -32602, hidden


async def test_a_renamed_tool_is_found_without_a_list_before_it():
    """Its name does not start with any prefix, so whoever may own it is asked."""
    endpoints = {"/mcp": {"tools": {"rename": {"alpha__add": "plus"}}}}
    async with (
        ScriptedUpstream(tools=[tool("add")]) as alpha,
        running({"alpha": alpha}, endpoints=endpoints) as gateway,
    ):
        assert (await gateway.ask("tools/call", {"name": "plus"})).text["tool"] == "add"


# What nobody, or only some, can do (B48)


async def test_upstreams_are_not_asked_for_what_they_did_not_declare():
    """alpha has tools only, gamma prompts: each list comes from who has it."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(prompts=[{"name": "p"}]) as gamma,
    ):
        alpha.capabilities = {"tools": {}}
        gamma.capabilities = {"prompts": {}}
        async with running({"alpha": alpha, "gamma": gamma}) as gateway:
            prompts = await gateway.ask("prompts/list")
            assert (prompts.names, prompts.hints[1]) == (["gamma__p"], "public")
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]
            assert alpha.seen("prompts/list") == gamma.seen("tools/list") == []
            for method, params in (
                ("resources/list", {}),
                ("resources/read", {"uri": "a:b"}),
                ("completion/complete", {"ref": {"type": "ref/prompt", "name": "gamma__p"}, "argument": {}}),
            ):
                refused = await gateway.ask(method, params)
                assert (refused.status, refused.code) == (404, -32601), method


async def test_a_declared_list_that_is_not_served_counts_as_empty_and_is_remembered():
    """beta says resources and answers -32601; asked once, and again after a restart (B48)."""
    async with (
        ScriptedUpstream(resources=[{"uri": "a:1", "name": "one"}]) as alpha,
        ScriptedUpstream() as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        beta.on("resources/list", error(-32601, http=404))
        for _ in range(2):
            listed = await gateway.ask("resources/list")
            assert (listed.names, listed.missing) == (["alpha+a:1"], [])
            assert listed.hints[1] == "public"
            await gateway.runtime.catalogue.forget("alpha", "resources/list", "list_changed")
        assert len(beta.seen("resources/list")) == 1


async def test_unknown_methods_are_not_found():
    """404 and -32601, also for those of older revisions, with the id (S-03, B13)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        for method in ("ping", "initialize", "resources/subscribe", "tasks/list", "no/such", "tools/List"):
            refused = await gateway.ask(method, id="x")
            assert (refused.status, refused.code) == (404, -32601), method
            assert refused.message["id"] == "x"


async def test_a_stale_name_is_looked_up_anew():
    """The upstream no longer knows what it listed: the list is read again before its ttl is over (U-33)."""
    async with ScriptedUpstream(tools=[tool("old")]) as alpha, running({"alpha": alpha}) as gateway:
        assert (await gateway.ask("tools/list")).names == ["alpha__old"]
        alpha.tools = [tool("new")]
        gone = await gateway.ask("tools/call", {"name": "alpha__old"})
        assert (gone.status, gone.code) == (400, -32602)
        assert (await gateway.ask("tools/list")).names == ["alpha__new"]


async def test_a_tools_own_complaint_does_not_empty_the_cache():
    """An application error that happens to say "not found" says nothing about the list (U-33)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        await gateway.ask("tools/list")
        alpha.on("tools/call", error(-32602, "user 7 was not found"))
        assert (await gateway.ask("tools/call", {"name": "alpha__a"})).code == -32602
        await gateway.ask("tools/list")
        assert len(alpha.seen("tools/list")) == 1
