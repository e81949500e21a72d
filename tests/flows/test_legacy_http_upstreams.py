"""Servers of older revisions behind the gateway, over Streamable HTTP with sessions."""

import asyncio
import json

import pytest

from gateway.protocol.call import META_VERSION, Change, Context, Partition, Reason, UpstreamUnavailable
from gateway.protocol.jsonrpc import McpError
from gateway.protocol.subscriptions import Wanted
from tests.support import pools
from tests.support.legacy_client import LegacyClient
from tests.support.legacy_upstream import LegacyServer, legacy, streamed, text
from tests.support.pools import ALPHA, settings
from tests.support.running import ONCE, running
from tests.support.scripted import (
    ScriptedUpstream,
    error,
    event,
    hang,
    notification,
    result,
    sse,
    status,
    tool,
)

ELICITATION = {"elicitation": {}}
ASK = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}


# Both ways


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26"])
@pytest.mark.parametrize("stateless", [False, True])
async def test_a_server_of_an_older_revision_is_served_to_a_modern_client(version, stateless):
    """Every method, each answer with the members a modern one has; nothing modern reaches the server."""
    async with (
        LegacyServer(
            version=version,
            stateless=stateless,
            tools=[tool("add"), tool("sub")],
            prompts=[{"name": "hello"}],
            resources=[{"uri": "file:///a", "name": "a"}],
            page_size=1,
        ) as server,
        running({"alpha": server}) as gateway,
    ):
        assert gateway.status("alpha").era == "legacy"
        assert gateway.status("alpha").version == version
        listed = await gateway.ask("tools/list")
        assert listed.names == ["alpha__add", "alpha__sub"]
        assert listed.hints == (0, "private")
        called = await gateway.ask("tools/call", {"name": "alpha__add", "arguments": {"a": 1.5}})
        assert called.text == {"tool": "add", "arguments": {"a": 1.5}}
        assert called.result["resultType"] == "complete"
        uri = (await gateway.ask("resources/list")).names[0]
        read = await gateway.ask("resources/read", {"uri": uri})
        assert read.result["contents"][0]["text"] == "content of file:///a"
        assert (await gateway.ask("prompts/get", {"name": "alpha__hello"})).text["prompt"] == "hello"
        params = {
            "ref": {"type": "ref/prompt", "name": "alpha__hello"},
            "argument": {"name": "x", "value": "v"},
            "context": {"arguments": {"y": "z"}},
        }
        completed = await gateway.ask("completion/complete", params)
        assert completed.result["completion"]["values"] == ["v-one"]
        assert ("context" in (await server.arrived("completion/complete")).params) is (version > "2025-04")
        assert server.initialized == 1


async def test_what_was_not_found_is_said_as_a_modern_server_would():
    """-32002 becomes -32602 (X-02), and the merged discover says what the handshake did."""
    async with (
        LegacyServer(resources=[{"uri": "file:///a", "name": "a"}]) as server,
        running({"alpha": server}) as gateway,
    ):
        server.on("resources/read", error(-32002, "gone", {"uri": "file:///a"}))
        uri = (await gateway.ask("resources/list")).names[0]
        assert (await gateway.ask("resources/read", {"uri": uri})).code == -32602
        discovered = (await gateway.ask("server/discover")).result
        assert discovered["capabilities"]["tools"] == {"listChanged": True}


async def test_progress_and_log_messages_reach_the_call_that_asked():
    """Its own token comes back (E-34); the level is set at the server, and sieved all the same (S-24)."""

    async def talk(call):
        assert call.token is not None
        await call.notify("notifications/progress", progressToken=call.token, progress=1, total=2)
        await call.notify("notifications/progress", progressToken=call.token, progress=1)
        await call.notify("notifications/progress", progressToken="strange", progress=5)
        await call.notify("notifications/message", level="info", data="too low")
        await call.notify("notifications/message", level="error", data="heard")
        return text("done")

    async with LegacyServer(tools=[tool("slow")]) as server, running({"alpha": server}) as gateway:
        server.on("tools/call", streamed(talk))
        meta = {"progressToken": "mine", "io.modelcontextprotocol/logLevel": "warning"}
        answer = await gateway.ask("tools/call", {"name": "alpha__slow"}, meta=meta)
        assert [(one["method"], one["params"]) for one in answer.notices] == [
            ("notifications/progress", {"progressToken": "mine", "progress": 1, "total": 2}),
            ("notifications/message", {"level": "error", "data": "heard"}),
        ]
        assert (await server.arrived("logging/setLevel")).params == {"level": "warning"}


async def test_the_servers_own_requests_are_answered_at_once():
    """ping with {}, everything else that nobody can be asked with -32601 (M-22)."""

    async def talk(call):
        return [
            await call.ask("ping"),
            await call.ask("roots/list"),
            await call.ask("com.example/own"),
            await call.ask("elicitation/create", ASK),
        ]

    async with LegacyServer(tools=[tool("a")]) as server, running({"alpha": server}) as gateway:
        server.on("tools/call", streamed(talk))
        ping, *others = json.loads(
            (await gateway.ask("tools/call", {"name": "alpha__a"})).result["content"][0]["text"]
        )
        assert ping["result"] == {}
        assert [one["error"]["code"] for one in others] == [-32601, -32601, -32601]


async def test_batched_messages_are_read_where_they_exist():
    """A revision of 2025-03-26 may put several into one (X-60)."""
    async with (
        LegacyServer(version="2025-03-26", tools=[tool("a")]) as server,
        pools.running(alpha=server) as gateway,
    ):

        async def behave(exchange):
            messages = [
                notification("notifications/progress", progressToken=exchange.id, progress=1),
                {"jsonrpc": "2.0", "id": exchange.id, "result": text("both")},
            ]
            await exchange.respond(200, {"Content-Type": "application/json"}, [json.dumps(messages).encode()])

        server.on("tools/call", behave)
        assert json.loads(await gateway.tool(wants_progress=True))["content"][0]["text"] == "both"
        assert [method for method, _ in gateway.notices] == ["notifications/progress"]


@pytest.mark.parametrize(
    "answered", [status(202), status(204), status(200), status(200, b"{}", "application/json")]
)
async def test_a_success_that_holds_no_answer_has_failed(answered):
    """U-25."""
    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server) as gateway:
        server.on("tools/call", answered)
        with pytest.raises(UpstreamUnavailable) as caught:
            await gateway.tool()
        assert caught.value.reason is Reason.PROTOCOL
        server.reset()
        await gateway.tool()


# Sessions (B02, B07, B29)


@pytest.mark.parametrize(
    "unknown",
    [
        error(-32001, "Session not found", http=404),
        status(404),
        error(-32000, "Bad Request: No valid session ID provided", http=400, id=None),
        error(-32000, "Bad Request: Server not initialized", http=400),
        status(410),
    ],
)
async def test_a_forgotten_session_is_opened_anew_once_for_all(unknown):
    """Twenty calls meet it at once: one handshake without a session header, each call once more (B02)."""
    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server) as gateway:
        await gateway.tool()
        before = len(server.seen("tools/call"))
        server.unknown = unknown
        server.forget()
        await asyncio.gather(*(gateway.tool() for _ in range(20)))
        assert server.initialized == 2
        assert server.seen("initialize")[-1].header("mcp-session-id") is None
        calls = server.seen("tools/call")[before:]
        assert len([call for call in calls if call.header("mcp-session-id") == "session-2"]) == 20
        assert len(calls) <= 40


