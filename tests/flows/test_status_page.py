"""What operators see of a gateway: the status as it changes, and the catalogue they search in."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import pytest

from gateway.front.page import MOST_VIEWERS
from tests.support.events import Events
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, result, status, tool

OPERATED: Mapping[str, Any] = {"admin": "127.0.0.1:0"}


@asynccontextmanager
async def looking(gateway: Running, path: str = "/status/events", **headers: str) -> AsyncIterator[Events]:
    """Look at the status as it changes."""
    async with (
        aiohttp.ClientSession(read_bufsize=2**20) as session,
        session.get(f"{gateway.addresses.admin}{path}", headers=headers) as response,
    ):
        yield Events(response)


async def found(gateway: Running, **query: str) -> dict[str, Any]:
    """Return what is found in the catalogue."""
    code, page = await gateway.admin(f"/catalogue.json?{urlencode(query)}")
    assert code == 200, page
    return dict(page)


def names(page: Mapping[str, Any]) -> list[str]:
    return [item.get("name", "-") for item in page["items"]]


async def watched(gateway: Running, viewers: int) -> None:
    """Wait until just so many look."""
    while f"<StatusPage {viewers} viewers" not in repr(gateway.gateway):  # noqa: ASYNC110  # no event tells it
        await asyncio.sleep(0.005)


# The page


async def test_the_page_is_served_with_a_policy_that_lets_nothing_else_in() -> None:
    """Whoever asks for the root is sent there, also below a path of a proxy's."""
    async with (
        ScriptedUpstream() as alpha,
        running({"alpha": alpha}, **OPERATED) as gateway,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"{gateway.addresses.admin}/", allow_redirects=False) as sent:
            assert (sent.status, sent.headers["Location"]) == (302, "status")
        async with session.get(f"{gateway.addresses.admin}/") as page:
            policy = page.headers["Content-Security-Policy"]
            assert page.url.path == "/status"
            assert (await page.text()).startswith("<!doctype html>")
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["X-Frame-Options"] == "DENY"


async def test_status_json_says_what_every_upstream_and_the_cache_do() -> None:
    """Hints as the upstream said them, what became of results, and how calls went."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")], ttl_ms=0) as beta,
        running({"alpha": alpha, "beta": beta}, **OPERATED) as gateway,
    ):
        for _ in range(3):
            await gateway.ask("tools/list")
        await gateway.ask("tools/call", {"name": "alpha__a"})
        beta.on("tools/call", status(500))
        await gateway.ask("tools/call", {"name": "beta__b"})
        _, said = await gateway.admin("/status.json")
        one, two = said["upstreams"]["alpha"], said["upstreams"]["beta"]
        hint = one["hints"]["tools/list"]
        assert (hint["ttl_ms"], hint["scope"], hint["kept_for"]) == (60000, "public", "everybody")
        assert (two["hints"]["tools/list"]["kept_for"], two["hints"]["tools/list"]["reason"]) == (
            "nobody",
            "ttl",
        )
        assert (one["lookups"], one["reasons"]) == ({"miss": 1, "hit": 2}, {"absent": 1})
        assert two["reasons"] == {"ttl": 3}
        assert (one["calls"], two["calls"]) == ({"ok": 2}, {"ok": 3, "status": 1})
        assert one["latency"]["count"] == 2
        assert one["latency"]["p50"] <= one["latency"]["p95"]
        assert one["last_error"] is None
        failure = two["last_error"]
        assert (failure["error"], failure["http_status"], failure["method"]) == (
            "unexpected HTTP status",
            500,
            "tools/call",
        )
        assert said["cache"]["saved"] == 2
        assert said["traffic"]["/mcp"]["answered"] == {"ok": 4, "unavailable": 1}
        assert (said["recent"]["requests"], said["recent"]["lookups"]["hit"]) == (5, 2)


async def test_hits_of_a_joined_list_are_hits_of_its_parts() -> None:
    """An answer that was joined before looks nobody up, and is from the cache all the same."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, **OPERATED, endpoints={"/mcp": {}, "/other": {}}) as gateway,
    ):
        for _ in range(5):
            await gateway.ask("tools/list")
        _, said = await gateway.admin("/status.json")
        assert said["upstreams"]["alpha"]["lookups"] == {"miss": 1, "hit": 4}


