"""One line for each request: what it came to, from where, how long that took, and no word of its content."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway import config
from gateway.support import access, logs
from tests.support.canaries import Canaries
from tests.support.legacy_client import LegacyClient
from tests.support.running import Running, running
from tests.support.scripted import ScriptedUpstream, hang, status, tool

RESOURCES = [{"uri": "a:1", "name": "one"}]


@dataclass
class Log:
    """What is written while a test runs."""

    stream: io.StringIO = field(default_factory=io.StringIO)

    def records(self) -> list[dict[str, Any]]:
        """Return all that is written so far."""
        logs.flush()
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of requests."""
        return [one for one in self.records() if one["logger"] == "gateway.access"]

    async def until(self, count: int) -> list[dict[str, Any]]:
        """Return the lines once there are so many: a client may have its answer before its line is made."""
        while len(self.lines()) < count:  # noqa: ASYNC110  # nothing tells of a write
            await asyncio.sleep(0.005)
        return self.lines()


@pytest.fixture
def written() -> Iterator[Log]:
    """Everything at debug, as JSON; afterwards the log is as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log = Log()
    logs.configure(config.Log(format="json", level="debug"), stream=log.stream)
    yield log
    root.handlers[:] = handlers
    root.setLevel(level)
    access.use(None)


@asynccontextmanager
async def federated(**members: Any) -> AsyncIterator[tuple[ScriptedUpstream, ScriptedUpstream, Running]]:
    async with (
        ScriptedUpstream(tools=[tool("add")], resources=RESOURCES, scope="private") as alpha,
        ScriptedUpstream(tools=[tool("see")]) as beta,
        running({"alpha": alpha, "beta": beta}, **members) as gateway,
    ):
        yield alpha, beta, gateway


async def test_a_list_is_one_line_with_what_each_upstream_and_the_cache_had_to_do_with_it(written):
    """Fetched at first, then from memory, under the caller's own hash."""
    async with federated() as (_, _, gateway):
        answer = await gateway.ask("tools/list", token="TOK-A")
        await gateway.ask("tools/list", token="TOK-A")
        await gateway.ask("tools/list", token="TOK-B")
        first, second, third = await written.until(3)
    assert first["request"] == answer.header("x-request-id")
    for line in (first, second):
        said = (line["endpoint"], line["transport"], line["era"], line["method"], line["outcome"])
        assert said == ("/mcp", "http", "modern", "tools/list", "ok")
        assert line["status"] == 200
        assert line["bytes"] > len(answer.body)
        assert line["ms"] > 0
    asked = {(call["upstream"], call["method"], call["outcome"]) for call in first["calls"]}
    assert {("alpha", "tools/list", "ok"), ("beta", "tools/list", "ok")} <= asked
    looked = {(one["upstream"], one["result"], one["reason"]) for one in first["lookups"]}
    assert {("alpha", "miss", "absent"), ("beta", "miss", "absent")} <= looked
    assert first["cache"] == {"result": "miss", "reason": "absent", "age": 0}
    assert second["cache"]["result"] == "hit"
    assert "calls" not in second
    assert first["caller"] == second["caller"] != third["caller"]
    assert {one["upstream"]: one["result"] for one in third["lookups"]} == {"alpha": "miss", "beta": "hit"}


async def test_a_call_names_the_tool_that_was_found_and_never_one_that_was_not(written):
    """What a client makes up is no part of the line."""
    async with federated() as (_, _, gateway):
        await gateway.ask("tools/call", {"name": "alpha__add"})
        await gateway.ask("tools/call", {"name": "alpha__made-up"})
        await gateway.ask("x/made-up", {})
        found, absent, foreign = await written.until(3)
    assert (found["method"], found["name"], found["outcome"]) == ("tools/call", "alpha__add", "ok")
    assert [one["method"] for one in found["calls"]][-1] == "tools/call"
    assert "cache" not in found
    assert ("name" in absent, absent["outcome"]) == (False, "error")
    assert (foreign["method"], foreign["outcome"], foreign["status"]) == ("other", "method", 404)