async def test_a_server_without_a_route_for_streams_keeps_its_sessions():
    """A 404 to GET says nothing of the session, which is asked (B02, B29)."""
    async with (
        LegacyServer(tools=[tool("a"), tool("set_note"), tool("get_note")]) as server,
        pools.running(alpha=server) as gateway,
    ):
        server.on("", status(404))
        note = {"name": b'"set_note"', "arguments": b'{"note":"kept"}'}
        await gateway.call("tools/call", params=note, context=Context("ann"))
        session = server.sessions["session-2"]
        await server.until(lambda: any(_in(session, one) for one in server.seen("ping")))
        said = json.loads(await gateway.tool("get_note", context=Context("ann")))
        assert said["content"][0]["text"] == "kept"
        assert server.initialized == 2
        server.reset()


async def test_a_stream_that_is_refused_since_the_session_is_gone_ends_that():
    """The server says so of a ping, too."""
    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server) as gateway:
        await gateway.tool(context=Context("ann"))
        session = server.sessions["session-2"]
        await server.stood(session)
        server.forget()
        await server.until(lambda: any(_in(session, one) for one in server.seen("ping")))
        await gateway.tool(context=Context("ann"))
        assert session.id not in server.sessions


def _in(session, received):
    """Whether a message came in this session."""
    return received.header("mcp-session-id") == session.id


@pytest.mark.parametrize(
    ("code", "message", "http"),
    [
        (-32602, "missing argument: browser session id is required", 400),
        (-32602, "Unknown session: none of the browser's", 404),
        (-32601, "Method not found", 404),
    ],
)
async def test_an_error_of_a_request_is_not_taken_for_a_lost_session(code, message, http):
    """Whatever the status: it names the request, so it was read; it is not run again (B02)."""
    async with (
        LegacyServer(tools=[tool("a"), tool("get_note")]) as server,
        pools.running(alpha=server) as gateway,
    ):
        server.once("tools/call", error(code, message, http=http))
        with pytest.raises(McpError) as caught:
            await gateway.tool()
        assert (caught.value.code, caught.value.message) == (code, message)
        await gateway.tool("get_note")
        assert len(server.seen("tools/call")) == 2
        assert server.initialized == 1


async def test_a_ping_that_is_no_method_of_the_servers_opens_no_session():
    """An error is an answer (B29)."""
    async with LegacyServer() as server, pools.running(alpha=server) as gateway:
        server.on("ping", error(-32601, "no ping", http=404))
        for _ in range(5):
            assert (await gateway.pool._members[ALPHA]._upstream.probe()).reason is None
        assert server.initialized == 1


@pytest.mark.parametrize(("id", "named"), [("x" * 4000, True), ("", False)])
async def test_a_session_may_have_a_long_name_or_none(id, named):
    """A gateway's own are long, too; an empty header names nothing."""
    async with LegacyServer(tools=[tool("a")], stateless=True) as server:

        async def greet(exchange):
            result = {
                "protocolVersion": server.version,
                "capabilities": server.capabilities,
                "serverInfo": {"name": "old", "version": "1"},
            }
            await exchange.reply({"result": result}, **{"Mcp-Session-Id": id})

        server.on("initialize", greet)
        async with pools.running(alpha=server) as gateway:
            await gateway.tool()
            assert server.seen("tools/call")[0].header("mcp-session-id") == (id if named else None)


async def test_a_server_that_forgets_each_session_at_once_is_given_up():
    """One replay, then a clear error (X-29)."""
    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server) as gateway:
        server.once("tools/call", *[error(-32001, "Session not found", http=404)] * 2)
        with pytest.raises(UpstreamUnavailable) as caught:
            await gateway.tool()
        assert caught.value.reason is Reason.STATUS
        assert len(server.seen("tools/call")) == 2
        await gateway.tool()


async def test_notes_of_two_users_are_kept_apart():
    """A session for each caller; with another credential it is another, and lists follow calls (B07)."""
    async with LegacyServer(tools=[tool("set_note"), tool("get_note")]) as server:
        settings = {"alpha": {"url": server.url, "auth": "forward"}}
        async with running(settings) as gateway:

            async def note(token):
                answer = await gateway.ask("tools/call", {"name": "alpha__get_note"}, token=token)
                return answer.result["content"][0]["text"]

            params = {"name": "alpha__set_note", "arguments": {"note": "of ann"}}
            await gateway.ask("tools/call", params, token="ANN")
            assert await note("ANN") == "of ann"
            assert await note("BOB") == "none"
            assert await note("ANN-2") == "none"
            await gateway.ask("tools/list", token="BOB")
            listed = server.seen("tools/list")[-1]
            session = server.sessions[listed.header("mcp-session-id")]
            assert (session.authorization, listed.header("authorization")) == ("Bearer BOB", "Bearer BOB")
    for received in server.requests:
        session = received.header("mcp-session-id")
        if session is not None and received.method == "tools/call":
            opened = server.seen("initialize")[int(session.removeprefix("session-")) - 1]
            assert opened.header("authorization") == received.header("authorization")


@pytest.mark.parametrize(
    ("isolation", "found"), [(None, ["of ann", "none"]), ("shared", ["of ann", "of ann"])]
)
async def test_isolation_says_who_shares_a_session(isolation, found):
    """By default nobody shares another caller's."""
    async with (
        LegacyServer(tools=[tool("set_note"), tool("get_note")]) as server,
        running({"alpha": {"url": server.url, "isolation": isolation}}) as gateway,
    ):
        params = {"name": "alpha__set_note", "arguments": {"note": "of ann"}}
        await gateway.ask("tools/call", params, token="ANN")
        notes = [
            await gateway.ask("tools/call", {"name": "alpha__get_note"}, token=one) for one in ("ANN", "BOB")
        ]
        assert [note.result["content"][0]["text"] for note in notes] == found


async def test_idle_sessions_end_and_the_server_is_told():
    """The gateway's own stays (B29)."""
    async with LegacyServer(tools=[tool("a")]) as server:
        one = settings(server, session_idle=0.01)
        async with pools.running(alpha=one) as gateway:
            await gateway.tool(context=Context("ann"))
            await gateway.tool(context=Context("bob"))
            await server.until(lambda: len(server.deleted) == 2)
            assert list(server.sessions) == ["session-1"]
        assert len(server.deleted) == 3


async def test_sessions_are_capped_and_the_one_idle_longest_ends():
    """Whoever comes back has another (B29)."""
    async with LegacyServer(tools=[tool("a")]) as server:
        few = settings(server, sessions=3)
        async with pools.running(alpha=few) as gateway:
            for caller in ("ann", "bob", "cid", "bob", "dan"):
                await gateway.tool(context=Context(caller))
            await server.until(lambda: len(server.deleted) == 2)
            assert server.deleted == ["session-2", "session-4"]
            assert list(server.sessions) == ["session-1", "session-3", "session-5"]


async def test_a_thousand_health_checks_mint_no_session():
    """They ask in the session that is there (B29)."""
    async with LegacyServer() as server, pools.running(alpha=server) as gateway:
        member = gateway.pool._members[ALPHA]
        asyncio.get_running_loop().set_debug(False)  # which takes most of the time
        for _ in range(1000):
            verdict = await member._upstream.probe()
            assert verdict.reason is None
        assert (server.initialized, len(server.sessions)) == (1, 1)
        assert len(server.seen("ping")) == 1000
        assert server.connections < 20