async def test_a_change_makes_what_is_kept_stale_in_the_status_too() -> None:
    """`changed` says that it is served no more."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        running({"alpha": alpha}, **OPERATED) as gateway,
    ):
        await gateway.ask("tools/list")
        await gateway.admin("/purge", {"upstream": "alpha"})
        _, said = await gateway.admin("/status.json")
        assert said["upstreams"]["alpha"]["hints"]["tools/list"]["changed"]


# Events


async def test_a_viewer_is_sent_the_whole_and_then_what_changes() -> None:
    """When an upstream dies it is that upstream, and not the other one."""
    async with (
        ScriptedUpstream() as alpha,
        ScriptedUpstream() as beta,
        running({"alpha": alpha, "beta": beta}, **OPERATED) as gateway,
        looking(gateway) as events,
    ):
        event, whole = await events.next()
        assert event == "whole"
        assert whole["upstreams"]["alpha"]["state"] == "up"
        _, said = await gateway.admin("/status.json")
        assert whole.keys() == said.keys()
        await beta.stop()
        await gateway.ask("tools/list")
        change = await events.until_down("beta")
        assert change["upstreams"]["beta"]["error"] == "connection failed"
        assert change["now"] > whole["now"]
        assert "version" not in change


async def test_nothing_is_taken_down_while_nobody_looks() -> None:
    """One task serves all who look, and ends with the last of them."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}, **OPERATED) as gateway:
        assert "<StatusPage 0 viewers>" in repr(gateway.gateway)
        async with looking(gateway) as one:
            async with looking(gateway) as two:
                assert (await one.next())[0] == (await two.next())[0] == "whole"
                assert "<StatusPage 2 viewers, sending>" in repr(gateway.gateway)
            await watched(gateway, 1)
            assert (await one.next())[0] == "change"
        await watched(gateway, 0)
        assert "<StatusPage 0 viewers>" in repr(gateway.gateway)


async def test_there_is_a_bound_of_viewers_and_other_sites_are_none() -> None:
    """Who finds no room is told where to look instead."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}, **OPERATED) as gateway:
        async with looking(gateway, **{"Sec-Fetch-Site": "cross-site"}) as foreign:
            assert foreign.response.status == 403
        async with looking(gateway, "/catalogue.json?read=true", **{"Sec-Fetch-Site": "cross-site"}) as one:
            assert one.response.status == 403
        crowd = [looking(gateway) for _ in range(MOST_VIEWERS)]
        viewers = [await each.__aenter__() for each in crowd]
        try:
            assert {viewer.response.status for viewer in viewers} == {200}
            async with looking(gateway) as late:
                assert late.response.status == 503
                assert "/status.json" in await late.response.text()
        finally:
            for each in crowd:
                await each.__aexit__(None, None, None)
        await watched(gateway, 0)


# The catalogue


async def test_the_catalogue_knows_both_names() -> None:
    """What clients call it, what its upstream does, and why they are not shown something."""
    rules = {"rename": {"search": "find"}, "deny": ["secret*"]}
    async with (
        ScriptedUpstream(
            tools=[
                tool("search", description="Looks for things"),
                tool("secret_one"),
                tool("broken", inputSchema=7),
            ],
            prompts=[{"name": "greet", "title": "A greeting"}],
            resources=[{"uri": "note://guide", "name": "guide"}],
            templates=[{"uriTemplate": "note://{id}", "name": "any"}],
        ) as alpha,
        running({"alpha": {"url": alpha.url, "tools": rules}}, **OPERATED) as gateway,
    ):
        page = await found(gateway, read="true")
        assert [(item["kind"], item.get("name"), item["original"]) for item in page["items"]] == [
            ("tool", "alpha__find", "search"),
            ("tool", None, "secret_one"),
            ("tool", None, "broken"),
            ("prompt", "alpha__greet", "greet"),
            ("resource", "alpha+note://guide", "note://guide"),
            ("template", "alpha+note://{id}", "note://{id}"),
        ]
        assert page["kinds"] == {"tool": 3, "prompt": 1, "resource": 1, "template": 1}
        assert page["items"][0]["description"] == "Looks for things"
        assert "rules" in page["items"][1]["note"]
        assert page["items"][2]["note"].startswith("left out: ")
        assert (page["total"], page["unread"], page["endpoint"]) == (6, [], "/mcp")


async def test_only_what_is_asked_for_is_read_from_upstreams() -> None:
    """Looking asks nobody; what was not listed yet is named, and read on demand, once."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running({"alpha": alpha, "beta": beta}, **OPERATED) as gateway,
    ):
        page = await found(gateway)
        assert (page["items"], page["unread"]) == ([], ["alpha", "beta"])
        assert not alpha.seen("tools/list")
        beta.on("tools/list", status(500))
        page = await found(gateway, read="true")
        assert (names(page), page["unread"]) == (["alpha__a"], ["beta"])
        await found(gateway, read="true")
        assert len(alpha.seen("tools/list")) == 1