async def test_an_id_that_comes_with_a_request_is_in_its_answer_its_line_and_its_warnings(written):
    """So that one text leads from a client's report to all that the gateway knows of it."""
    async with federated() as (alpha, _, gateway):
        alpha.on("tools/call", status(500))
        given = {"X-Request-Id": "from-the-balancer.1"}
        failed = await gateway.ask("tools/call", {"name": "alpha__add"}, headers=given)
        (line,) = await written.until(1)
        assert failed.header("x-request-id") == line["request"] == "from-the-balancer.1"
        assert (line["outcome"], line["status"]) == ("unavailable", 200)
        assert line["calls"][-1]["outcome"] == "status"
        warned = [one for one in written.records() if one["level"] == "warning"]
        assert {one["request"] for one in warned} == {"from-the-balancer.1"}
        odd = await gateway.ask("tools/list", headers={"X-Request-Id": 'a" b'})
        assert odd.header("x-request-id") == (await written.until(2))[1]["request"] != 'a" b'


async def test_who_is_turned_away_has_a_line_with_the_reason(written):
    """Before and after it is known what was asked for."""
    async with federated() as (_, _, gateway):
        await gateway.ask("tools/list", path="/elsewhere", judged=False)
        await gateway.ask("tools/list", headers={"origin": "https://evil.example"})
        await gateway.ask("tools/list", body=b"{")
        lines = await written.until(3)
    said = [(line["outcome"], line["status"], line.get("endpoint")) for line in lines]
    assert said == [("path", 404, None), ("origin", 403, "/mcp"), ("malformed", 400, "/mcp")]


async def test_a_client_that_leaves_has_a_line(written):
    """Its upstream's share included."""
    async with federated() as (alpha, _, gateway):
        alpha.on("tools/call", hang())
        async with gateway.open("tools/call", {"name": "alpha__add"}) as exchange:
            await gateway.busy(1)
            await alpha.arrived("tools/call")
            exchange.leave()
        (line,) = await written.until(1)
    assert (line["outcome"], "status" in line) == ("cancelled", False)
    assert line["calls"][-1]["outcome"] == "cancelled"


async def test_a_listen_has_one_line_when_it_ends_and_what_works_for_all_is_not_in_it(written):
    """Upstreams are followed for everybody, whoever was the first to listen."""
    async with federated() as (_, _, gateway):
        wanted = {"notifications": {"toolsListChanged": True}}
        async with gateway.open("subscriptions/listen", wanted) as listen:
            await listen.event()
            await gateway.subscribed(1)
            assert written.lines() == []
            listen.leave()
        (line,) = await written.until(1)
    assert line["method"] == "subscriptions/listen"
    assert "subscriptions/listen" not in {call["method"] for call in line.get("calls", ())}


async def test_an_older_client_has_lines_too(written):
    """The handshake, what is told, what is asked."""
    async with federated() as (_, _, gateway):
        async with LegacyClient(gateway.addresses.endpoints[0], "2025-06-18") as client:
            await client.ask("tools/call", {"name": "beta__see"})
        lines = await written.until(3)
    assert {line["era"] for line in lines} == {"legacy"}
    said = [(line["method"], line["outcome"], line["status"]) for line in lines]
    assert said == [
        ("initialize", "ok", 200),
        ("notification", "notification", 202),
        ("tools/call", "ok", 200),
    ]
    called = lines[2]
    assert (called["name"], called["calls"][-1]["upstream"]) == ("beta__see", "beta")


async def test_no_secret_and_no_content_is_in_any_line(written):
    """Neither of requests nor of answers, wherever it stands."""
    secrets = Canaries()
    async with federated() as (alpha, _, gateway):
        alpha.resources = [{"uri": f"a:{secrets['uri']}", "name": secrets["title"]}]
        headers = {"Cookie": secrets["cookie"], "Mcp-Session-Id": secrets["session"]}
        for token in (secrets["token"], None):
            arguments = {"a": secrets["argument"]}
            await gateway.ask("tools/call", {"name": "alpha__add", "arguments": arguments}, token=token)
            await gateway.ask("tools/call", {"name": secrets["name"]}, token=token, headers=headers)
            await gateway.ask("resources/read", {"uri": f"alpha+a:{secrets['uri']}"}, token=token)
            await gateway.ask("resources/read", {"uri": secrets["other"]}, token=token)
            await gateway.ask(f"x/{secrets['method']}", {}, token=token)
            await gateway.ask(
                "tools/list", path=f"/{secrets['path']}?x={secrets['query']}", token=token, judged=False
            )
            await gateway.ask("tools/list", id=secrets["id"], meta={"traceparent": secrets["trace"]})
        lines = await written.until(14)
    assert secrets.seen_in(json.dumps(lines)) == []