async def test_with_every_session_busy_a_call_waits_for_one():
    """There is room again when one becomes idle (B29)."""
    async with LegacyServer(tools=[tool("a")]) as server:
        few = settings(server, sessions=2)
        async with pools.running(alpha=few) as gateway, gateway.pool.listen(ALPHA, Wanted(tools=True)):
            over = asyncio.Event()
            server.once("tools/call", hang(over, legacy))
            busy = asyncio.ensure_future(gateway.tool(context=Context("ann")))
            await server.arrived("tools/call")
            waiting = asyncio.ensure_future(gateway.tool(context=Context("bob")))
            counting = 'mcp_gateway_upstream_sessions_waiting{upstream="alpha"}'
            while await gateway.counted(counting) != 1:
                pass
            assert server.initialized == gateway.pool.status(ALPHA).sessions == 2
            over.set()
            await asyncio.gather(busy, waiting)
            assert await gateway.counted(counting) == 0
            assert await gateway.counted('mcp_gateway_upstream_sessions{upstream="alpha"}') == 2
            assert (
                await gateway.counted('mcp_gateway_upstream_sessions_displaced_total{upstream="alpha"}') == 1
            )
            assert server.deleted == ["session-2"]


async def test_a_server_that_answers_no_ping_is_down_until_it_does():
    """A probe has its time."""
    async with (
        LegacyServer(tools=[tool("a")]) as server,
        pools.running(alpha=settings(server), pace=ONCE) as gateway,
    ):
        upstream = gateway.pool._members[ALPHA]._upstream
        patience, upstream._legacy._probe_timeout = upstream._legacy._probe_timeout, 0.01
        server.on("ping", hang())
        verdict = await upstream.probe()
        assert (verdict.reason, verdict.outage) == (Reason.TIMEOUT, True)
        server.reset()
        upstream._legacy._probe_timeout = patience
        assert (await upstream.probe()).reason is None
        assert server.initialized == 1


async def test_a_delete_that_is_refused_hurts_nobody():
    """405 is a legal answer to it."""
    async with LegacyServer(tools=[tool("a")]) as server:
        hasty = settings(server, session_idle=0.01)
        async with pools.running(alpha=hasty) as gateway:
            server.on("", status(405))
            await gateway.tool(context=Context("ann"))
            await server.until(lambda: any(one.verb == "DELETE" for one in server.requests))
            server.reset()
            await gateway.tool(context=Context("ann"))


# Cancelling (B21, U-23, X-63)


async def test_a_client_that_leaves_cancels_at_the_server():
    """By a notification with our id; closing its stream would be none (B21)."""
    async with LegacyServer(tools=[tool("slow")]) as server, running({"alpha": server}) as gateway:
        server.on("tools/call", hang())
        async with gateway.open("tools/call", {"name": "alpha__slow"}, id=101):
            call = await server.arrived("tools/call")
        told = await server.arrived("notifications/cancelled")
        assert told.params["requestId"] == call.message["id"]
        assert told.header("mcp-session-id") == call.header("mcp-session-id")


async def test_a_call_that_takes_too_long_is_cancelled_at_the_server():
    """X-63."""
    async with LegacyServer(tools=[tool("slow")]) as server:
        impatient = settings(server, timeout=0.3)
        async with pools.running(alpha=impatient) as gateway:
            server.on("tools/call", hang())
            with pytest.raises(UpstreamUnavailable):
                await gateway.tool()
            call = await server.arrived("tools/call")
            assert (await server.arrived("notifications/cancelled")).params["requestId"] == call.message["id"]


# Questions (M-19 to M-22)


async def test_a_question_inside_a_call_becomes_input_required():
    """The call waits, the retry brings the answer to it, and the server goes on (M-19)."""

    async def talk(call):
        return (await call.ask("elicitation/create", ASK))["result"]

    async with LegacyServer(tools=[tool("a")]) as server, running({"alpha": server}) as gateway:
        server.on("tools/call", streamed(talk))
        asked = await gateway.ask("tools/call", {"name": "alpha__a"}, capabilities=ELICITATION, token="ANN")
        assert asked.result["resultType"] == "input_required"
        ((key, request),) = asked.result["inputRequests"].items()
        assert request["method"] == "elicitation/create"
        assert request["params"]["message"] == "[alpha] Who?"
        answer = {"action": "accept", "content": {"name": "Ann"}}
        params = {
            "name": "alpha__a",
            "inputResponses": {key: answer},
            "requestState": asked.result["requestState"],
        }
        done = await gateway.ask("tools/call", params, capabilities=ELICITATION, token="ANN")
        assert json.loads(done.result["content"][0]["text"]) == answer
        assert len(server.seen("tools/call")) == 1
        declared = [one.params["capabilities"] for one in server.seen("initialize")]
        assert declared == [{}, {"elicitation": {"form": {}}}]
        again = await gateway.ask("tools/call", params, capabilities=ELICITATION, token="ANN")
        assert again.code == -32602


async def test_questions_that_come_together_are_asked_together_and_more_later():
    """Two within the moment are one round, a third another (M-19)."""

    async def talk(call):
        first = await asyncio.gather(call.ask("roots/list"), call.ask("elicitation/create", ASK))
        return [*first, await call.ask("roots/list")]

    capabilities = {"elicitation": {}, "roots": {}}
    answers = {"elicitation/create": {"action": "decline"}, "roots/list": {"roots": []}}
    async with LegacyServer(tools=[tool("a")]) as server, running({"alpha": server}) as gateway:
        server.on("tools/call", streamed(talk))
        params = {"name": "alpha__a"}
        rounds = []
        while True:
            answer = await gateway.ask("tools/call", params, capabilities=capabilities, token="ANN")
            if answer.result["resultType"] == "complete":
                break
            asked = answer.result["inputRequests"]
            rounds.append(sorted(one["method"] for one in asked.values()))
            params = {
                "name": "alpha__a",
                "requestState": answer.result["requestState"],
                "inputResponses": {key: answers[one["method"]] for key, one in asked.items()},
            }
        assert rounds == [["elicitation/create", "roots/list"], ["roots/list"]]
        assert len(server.seen("tools/call")) == 1


async def test_an_anonymous_call_that_may_be_asked_has_a_session_of_its_own():
    """It ends with the call; others' calls meanwhile are in none that can be asked anything (M-22)."""

    async def talk(call):
        return (await call.ask("elicitation/create", ASK))["result"]

    async with LegacyServer(tools=[tool("a")]) as server, running({"alpha": server}) as gateway:
        server.once("tools/call", streamed(talk))
        asked = await gateway.ask("tools/call", {"name": "alpha__a"}, capabilities=ELICITATION)
        (key,) = asked.result["inputRequests"]
        await gateway.ask("tools/call", {"name": "alpha__a"})
        assert [len(one.capabilities) for one in server.sessions.values()] == [0, 1]
        params = {
            "name": "alpha__a",
            "inputResponses": {key: {"action": "cancel"}},
            "requestState": asked.result["requestState"],
        }
        await gateway.ask("tools/call", params, capabilities=ELICITATION)
        await server.until(lambda: server.deleted == ["session-2"])
        assert list(server.sessions) == ["session-1"]


async def test_what_nobody_answers_is_cancelled_at_the_server():
    """A call waits for a bounded time (M-20)."""

    async def talk(call):
        return await call.ask("elicitation/create", ASK)

    limits = {"anonymous_input_wait": 0.05}
    async with (
        LegacyServer(tools=[tool("a")]) as server,
        running({"alpha": server}, limits=limits) as gateway,
    ):
        server.on("tools/call", streamed(talk))
        await gateway.ask("tools/call", {"name": "alpha__a"}, capabilities=ELICITATION)
        call = await server.arrived("tools/call")
        assert (await server.arrived("notifications/cancelled")).params["requestId"] == call.message["id"]
        await server.until(lambda: "session-2" in server.deleted)