async def test_ten_thousand_tools_are_searched_and_paged() -> None:
    """Every word has to be somewhere; what has it in its name comes first."""
    tools = [tool(f"item_{number:05}", description=f"Number {number}") for number in range(9_998)]
    tools += [tool("last", description="goes before item_00007"), tool("Item_00007_again")]
    async with (
        ScriptedUpstream(tools=tools) as alpha,
        running({"alpha": alpha}, **OPERATED) as gateway,
    ):
        page = await found(gateway, read="true", limit="500")
        assert (page["total"], len(page["items"])) == (10_000, 500)
        page = await found(gateway, q="ITEM_00007")
        assert names(page) == ["alpha__item_00007", "alpha__Item_00007_again", "alpha__last"]
        page = await found(gateway, q="number 42", limit="2", offset="2")
        assert page["total"] == sum("42" in str(n) for n in range(9_998))
        assert len(page["items"]) == 2
        assert names(await found(gateway, q="item_00007 again", kind="tool")) == ["alpha__Item_00007_again"]
        assert (await found(gateway, q="item_00007", kind="prompt"))["total"] == 0


async def test_what_a_uri_may_hold_of_secrets_is_not_shown() -> None:
    """Queries and logins are left out; a template's variables are none."""
    uris = ["https://ann:hunter2@host.example/a?token=abc#x", "note://plain"]
    async with (
        ScriptedUpstream(
            resources=[{"uri": uri, "name": "r"} for uri in uris],
            templates=[{"uriTemplate": "note://find{?q,r}", "name": "t"}],
        ) as alpha,
        running({"alpha": alpha}, **OPERATED) as gateway,
    ):
        page = await found(gateway, read="true")
        assert [item["original"] for item in page["items"]] == [
            "https://…@host.example/a?…",
            "note://plain",
            "note://find{?q,r}",
        ]
        assert "hunter2" not in json.dumps(page)
        assert "token" not in json.dumps(page)


async def test_what_is_private_is_shown_by_name_alone() -> None:
    """What an upstream tells one caller of it is that caller's; what the operator wrote himself is not."""
    describe = {"b": "The operator's own words"}
    async with (
        ScriptedUpstream(
            tools=[tool("a", description="Ann's"), tool("b", description="Ann's")], scope="private"
        ) as alpha,
        running({"alpha": {"url": alpha.url, "tools": {"describe": describe}}}, **OPERATED) as gateway,
    ):
        await gateway.ask("tools/list", token="ann")
        page = await found(gateway)
        assert names(page) == ["alpha__a", "alpha__b"]
        assert [item.get("description") for item in page["items"]] == [None, "The operator's own words"]
        assert "private" in page["items"][0]["note"]
        alpha.scope = "public"
        await gateway.admin("/purge", {"upstream": "alpha"})
        await gateway.ask("tools/list", token="ann")
        assert (await found(gateway))["items"][0]["description"] == "Ann's"


async def test_each_endpoint_has_its_own_names() -> None:
    """And its own upstreams."""
    async with (
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
        running(
            {"alpha": alpha, "beta": beta},
            **OPERATED,
            endpoints={"/mcp": {}, "/dev": {"upstreams": ["beta"], "tools": {"rename": {"beta__b": "bee"}}}},
        ) as gateway,
    ):
        assert names(await found(gateway, read="true")) == ["alpha__a", "beta__b"]
        assert names(await found(gateway, endpoint="/dev")) == ["bee"]
        assert names(await found(gateway, upstream="beta")) == ["beta__b"]


async def test_a_list_that_changes_is_found_as_it_is() -> None:
    """The next search sees it."""
    async with (
        ScriptedUpstream(tools=[tool("<script>alert(1)</script>")]) as alpha,
        running({"alpha": alpha}, **OPERATED) as gateway,
    ):
        page = await found(gateway, read="true")
        assert page["items"][0]["original"] == "<script>alert(1)</script>"
        alpha.on("tools/list", result({"tools": [tool("new")], "ttlMs": 0, "cacheScope": "public"}))
        await gateway.admin("/purge", {"upstream": "alpha"})
        await gateway.ask("tools/list")
        assert names(await found(gateway)) == ["alpha__new"]


@pytest.mark.parametrize(
    "query",
    [
        "kind=tools",
        "limit=501",
        "limit=-1",
        "offset=x",
        f"q={'x' * 201}",
        "endpoint=/no",
        "read=yes",
        "what=1",
    ],
)
async def test_what_makes_no_sense_is_refused(query: str) -> None:
    """With a reason, and no more than the reason."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}, **OPERATED) as gateway:
        code, said = await gateway.admin(f"/catalogue.json?{quote(query, safe='=')}")
        assert code == 400
        assert isinstance(said["error"], str)
