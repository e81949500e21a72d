"""Servers of HTTP+SSE, the transport of 2024-11-05, behind the whole gateway (X-61)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.protocol.call import Reason
from tests.support.legacy_client import LegacyClient
from tests.support.listening import TOOLS_CHANGED, listening, told
from tests.support.running import ONCE, Running, running
from tests.support.sse_upstream import SseUpstream


@pytest.fixture
async def old() -> AsyncIterator[SseUpstream]:
    async with SseUpstream() as upstream:
        yield upstream


async def call(gateway: Running, name: str, token: str | None = None, **arguments: Any) -> Any:
    """Return what a tool answers."""
    params = {"name": f"old__{name}", "arguments": arguments}
    return (await gateway.ask("tools/call", params, token=token)).text


async def seen(gateway: Running, method: str) -> list[dict[str, Any]]:
    """Return the messages of this method that the shared session got, once there are any."""
    while not (found := [one for one in await call(gateway, "seen") if one.get("method") == method]):
        pass
    return found


async def test_a_client_sees_it_as_any_server(old: SseUpstream) -> None:
    """It is found out by its answers alone: neither POST does, the stream begins with an endpoint (U-18)."""
    async with running({"old": old.url}) as gateway:
        listed = await gateway.ask("tools/list")
        assert "old__echo" in listed.names
        assert listed.hints == (0, "private")
        assert await call(gateway, "echo", text="né") == {"arguments": {"text": "né"}, "meta": {}}
        assert gateway.status("old").era == "legacy"
        assert old.open == 1
    await old.deserted()


async def test_progress_cancellation_and_sizes_travel_on_the_one_stream(old: SseUpstream) -> None:
    async with running({"old": old.url}) as gateway:
        params = {"name": "old__progress", "arguments": {"steps": 3}}
        answer = await gateway.ask("tools/call", params, meta={"progressToken": "t"})
        assert [notice["params"]["progress"] for notice in answer.notices] == [1, 2, 3]
        async with gateway.open("tools/call", {"name": "old__hang"}) as hanging:
            while not any(one.get("params", {}).get("name") == "hang" for one in await call(gateway, "seen")):
                pass
            hanging.leave()
            await seen(gateway, "notifications/cancelled")
        params = {"name": "old__size", "arguments": {"bytes": 15_000_000}}
        answer = await gateway.ask("tools/call", params)
        assert len(answer.result["content"][0]["text"]) == 15_000_000


async def test_losing_the_stream_ends_the_session_and_the_next_call_begins_another(old: SseUpstream) -> None:
    """What was under way fails; nothing is posted to the old place."""
    async with running({"old": old.url}) as gateway:
        async with gateway.open("tools/call", {"name": "old__hang"}) as hanging:
            while not any(one.get("params", {}).get("name") == "hang" for one in await call(gateway, "seen")):
                pass
            old.cut()
            assert (await hanging.answer()).error == {
                "code": -32603,
                "message": "upstream old: connection failed",
            }
        assert await call(gateway, "echo") == {"arguments": {}, "meta": {}}
        assert [message["method"] for message in (await call(gateway, "seen"))[:2]] == [
            "initialize",
            "notifications/initialized",
        ]
        assert len(old.sessions) == 2


async def test_changes_are_told_on_the_stream(old: SseUpstream) -> None:
    async with (
        running({"old": old.url}) as gateway,
        listening(gateway, {"toolsListChanged": True}) as stream,
    ):
        await call(gateway, "change")
        assert await told(stream) == (TOOLS_CHANGED, None)


async def test_callers_have_sessions_of_their_own_with_their_own_credentials(old: SseUpstream) -> None:
    """A credential is sent with the stream and with every message of its session, and no other (B07)."""
    async with running({"old": {"url": old.url, "auth": "forward"}}) as gateway:
        await call(gateway, "set_note", token="TOK-A", text="ann's")
        assert await call(gateway, "get_note", token="TOK-A") == "ann's"
        assert await call(gateway, "get_note", token="TOK-B") is None
    presented = {authorization for _, authorization in old.authorizations}
    assert presented <= {None, "Bearer TOK-A", "Bearer TOK-B"}


@pytest.mark.parametrize(
    "place", ["http://127.0.0.1:1/messages", "https://evil.example/m", "//evil.example/m"]
)
async def test_an_endpoint_elsewhere_is_refused(old: SseUpstream, place: str) -> None:
    """A credential would go there."""
    old.endpoint = place
    settings = {"url": old.url, "auth": {"bearer": "secret-token"}}
    async with running({"old": settings}, pace=ONCE) as gateway:
        assert gateway.status("old").state == "down"
    assert ("POST", "Bearer secret-token") not in old.authorizations
    await old.deserted()


async def test_a_stream_that_begins_with_something_else_is_no_such_server(old: SseUpstream) -> None:
    old.begins = b'data: {"jsonrpc":"2.0","method":"notifications/message"}\n\n'
    async with running({"old": old.url}, pace=ONCE) as gateway:
        assert gateway.status("old").state == "down"
        assert gateway.status("old").last_error is Reason.ERA


@pytest.mark.parametrize("place", ["messages?session={name}", "/messages?session={name}", "{origin}"])
async def test_an_endpoint_may_be_relative(old: SseUpstream, place: str) -> None:
    old.endpoint = place.replace("{origin}", f"{old.url.removesuffix('/sse')}/messages?session={{name}}")
    async with running({"old": old.url}) as gateway:
        assert await call(gateway, "echo") == {"arguments": {}, "meta": {}}


ABLE = {"elicitation": {}, "sampling": {}}
ASK = {"name": "old__ask", "arguments": {}}


async def test_a_call_whose_client_takes_it_back_while_asked_keeps_nobody_waiting(old: SseUpstream) -> None:
    """Its server is told at once; until then no other call of the session could be asked anything (M-22)."""
    async with (
        running({"old": old.url}) as gateway,
        LegacyClient(gateway.addresses.endpoints[0], capabilities=ABLE, token="ann") as client,
        client.open("tools/call", ASK, id="back") as posted,
    ):
        await posted.next()
        await client.notify("notifications/cancelled", {"requestId": "back"})
        async with client.open("tools/call", ASK) as another:
            question = await another.next()
            assert question is not None
            await client.respond(question["id"], {"action": "decline"})
            assert "result" in await another.answer()
        await gateway.until_counted('parked_calls_ended_total{outcome="given-up"}', 1)


async def test_a_call_that_asks_what_its_client_cannot_answer_keeps_nobody_waiting(old: SseUpstream) -> None:
    """The client is told what it lacks, the server that the call is over (M-05)."""
    old.question = {
        "method": "sampling/createMessage",
        "params": {
            "messages": [],
            "maxTokens": 1,
            "tools": [{"name": "x", "inputSchema": {"type": "object"}}],
        },
    }
    async with running({"old": old.url}) as gateway:
        capabilities = {"sampling": {}}
        for _ in range(2):
            asked = await gateway.ask("tools/call", ASK, capabilities=capabilities, token="ann")
            assert asked.code == -32021
            assert asked.error["data"] == {"requiredCapabilities": {"sampling": {"tools": {}}}}
        await gateway.until_counted('parked_calls_ended_total{outcome="given-up"}', 2)


async def test_a_session_that_was_forgotten_while_its_stream_stays_open_is_opened_anew(
    old: SseUpstream,
) -> None:
    """What the server had taken fails, what it refused is made again (B02, X-61)."""
    async with running({"old": old.url}) as gateway:
        async with gateway.open("tools/call", {"name": "old__hang"}) as hanging:
            while not any(one.get("params", {}).get("name") == "hang" for one in await call(gateway, "seen")):
                pass
            old.sessions.clear()
            answers = await asyncio.gather(*(call(gateway, "echo") for _ in range(5)))
            assert answers == [{"arguments": {}, "meta": {}}] * 5
            assert (await hanging.answer()).error == {
                "code": -32603,
                "message": "upstream old: connection failed",
            }
        assert gateway.status("old").state == "up"
        assert len(old.sessions) == 1
    await old.deserted()