async def test_a_question_that_the_server_takes_back_is_not_asked():
    """Its own cancelled names it."""

    async def talk(call):
        waiting = asyncio.ensure_future(call.ask("elicitation/create", ASK, id=77))
        await asyncio.sleep(0)
        await call.notify("notifications/cancelled", requestId=77)
        waiting.cancel()
        return "went on"

    async with LegacyServer(tools=[tool("a")]) as server, running({"alpha": server}) as gateway:
        server.on("tools/call", streamed(talk))
        answer = await gateway.ask("tools/call", {"name": "alpha__a"}, capabilities=ELICITATION)
        assert answer.result["resultType"] == "complete"


async def test_a_question_taken_back_as_others_are_waited_for_is_not_asked(monkeypatch):
    """Nothing empty is asked; of two the other is (M-19)."""

    async def talk(call):
        first = asyncio.ensure_future(call.ask("elicitation/create", ASK, id=77))
        await call.ask("ping")
        await call.notify("notifications/cancelled", requestId=77)
        first.cancel()
        await asyncio.sleep(0.6)  # twice as long as anything is gathered
        return (await call.ask("roots/list"))["result"]

    monkeypatch.setattr("gateway.upstream.exchange.GATHER", 0.3)
    capabilities = {"elicitation": {}, "roots": {}}
    async with LegacyServer(tools=[tool("a")]) as server, running({"alpha": server}) as gateway:
        server.on("tools/call", streamed(talk))
        params = {"name": "alpha__a"}
        asked = await gateway.ask("tools/call", params, capabilities=capabilities, token="ANN")
        assert [one["method"] for one in asked.result["inputRequests"].values()] == ["roots/list"]


async def test_a_retry_without_answers_gets_the_result_of_a_question_taken_back():
    """There is nothing to answer (M-19)."""
    over = asyncio.Event()

    async def talk(call):
        waiting = asyncio.ensure_future(call.ask("elicitation/create", ASK, id=77))
        await over.wait()
        await call.notify("notifications/cancelled", requestId=77)
        waiting.cancel()
        return "went on"

    async with LegacyServer(tools=[tool("a")]) as server, running({"alpha": server}) as gateway:
        server.on("tools/call", streamed(talk))
        asked = await gateway.ask("tools/call", {"name": "alpha__a"}, capabilities=ELICITATION, token="ANN")
        over.set()
        params = {"name": "alpha__a", "requestState": asked.result["requestState"]}
        done = await gateway.ask("tools/call", params, capabilities=ELICITATION, token="ANN")
        assert done.text == "went on"


@pytest.mark.parametrize("answered", [True, False])
async def test_an_older_client_is_told_that_a_question_is_taken_back(answered):
    """And gets what its call comes to, whether or not the server wants to know another thing (9.5, B44)."""
    over = asyncio.Event()

    async def talk(call):
        first = asyncio.ensure_future(call.ask("elicitation/create", ASK, id=77))
        second = asyncio.ensure_future(call.ask("roots/list")) if answered else None
        await over.wait()
        await call.notify("notifications/cancelled", requestId=77)
        first.cancel()
        return "went on" if second is None else (await second)["result"]

    capabilities = {"elicitation": {}, "roots": {}}
    async with (
        LegacyServer(tools=[tool("a")]) as server,
        running({"alpha": server}) as gateway,
        LegacyClient(gateway.addresses.endpoints[0], capabilities=capabilities, token="ann") as client,
        client.open("tools/call", {"name": "alpha__a"}) as posted,
    ):
        server.on("tools/call", streamed(talk))
        asked = {}
        for _ in range(1 + answered):
            question = await posted.next()
            asked[question["method"]] = question["id"]
        over.set()
        taken_back = await posted.next()
        assert taken_back["method"] == "notifications/cancelled"
        assert taken_back["params"]["requestId"] == asked["elicitation/create"]
        if answered:
            await client.respond(asked["roots/list"], {"roots": []})
        said = json.loads((await posted.answer())["result"]["content"][0]["text"])
        assert said == ({"roots": []} if answered else "went on")


async def test_an_older_client_hears_at_once_that_its_asking_server_is_lost():
    """It need not answer first (B44)."""

    async def talk(call):
        asking = asyncio.ensure_future(call.ask("elicitation/create", ASK))
        await over.wait()
        asking.cancel()
        call.exchange.abort()
        return text()

    over = asyncio.Event()
    async with (
        LegacyServer(tools=[tool("a")]) as server,
        running({"alpha": server}) as gateway,
        LegacyClient(gateway.addresses.endpoints[0], capabilities=ELICITATION, token="ann") as client,
        client.open("tools/call", {"name": "alpha__a"}) as posted,
    ):
        server.on("tools/call", streamed(talk))
        question = await posted.next()
        over.set()
        assert (await posted.next())["params"]["requestId"] == question["id"]
        assert (await posted.answer())["error"]["message"] == "upstream alpha: connection failed"


async def test_what_a_standing_stream_logs_is_nobodys():
    """It may be about another caller's work (9.5)."""

    async def talk(call):
        await server.notify("notifications/message", level="error", data="of whom?")
        await call.notify("notifications/message", level="error", data="heard")
        return text("done")

    async with (
        LegacyServer(tools=[tool("a")]) as server,
        running({"alpha": {"url": server.url, "isolation": "shared"}}) as gateway,
    ):
        await server.standing()
        server.on("tools/call", streamed(talk))
        meta = {"io.modelcontextprotocol/logLevel": "debug"}
        answer = await gateway.ask("tools/call", {"name": "alpha__a"}, meta=meta, token="ANN")
        assert [one["params"]["data"] for one in answer.notices] == ["heard"]
        await gateway.until_counted('dropped_total{upstream="alpha",what="log"}', 1)


async def test_a_result_is_handed_on_though_the_answer_is_not_said_to_be_taken():
    """The server may work on before it answers that POST."""
    over = asyncio.Event()

    async def talk(call):
        return (await call.ask("elicitation/create", ASK))["result"]

    async def taken(exchange):
        message = exchange.received.message
        if "id" in message and "method" not in message:
            server._questions.pop(message["id"]).set_result(message)
            await over.wait()
            await status(202)(exchange)
        else:
            await legacy(exchange)

    async with LegacyServer(tools=[tool("a")]) as server, running({"alpha": server}) as gateway:
        server.on("tools/call", streamed(talk))
        server.on("", taken)
        assert await _answered(gateway, {"action": "decline"}) == {"action": "decline"}
        over.set()


async def _answered(gateway, answer):
    """Return what a call comes to that asks one question, answered so, or the error's code."""
    asked = await gateway.ask("tools/call", {"name": "alpha__a"}, capabilities=ELICITATION, token="ANN")
    ((key, _),) = asked.result["inputRequests"].items()
    params = {
        "name": "alpha__a",
        "inputResponses": {key: answer},
        "requestState": asked.result["requestState"],
    }
    done = await gateway.ask("tools/call", params, capabilities=ELICITATION, token="ANN")
    return done.text if "result" in done.message else done.code


@pytest.mark.parametrize("media", ["text/plain", "application/json"])
async def test_what_a_user_answered_reaches_no_log(media, caplog):
    """Not even where the server refuses it and says all of it again (M-25)."""
    caplog.set_level("DEBUG", logger="gateway")

    async def talk(call):
        return await call.ask("elicitation/create", ASK)

    async def refused(exchange):
        message = exchange.received.message
        if "id" in message and "method" not in message:
            said = {"jsonrpc": "2.0", "error": {"code": -32603, "message": json.dumps(message)}}
            await status(500, json.dumps(said).encode(), media)(exchange)
        else:
            await legacy(exchange)

    async with LegacyServer(tools=[tool("a")]) as server, running({"alpha": server}) as gateway:
        server.on("tools/call", streamed(talk))
        server.on("", refused)
        assert await _answered(gateway, {"action": "accept", "content": {"pin": "4711-SECRET"}}) == -32603
        call = server.seen("tools/call")[0]
        assert (await server.arrived("notifications/cancelled")).params["requestId"] == call.message["id"]
    assert "HTTP 500" in caplog.text
    assert "4711-SECRET" not in caplog.text


async def test_the_name_of_a_session_reaches_no_log(caplog):
    """Whoever knows it may speak in it, for all that many a server checks."""
    caplog.set_level("DEBUG", logger="gateway")

    async def refused(exchange):
        name = exchange.received.header("mcp-session-id")
        await status(500, f"trouble in {name}".encode(), "text/plain")(exchange)

    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server) as gateway:
        server.on("tools/call", refused)
        with pytest.raises(UpstreamUnavailable):
            await gateway.tool()
    assert "trouble in ***" in caplog.text
    assert "session-1" not in caplog.text


async def test_what_a_user_answered_to_a_modern_server_reaches_no_log_either(caplog):
    """M-25."""
    caplog.set_level("DEBUG", logger="gateway")
    form = {"method": "elicitation/create", "params": ASK}
    asks = result({"resultType": "input_required", "inputRequests": {"k": form}, "requestState": "s"})

    async def refused(exchange):
        await status(500, b"got " + exchange.received.body, "text/plain")(exchange)

    async with ScriptedUpstream(tools=[tool("a")]) as server, running({"alpha": server}) as gateway:
        server.once("tools/call", asks)
        server.on("tools/call", refused)
        assert await _answered(gateway, {"action": "accept", "content": {"pin": "4711-SECRET"}}) == -32603
    assert "HTTP 500" in caplog.text
    assert "4711-SECRET" not in caplog.text


async def test_many_messages_in_one_write_all_arrive():
    """Who made the call slows its stream down, and so do the answers to the server."""
    answered = []

    async def talk(call):
        said = [notification("notifications/message", level="info", data=number) for number in range(1000)]
        for _ in range(300):
            id, answer = server.question(None)
            answered.append(answer)
            said.append({"jsonrpc": "2.0", "id": id, "method": "ping"})
        await call.response.write(b"".join(map(event, said)))
        await asyncio.gather(*answered)
        return "done"

    async with LegacyServer(tools=[tool("a")]) as server, running({"alpha": server}) as gateway:
        server.on("tools/call", streamed(talk))
        meta = {"io.modelcontextprotocol/logLevel": "debug"}
        answer = await gateway.ask("tools/call", {"name": "alpha__a"}, meta=meta, token="ANN")
        assert [one["params"]["data"] for one in answer.notices] == list(range(1000))
        assert answer.text == "done"


async def test_pages_to_visit_become_questions_and_the_call_is_made_again():
    """-32042 with elicitation.url, and -32021 without it (M-21)."""
    page = {"mode": "url", "elicitationId": "e1", "url": "https://a.example/go", "message": "Go there"}
    async with LegacyServer(tools=[tool("a")]) as server, running({"alpha": server}) as gateway:
        server.once("tools/call", *[error(-32042, "visit", {"elicitations": [page]})] * 2)
        without = await gateway.ask("tools/call", {"name": "alpha__a"}, capabilities=ELICITATION)
        assert (without.code, without.error["data"]["requiredCapabilities"]) == (
            -32021,
            {"elicitation": {"url": {}}},
        )
        capabilities = {"elicitation": {"url": {}}}
        asked = await gateway.ask("tools/call", {"name": "alpha__a"}, capabilities=capabilities)
        ((key, request),) = asked.result["inputRequests"].items()
        assert request["params"] == {
            "mode": "url",
            "url": "https://a.example/go",
            "message": "[alpha] Go there",
        }
        params = {
            "name": "alpha__a",
            "inputResponses": {key: {"action": "accept"}},
            "requestState": asked.result["requestState"],
        }
        done = await gateway.ask("tools/call", params, capabilities=capabilities)
        assert done.text["tool"] == "a"
        assert "inputResponses" not in server.seen("tools/call")[-1].params


async def test_a_question_on_the_standing_stream_belongs_to_the_only_call_there_is():
    """With two under way nobody could say whose it is: -32601 (M-22)."""

    async def talk(call):
        id, answered = server.question(None)
        session = server.session_of(call.exchange.received)
        await server.stood(session)
        await session.standing.write(event({"jsonrpc": "2.0", "id": id, "method": "roots/list"}))
        return await answered

    capabilities = {"roots": {}}
    async with (
        LegacyServer(tools=[tool("a")], resources=[{"uri": "file:///a", "name": "a"}]) as server,
        running({"alpha": server}) as gateway,
    ):
        server.on("tools/call", streamed(talk))
        uri = (await gateway.ask("resources/list", token="ANN")).names[0]
        asked = await gateway.ask("tools/call", {"name": "alpha__a"}, capabilities=capabilities, token="ANN")
        assert [one["method"] for one in asked.result["inputRequests"].values()] == ["roots/list"]
        call = server.seen("tools/call")[0]
        server.on("resources/read", hang())
        async with gateway.open(
            "resources/read", {"uri": uri}, capabilities=capabilities, token="ANN"
        ) as other:
            await server.arrived("resources/read")
            answer = await gateway.ask(
                "tools/call", {"name": "alpha__a"}, capabilities=capabilities, token="ANN"
            )
            assert json.loads(answer.result["content"][0]["text"])["error"]["code"] == -32601
            other.leave()
        assert server.session_of(call).capabilities == {"roots": {}}


# What it tells of (L-26)


async def test_what_a_callers_session_is_told_changes_for_that_caller():
    """And for nobody else."""
    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server) as gateway:
        await gateway.tool(context=Context("ann"))
        session = server.sessions["session-2"]
        await server.stood(session)
        await session.standing.write(event(notification("notifications/tools/list_changed")))
        assert await gateway.changes.get() == Change(ALPHA, "tools/list", partition=Partition("ann"))
        await session.standing.write(event(notification("notifications/resources/updated", uri="a:b")))
        assert await gateway.changes.get() == Change(
            ALPHA, "resources/read", "a:b", "updated", Partition("ann")
        )


async def test_a_change_beside_an_answer_is_heard_too():
    """Wherever the server says it."""

    async def talk(call):
        await call.notify("notifications/prompts/list_changed")
        await call.notify("notifications/elicitation/complete", elicitationId="e1")
        await call.notify("com.example/told", a=1)
        return text("done")

    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server) as gateway:
        server.on("tools/call", streamed(talk))
        await gateway.tool()
        assert await gateway.changes.get() == Change(ALPHA, "prompts/list")
        assert gateway.notices == [("com.example/told", {"a": b"1"})]


async def test_a_standing_stream_with_ids_is_gone_on_with_and_nothing_was_missed():
    """The listener does not notice (X-29)."""
    async with (
        LegacyServer(tools=[tool("a")]) as server,
        pools.running(alpha=server) as gateway,
        gateway.pool.listen(ALPHA, Wanted(tools=True)) as listening,
    ):
        (session,) = await server.standing()
        await session.standing.write(b"id: e7\nretry: 1\ndata: \n\n")
        session.over.set()
        await server.until(lambda: any(one.header("last-event-id") == "e7" for one in server.requests))
        session.over.clear()
        await server.stood(session)
        await server.notify("notifications/tools/list_changed")
        assert (await anext(listening)).method == "notifications/tools/list_changed"


async def test_a_lost_standing_stream_without_ids_ends_the_listen():
    """What was said meanwhile is not said again: whoever listens has to know (L-18)."""
    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server) as gateway:
        async with gateway.pool.listen(ALPHA, Wanted(tools=True)) as listening:
            (session,) = await server.standing()
            session.over.set()
            with pytest.raises(UpstreamUnavailable):
                await anext(listening)
        session.over.clear()
        async with gateway.pool.listen(ALPHA, Wanted(tools=True)) as listening:
            await server.stood(session)
            assert listening.honoured == Wanted(tools=True)


async def test_changes_come_on_the_standing_stream():
    """Lists by its flags, resources by a subscription each, whoever wants them."""
    uri = "file:///a"
    async with (
        LegacyServer(tools=[tool("a")], resources=[{"uri": uri, "name": "a"}]) as server,
        running({"alpha": server}) as gateway,
    ):
        (own,) = await server.standing()
        exposed = (await gateway.ask("resources/list")).names[0]
        wanted = {"toolsListChanged": True, "resourceSubscriptions": [exposed]}
        async with gateway.open("subscriptions/listen", {"notifications": wanted}) as listen:
            assert (await listen.event())["params"]["notifications"] == wanted
            assert own.subscribed == [uri]
            server.tools.append(tool("b"))
            await server.notify("notifications/tools/list_changed")
            assert (await listen.event())["method"] == "notifications/tools/list_changed"
            await server.notify("notifications/resources/updated", uri=uri)
            event = await listen.event()
            assert (event["method"], event["params"]["uri"]) == ("notifications/resources/updated", exposed)
        assert server.initialized == 1


async def test_a_forgotten_session_is_subscribed_anew():
    """And what may have been missed is told of (L-18, X-29)."""
    uri = "file:///a"
    async with (
        LegacyServer(resources=[{"uri": uri, "name": "a"}]) as server,
        running({"alpha": server}) as gateway,
    ):
        exposed = (await gateway.ask("resources/list")).names[0]
        wanted = {"resourceSubscriptions": [exposed]}
        async with gateway.open("subscriptions/listen", {"notifications": wanted}) as listen:
            await listen.event()
            await server.subscribed(uri)
            server.forget()
            event = await listen.event()
            assert (event["method"], event["params"]["uri"]) == ("notifications/resources/updated", exposed)
            await server.subscribed(uri)
            assert server.initialized == 2


async def test_without_a_standing_stream_there_is_nothing_to_follow():
    """-32601, as from any that serves no subscriptions; its lists are looked at again by their ttl."""
    async with LegacyServer(stands=False) as server, running({"alpha": server}) as gateway:
        wanted = {"toolsListChanged": True}
        async with gateway.open("subscriptions/listen", {"notifications": wanted}) as listen:
            await listen.event()
        with pytest.raises(McpError) as caught:
            async with gateway.runtime.pool.listen(ALPHA, Wanted(tools=True)):
                pass
        assert caught.value.code == -32601


async def test_an_operators_floor_keeps_lists_until_they_change():
    """Such a server gives no hints; what it tells of a change is believed at once (C-15)."""
    async with LegacyServer(tools=[tool("a")]) as server:
        kept = {"url": server.url, "cache": {"min_ttl": {"tools/list": "60s"}}}
        async with running({"alpha": kept}) as gateway:
            await server.standing()
            listed = await gateway.ask("tools/list", token="ANN")
            assert listed.hints[1] == "private"
            assert listed.hints[0] > 0
            before = len(server.seen("tools/list"))
            await gateway.ask("tools/list", token="ANN")
            assert len(server.seen("tools/list")) == before
            wanted = {"notifications": {"toolsListChanged": True}}
            async with gateway.open("subscriptions/listen", wanted, token="ANN") as listen:
                await listen.event()
                server.tools.append(tool("b"))
                await server.notify("notifications/tools/list_changed")
                await listen.event()
            assert (await gateway.ask("tools/list", token="ANN")).names == ["alpha__a", "alpha__b"]


# Streams that are resumed (X-29)


async def test_an_answers_stream_that_was_cut_is_gone_on_with():
    """By GET, where it was left, as its ids say; without ids it has failed."""
    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server) as gateway:

        async def cut(exchange):
            gateway.id = exchange.id
            await exchange.respond(
                200, {"Content-Type": "text/event-stream"}, [b"id: e1\nretry: 1\ndata: \n\n"]
            )

        async def resumed(exchange):
            if exchange.received.header("last-event-id") is None:
                await status(405)(exchange)
                return
            answer = event({"jsonrpc": "2.0", "id": gateway.id, "result": text("late")})
            await exchange.respond(200, {"Content-Type": "text/event-stream"}, [answer])

        server.on("", resumed)
        server.on("tools/call", cut)
        assert json.loads(await gateway.tool())["content"][0]["text"] == "late"
        gets = [one for one in server.requests if one.header("last-event-id") is not None]
        assert [one.header("last-event-id") for one in gets] == ["e1"]
        server.on("tools/call", sse(b": nothing\n\n"))
        with pytest.raises(UpstreamUnavailable):
            await gateway.tool()


class Noting(pools.Pace):
    """A pace that keeps how long the rows of failures were that it was asked about."""

    def __init__(self, first, longest):
        super().__init__(first, longest, patience=2.0, gap=0.0)
        object.__setattr__(self, "rows", [])

    def pause(self, failures, chance):
        self.rows.append(failures)
        return super().pause(failures, chance)


@pytest.mark.parametrize("ending", [b"", b"retry: 0\n\n", b"id: 1\nretry: 1\ndata: \n\n"])
async def test_a_standing_stream_that_ends_as_it_begins_is_asked_for_ever_less(ending):
    """Whatever pause it wishes for (B45)."""
    pace = Noting(0.01, 0.02)
    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server, pace=pace) as gateway:
        server.on("", sse(*[ending] if ending else []))
        await gateway.tool(context=Context("ann"))
        session = server.sessions["session-2"]
        await server.until(lambda: len([one for one in server.seen("") if _in(session, one)]) > 4)
        assert {1, 2, 3, 4} <= set(pace.rows)
        server.reset()


async def test_a_server_that_wishes_for_a_pause_gets_it():
    """Within reason."""
    pace = Noting(0.01, 60.0)
    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server, pace=pace):
        server.on("", sse(b"id: 1\nretry: 20\ndata: \n\n"))
        await server.until(lambda: len(server.seen("")) > 5)
        assert pace.rows == []
        server.reset()


async def test_an_answers_stream_that_says_nothing_new_is_gone_on_with_ever_less():
    """A mark of a place is no news (B45)."""
    pace, mark = Noting(0.01, 0.02), b"id: 1\nretry: 0\ndata: \n\n"
    async with (
        LegacyServer(tools=[tool("a")], stands=False) as server,
        pools.running(alpha=server, pace=pace) as gateway,
    ):

        async def resumed(exchange):
            if exchange.received.header("last-event-id") is None:
                await status(405)(exchange)
                return
            if len([one for one in server.requests if one.header("last-event-id") is not None]) < 8:
                await sse(mark)(exchange)
                return
            message = {"jsonrpc": "2.0", "id": server.seen("tools/call")[0].message["id"], "result": text()}
            await sse(event(message))(exchange)

        server.on("tools/call", sse(mark))
        server.on("", resumed)
        await gateway.tool()
        assert pace.rows == list(range(1, 9))
        server.reset()


async def test_a_call_that_was_taken_is_not_sent_again_when_its_session_is_gone():
    """Nobody knows what came of it (U-27)."""
    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server) as gateway:
        first = b"id: e1\nretry: 1\ndata: \n\n"

        async def cut(exchange):
            server.forget()
            await exchange.respond(200, {"Content-Type": "text/event-stream"}, [first])

        server.once("tools/call", cut)
        with pytest.raises(UpstreamUnavailable) as caught:
            await gateway.tool()
        assert caught.value.reason is Reason.STATUS
        assert len(server.seen("tools/call")) == 1
        await gateway.tool()


# Eras (B14, U-16 to U-19a)


async def test_one_fleet_of_all_eras_is_one_list():
    """Six upstreams; each is spoken to as it understands, and a client sees the tools of all (B14)."""
    probes = {
        "gone": status(404),
        "text": status(400, b"no session", "text/plain"),
        "first": error(-32602, "initialize first", http=400),
        "unknown": error(-32601, "Method not found"),
        "silent": hang(),
    }
    servers = {name: LegacyServer(tools=[tool("a")]) for name in probes}
    modern = ScriptedUpstream(tools=[tool("a")])
    upstreams = {"modern": modern, **servers}
    try:
        for one in upstreams.values():
            await one.start()
        for name, probe in probes.items():
            servers[name].on("server/discover", probe)
        named = {
            name: {"url": one.url, "timeout": 1.0 if name == "silent" else 30.0}
            for name, one in upstreams.items()
        }
        async with running(named) as gateway:
            listed = await gateway.ask("tools/list")
            assert listed.names == [f"{name}__a" for name in upstreams]
            assert listed.hints == (0, "private")
            eras = [gateway.status(name).era for name in upstreams]
            assert eras == ["modern", *["legacy"] * 5]
            for name in upstreams:
                called = await gateway.ask("tools/call", {"name": f"{name}__a"})
                assert called.result["resultType"] == "complete"
            assert modern.seen("initialize") == []
    finally:
        for one in upstreams.values():
            await one.stop()


@pytest.mark.parametrize(
    "answered",
    [status(401), status(403), status(407), status(408), status(425), status(429), status(500), status(503)],
)
async def test_refusals_and_outages_say_nothing_about_the_era(answered):
    """No handshake is tried for them (U-17)."""
    async with LegacyServer() as server:
        server.on("server/discover", answered)
        async with pools.running(alpha=server) as gateway:
            assert gateway.pool.status(ALPHA).state == "down"
            assert server.seen("initialize") == []
            server.reset()
            assert (await gateway.changes.get()).cause == "reconnect"
            assert gateway.pool.status(ALPHA).era == "legacy"


async def test_a_forwarded_credential_finds_out_what_its_server_speaks():
    """401 to the gateway says nothing; the first caller is let in, and with it the era is known (U-17)."""

    def guarded(then):
        async def behave(exchange):
            if exchange.received.header("authorization") is None:
                await status(401, WWW_Authenticate="Bearer")(exchange)
            else:
                await then(exchange)

        return behave

    async with LegacyServer(tools=[tool("a")]) as server:
        server.on("server/discover", guarded(error(-32601, http=404)))
        async with running({"alpha": {"url": server.url, "auth": "forward"}}) as gateway:
            assert server.initialized == 0
            called = await gateway.ask("tools/call", {"name": "alpha__a"}, token="ANN")
            assert called.text["tool"] == "a"
            assert server.seen("initialize")[0].header("authorization") == "Bearer ANN"


async def test_the_configured_era_is_not_asked_for():
    """`legacy` shakes hands at once, `modern` never does."""
    async with LegacyServer() as server, pools.running(alpha=settings(server, era="legacy")) as gateway:
        assert gateway.pool.status(ALPHA).era == "legacy"
        assert server.seen("server/discover") == []
    async with LegacyServer() as server, pools.running(alpha=settings(server, era="modern")) as gateway:
        assert gateway.pool.status(ALPHA).era in ("modern", None)
        assert server.seen("initialize") == []


async def test_an_upstream_that_became_another_is_found_out():
    """Modern to legacy, and back: an answer that no server of its era gives has it probed again (U-19a)."""
    async with LegacyServer(tools=[tool("a")]) as server:
        server.on("*", as_modern)
        async with pools.running(alpha=server) as gateway:
            assert gateway.pool.status(ALPHA).era == "modern"
            server.reset()
            await gateway.tool()
            assert gateway.pool.status(ALPHA).era == "legacy"
            assert (await gateway.changes.get()).cause == "reconnect"
            server.forget()
            server.on("*", as_modern)
            server.on("initialize", error(-32601, "Method not found", http=404))
            server.on("server/discover", as_modern)
            server.unknown = status(404)
            with pytest.raises(UpstreamUnavailable) as caught:
                await gateway.tool()
            assert caught.value.reason is Reason.ERA
            while gateway.pool.status(ALPHA).era != "modern":  # noqa: ASYNC110  # no event tells it
                await asyncio.sleep(0.002)


async def test_a_call_that_finds_a_server_turned_modern_is_made_again_in_its_terms():
    """It was refused for its form, unread; its maker is not to blame (U-19a)."""
    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server) as gateway:
        await gateway.tool()

        async def turned(exchange):
            if META_VERSION in exchange.received.meta:
                await as_modern(exchange)
            else:
                await error(-32602, "clientCapabilities is missing", http=400)(exchange)

        server.on("server/discover", as_modern)
        server.on("initialize", error(-32601, "Method not found", http=404))
        server.on("tools/call", turned)
        server.unknown = turned
        server.forget()
        assert json.loads(await gateway.tool())["content"] == []
        assert gateway.pool.status(ALPHA).era == "modern"
        assert (await gateway.changes.get()).cause == "reconnect"


async def test_a_server_that_became_modern_keeps_no_session_of_ours():
    """Calls that are under way are answered first; who listens has to listen anew (B29)."""
    async with LegacyServer(tools=[tool("a")]) as server, pools.running(alpha=server) as gateway:
        upstream = gateway.pool._members[ALPHA]._upstream
        done = asyncio.Event()

        async def talk(call):
            await done.wait()
            return "done"

        server.on("tools/call", streamed(talk))
        calling = asyncio.ensure_future(gateway.tool())
        await server.arrived("tools/call")
        async with gateway.pool.listen(ALPHA, Wanted(tools=True)) as listening:
            server.on("server/discover", as_modern)
            upstream._doubtful = True  # as an answer that no server of its era gives has it
            assert (await upstream.probe()).era == "modern"
            with pytest.raises(UpstreamUnavailable):
                await anext(listening)
        assert server.deleted == []
        done.set()
        assert b"done" in await calling
        await server.until(lambda: server.deleted == ["session-1"])


async def test_a_stateless_server_that_became_modern_is_found_out():
    """It names no session that could be gone; its answers give it away (U-19a)."""
    async with (
        LegacyServer(stateless=True, tools=[tool("a")]) as server,
        pools.running(alpha=server) as gateway,
    ):
        await gateway.tool()
        server.on("server/discover", as_modern)
        server.on("ping", error(-32601, "Method not found", http=404))
        server.on("tools/call", error(-32602, "_meta is missing", http=400))
        with pytest.raises(McpError):
            await gateway.tool()
        while gateway.pool.status(ALPHA).era != "modern":  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.002)
        server.faults.clear()


@pytest.mark.parametrize("answered", [status(503), error(-32603, "later", http=503), status(429)])
async def test_a_handshake_that_is_put_off_is_tried_again(answered):
    """It says nothing about the era (U-17)."""
    async with LegacyServer(tools=[tool("a")]) as server:
        server.on("initialize", answered)
        async with pools.running(alpha=server) as gateway:
            known = gateway.pool.status(ALPHA)
            assert (known.state, known.last_error) == ("down", Reason.STATUS)
            server.reset()
            await gateway.changes.get()
            await gateway.tool()


async def as_modern(exchange):
    members = {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "ttlMs": 0,
        "cacheScope": "private",
    }
    if exchange.received.method == "server/discover":
        await result(members)(exchange)
    else:
        await result({"content": []})(exchange)


async def test_a_server_that_names_another_revision_gets_it():
    """Some answer with an error where they should offer what they have."""
    async with LegacyServer(version="2025-06-18") as server:
        server.once(
            "initialize",
            error(-32602, "Unsupported protocol version", {"supported": ["2025-06-18"]}, http=400),
        )
        async with pools.running(alpha=server) as gateway:
            assert gateway.pool.status(ALPHA).version == "2025-06-18"
            assert [one.params["protocolVersion"] for one in server.seen("initialize")] == [
                "2025-11-25",
                "2025-06-18",
            ]


async def test_an_address_that_serves_nothing_is_down_and_tried_again():
    """404 to everything may be a server that is not there yet."""
    async with LegacyServer() as server:
        server.on("server/discover", status(404))
        server.on("initialize", status(404))
        async with pools.running(alpha=server) as gateway:
            known = gateway.pool.status(ALPHA)
            assert (known.state, known.last_error) == ("down", Reason.ERA)
            server.reset()
            await gateway.changes.get()
            assert gateway.pool.status(ALPHA).era == "legacy"


# Capabilities (B48)


async def test_only_what_was_declared_is_asked_for():
    """`beta` does not know the resources that it declares, `gamma` has prompts alone (B48)."""
    alpha, beta, gamma = (
        LegacyServer(tools=[tool("a")]),
        LegacyServer(),
        LegacyServer(prompts=[{"name": "p"}]),
    )
    alpha.capabilities = {"tools": {}}
    beta.capabilities = {"resources": {}}
    gamma.capabilities = {"prompts": {}}
    beta.on("resources/list", error(-32601))
    beta.on("resources/templates/list", error(-32601))
    async with alpha, beta, gamma, running({"alpha": alpha, "beta": beta, "gamma": gamma}) as gateway:
        assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        assert (await gateway.ask("prompts/list")).names == ["gamma__p"]
        assert (await gateway.ask("resources/list")).names == []
        assert (await gateway.ask("completion/complete", COMPLETE)).code == -32601
        for server, asked in ((alpha, "tools/list"), (beta, "resources/list"), (gamma, "prompts/list")):
            lists = {one.method for one in server.requests if one.method.endswith("/list")}
            assert lists <= {asked, "resources/templates/list"} if server is beta else lists == {asked}


COMPLETE = {"ref": {"type": "ref/prompt", "name": "gamma__p"}, "argument": {"name": "x", "value": "v"}}


# Tasks of revision 2025-11-25 (T-18, T-19, T-21)

OLD_TASKS = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
SUPPORTS = ("required", "optional", "forbidden")


@pytest.fixture
async def tasker():
    """A server that would make tasks of calls, were it asked to."""
    tools = [tool(support, execution={"taskSupport": support}) for support in SUPPORTS]
    async with LegacyServer(tools=tools) as server:
        server.capabilities["tasks"] = OLD_TASKS
        yield server


async def test_tasks_of_an_older_server_are_offered_to_no_modern_client(tasker):
    """A tool that can do without is called without; one that cannot is none, and nothing waits."""
    modern = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    async with running({"alpha": tasker}) as gateway:
        said = (await gateway.ask("server/discover")).result["capabilities"]
        assert "tasks" not in said
        assert "extensions" not in said
        listed = (await gateway.ask("tools/list", capabilities=modern)).result["tools"]
        assert [one["name"] for one in listed] == ["alpha__optional", "alpha__forbidden"]
        assert not any("execution" in one for one in listed)
        for name in ("optional", "forbidden"):
            params = {"name": f"alpha__{name}", "arguments": {}, "task": {"ttl": 5}}
            called = await gateway.ask("tools/call", params, capabilities=modern)
            assert called.result["resultType"] == "complete"
            assert called.text == {"tool": name, "arguments": {}}
        assert (await gateway.ask("tools/call", {"name": "alpha__required"})).code == -32602
        assert not any("task" in call.params for call in tasker.seen("tools/call"))
        assert len(tasker.seen("tools/call")) == 2


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26"])
async def test_tasks_of_an_older_server_are_offered_to_no_older_client(tasker, version):
    """Not even to one of the revision that has them: what was promised here, no other replica could keep."""
    async with running({"alpha": tasker}) as gateway:
        client = LegacyClient(gateway.addresses.endpoints[0], version, capabilities={"tasks": {"list": {}}})
        assert "tasks" not in (await client.initialize())["result"]["capabilities"]
        listed = (await client.result("tools/list"))["tools"]
        assert [one["name"] for one in listed] == ["alpha__optional", "alpha__forbidden"]
        assert not any("execution" in one for one in listed)
        called = await client.result("tools/call", {"name": "alpha__optional", "task": {"ttl": 5}})
        assert json.loads(called["content"][0]["text"])["tool"] == "optional"
        assert (await client.error("tools/call", {"name": "alpha__required"}))["code"] == -32602
        for method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/list"):
            assert (await client.error(method, {"taskId": "t"}))["code"] == -32601
        assert not any("task" in call.params for call in tasker.seen("tools/call"))


async def test_a_task_that_nobody_asked_for_is_no_result(tasker):
    """It would look like a tool that had nothing to say; what is told of it reaches nobody (T-21)."""
    made = {"taskId": "t", "status": "working", "createdAt": "now", "lastUpdatedAt": "now", "ttl": None}

    async def talk(call):
        await call.notify("notifications/tasks/status", **made)
        related = {"io.modelcontextprotocol/related-task": {"taskId": "t"}}
        return {**text("done"), "_meta": {**related, "v/x": 1}}

    async with running({"alpha": tasker}) as gateway, LegacyClient(gateway.addresses.endpoints[0]) as client:
        tasker.on("tools/call", result({"task": made, "resultType": None}))
        assert (await gateway.ask("tools/call", {"name": "alpha__optional"})).code == -32603
        assert (await client.error("tools/call", {"name": "alpha__optional"}))["code"] == -32603
        tasker.on("tools/call", streamed(talk))
        called = await gateway.ask("tools/call", {"name": "alpha__optional"}, meta={"progressToken": 1})
        assert called.notices == []
        assert "io.modelcontextprotocol/related-task" not in called.result["_meta"]
        assert called.result["_meta"]["v/x"] == 1
