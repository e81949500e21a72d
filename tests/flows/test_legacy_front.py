"""Clients of older revisions over HTTP: whose a session is, and what is answered inside and outside of it."""

import asyncio
import json

import pytest

from tests.support.legacy_client import LegacyClient, message
from tests.support.running import running
from tests.support.scripted import (
    ScriptedUpstream,
    answer,
    error,
    event,
    hang,
    progress,
    sse,
    status,
    token,
    tool,
)
from tests.support.scripted import notification as notice
from tests.support.scripted import result as scripted_result

VERSIONS = ["2025-11-25", "2025-06-18", "2025-03-26"]
ADD = {"name": "alpha__add", "arguments": {}}
WWW = "Bearer"


@pytest.fixture
async def alpha():
    server = ScriptedUpstream(
        tools=[tool("add", title="Add"), tool("sub")],
        prompts=[{"name": "p"}],
        resources=[{"uri": "a:1", "name": "one"}],
        templates=[{"uriTemplate": "a:{n}", "name": "any"}],
    )
    async with server:
        yield server


@pytest.fixture
async def gateway(alpha):
    async with running({"alpha": alpha}) as gateway:
        yield gateway


@pytest.fixture
def url(gateway):
    return gateway.addresses.endpoints[0]


# The handshake


@pytest.mark.parametrize(
    ("wanted", "given"),
    [*zip(VERSIONS, VERSIONS, strict=True), ("2024-11-05", VERSIONS[0]), ("x", VERSIONS[0])],
)
async def test_a_handshake_begins_a_session(url, wanted, given):
    """With the version asked for where it is served; the id is visible ASCII, and new each time (X-20)."""
    client = LegacyClient(url, wanted)
    async with client.post(
        message("initialize", {"protocolVersion": wanted, "capabilities": {}, "clientInfo": {}}, id="i")
    ) as exchange:
        said = await exchange.answer()
    assert said["result"]["protocolVersion"] == given
    assert said["result"]["capabilities"]["resources"] == {"listChanged": True, "subscribe": True}
    assert said["result"]["serverInfo"]["name"] == "mcp-gateway"
    session = exchange.headers["mcp-session-id"]
    assert session.isascii()
    assert session.isprintable()
    assert " " not in session
    again = LegacyClient(url)
    await again.initialize()
    assert again.session != session


async def test_a_handshake_that_contradicts_its_header_is_refused(url):
    """X-04; one that agrees is fine, and so is none."""
    client = LegacyClient(url)
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}
    for stated, http in ((None, 200), ("2025-06-18", 200), ("2025-11-25", 400)):
        async with client.post(message("initialize", params, id=1), mcp_protocol_version=stated) as exchange:
            said = await exchange.answer()
        assert exchange.status == http
        assert ("mcp-session-id" in exchange.headers) is (http == 200)
    assert said["error"]["code"] == -32600


async def test_a_handshake_that_says_no_version_begins_nothing(url):
    """E-17: what a method makes of its params is told at 200."""
    async with LegacyClient(url).post(message("initialize", {}, id=1)) as exchange:
        assert (await exchange.answer())["error"]["code"] == -32602
    assert exchange.status == 200
    assert "mcp-session-id" not in exchange.headers


async def test_a_handshake_with_a_modern_envelope_is_an_unknown_method(gateway):
    """A-33, naming what is served."""
    answered = await gateway.ask("initialize", {"protocolVersion": "2025-11-25"}, judged=False)
    assert (answered.status, answered.code) == (404, -32601)
    assert "2025-11-25" in answered.error["message"]


async def test_nobody_is_let_in_while_no_upstream_answers(alpha):
    """The handshake has nothing to say then, and no session is left behind."""
    alpha.on("server/discover", status(500))
    async with running({"alpha": alpha}) as gateway:
        client = LegacyClient(gateway.addresses.endpoints[0])
        assert (await client.initialize())["error"]["code"] == -32603
        assert client.session is None
        assert len(gateway.runtime.sessions) == 0


async def test_only_a_ping_may_come_before_the_handshake(url):
    """X-05, X-21: everything else is refused with 400, and says what to do."""
    client = LegacyClient(url)
    assert (await client.result("ping")) == {}
    async with client.open("tools/list", id="x") as exchange:
        said = await exchange.answer()
    assert (exchange.status, said["id"], said["error"]["code"]) == (400, "x", -32600)
    assert "initialize" in said["error"]["message"]
    async with client.post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}') as exchange:
        assert (await exchange.begun()).status == 400
    async with client.post(b'{"jsonrpc":"2.0","id":1,"result":{}}') as exchange:
        assert (await exchange.begun()).status == 400
    async with client.open("server/discover") as exchange:  # modern by its name, and without an envelope
        assert (await exchange.answer())["error"]["code"] == -32602
    assert exchange.status == 400


async def test_requests_are_served_before_the_client_says_that_it_is_ready(url):
    """X-05: the order in which posts arrive is nobody's promise."""
    client = LegacyClient(url)
    await client.initialize()
    assert len((await client.result("tools/list"))["tools"]) == 2


# Sessions


async def test_a_session_belongs_to_its_credential_and_endpoint(alpha):
    """Anybody else gets the same 404 as for an id that never was (X-20)."""
    endpoints = {"/mcp": {}, "/other": {}}
    async with running({"alpha": alpha}, endpoints=endpoints) as gateway:
        url = gateway.addresses.endpoints[0]
        bodies = set()
        async with LegacyClient(url, token="TOK-ann") as ann:
            made_up = ann.session[:-2] + ("aa" if ann.session[-2:] != "aa" else "bb")
            for token, session, path in (
                ("TOK-bob", ann.session, None),
                (None, ann.session, None),
                ("TOK-ann", ann.session, "/other"),
                ("TOK-ann", made_up, None),
                ("TOK-ann", "made-up", None),
            ):
                other = LegacyClient(url, token=token, path=path)
                other.session = session
                async with other.open("ping") as exchange:
                    await exchange.whole()
                assert exchange.status == 404
                bodies.add(exchange.body)
                async with other.listen() as exchange:
                    assert exchange.status == 404
                assert await other.delete() == 404
            assert len(bodies) == 1
            assert await ann.result("ping") == {}


async def test_a_session_that_was_deleted_is_gone(gateway, url):
    """X-21: 404 from then on, and nothing is kept."""
    async with LegacyClient(url) as client:
        assert await client.delete() == 204
        async with client.open("ping") as exchange:
            assert (await exchange.whole()).status == 404
        assert await client.delete() == 404
        assert len(gateway.runtime.sessions) == 0


async def test_a_request_names_one_session(url):
    async with LegacyClient(url) as client:
        async with client.post(message("ping", id=1), MCP_Session_Id=f"{client.session}") as exchange:
            assert (await exchange.whole()).status == 200
        double = f"{client.session}\r\nmcp-session-id: {client.session}"
        async with client.post(message("ping", id=1), mcp_session_id=double) as exchange:
            assert (await exchange.whole()).status == 400


@pytest.mark.parametrize("stated", [None, "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
async def test_the_sessions_version_holds_whatever_known_one_is_stated(url, stated):
    """X-22: here one that knows titles, as the session does."""
    async with (
        LegacyClient(url, "2025-06-18") as client,
        client.post(message("tools/list", id=1), "tools/list", mcp_protocol_version=stated) as exchange,
    ):
        assert (await exchange.answer())["result"]["tools"][0]["title"] == "Add"


async def test_a_version_nobody_knows_is_refused(url):
    """X-22: such a request is read as a modern one of an unknown version (S-02)."""
    async with LegacyClient(url) as client:
        async with client.post(message("ping", id=1), mcp_protocol_version="1999-01-01") as exchange:
            said = await exchange.answer()
        assert (exchange.status, said["error"]["code"]) == (400, -32022)


@pytest.mark.parametrize(("stated", "known"), [("1999-01-01", False), ("2024-11-05", True), (None, True)])
async def test_a_version_nobody_knows_is_refused_whatever_the_verb(gateway, url, stated, known):
    """X-22; the session does not end for it."""
    async with LegacyClient(url) as client:
        async with client.listen(mcp_protocol_version=stated) as stream:
            assert stream.status == (200 if known else 400)
        async with client.request("DELETE", b"", None, {"mcp-protocol-version": stated}) as exchange:
            assert (await exchange.begun()).status == (204 if known else 400)
        assert len(gateway.runtime.sessions) == (0 if known else 1)


async def test_what_is_said_in_no_session_is_refused_with_its_id(url):
    """E-06: the id can be read, so whoever waits for the answer hears of it."""
    async with LegacyClient(url) as client:
        for named, http in (("none", 404), (f"{client.session}\r\nmcp-session-id: x", 400)):
            async with client.post(message("ping", id="p"), mcp_session_id=named) as exchange:
                said = await exchange.answer()
            assert (exchange.status, said["id"]) == (http, "p")
            for body in (b'{"jsonrpc":"2.0","id":"p","result":{}}', message("notifications/initialized")):
                async with client.post(body, mcp_session_id=named) as exchange:
                    said = await exchange.answer()
                assert exchange.status == http
                assert "id" not in said


async def test_a_modern_request_is_modern_in_any_session(gateway, url):
    """X-23, S-04: the session is nothing to it."""
    async with LegacyClient(url) as client:
        answered = await gateway.ask("tools/list", headers={"mcp-session-id": client.session})
        assert answered.result["resultType"] == "complete"
        assert answered.header("mcp-session-id") is None
        answered = await gateway.ask("ping", headers={"mcp-session-id": client.session}, judged=False)
        assert (answered.status, answered.code) == (404, -32601)


async def test_other_verbs_are_for_sessions(url):
    """S-05, X-24."""
    client = LegacyClient(url)
    for verb in ("GET", "DELETE", "PUT"):
        async with client.request(verb, b"", None, {}) as exchange:
            assert (await exchange.begun()).status == 405
        assert set(exchange.headers["allow"].split(", ")) == {"GET", "POST", "DELETE"}
    await client.initialize()
    async with client.listen(accept="application/json") as exchange:
        assert exchange.status == 406
    async with client.request("PUT", b"", None, {}) as exchange:
        assert (await exchange.begun()).status == 405


# Requests


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_method_is_answered_in_the_clients_terms(alpha, url, version):
    """9.3 of the older revisions: nothing modern in it, and what the revision lacks is left out (X-01)."""
    async with LegacyClient(url, version) as client:
        tools = (await client.result("tools/list"))["tools"]
        assert [one["name"] for one in tools] == ["alpha__add", "alpha__sub"]
        assert ("title" in tools[0]) is (version != "2025-03-26")
        assert [p["name"] for p in (await client.result("prompts/list", {}))["prompts"]] == ["alpha__p"]
        (resource,) = (await client.result("resources/list"))["resources"]
        (template,) = (await client.result("resources/templates/list"))["resourceTemplates"]
        assert (resource["uri"], template["uriTemplate"]) == ("alpha+a:1", "alpha+a:{n}")
        read = await client.result("resources/read", {"uri": "alpha+a:1"})
        assert read["contents"][0]["uri"] == "alpha+a:1"
        assert "messages" in await client.result("prompts/get", {"name": "alpha__p"})
        called = await client.result("tools/call", ADD)
        assert called["content"][0]["type"] == "text"
        ref = {"type": "ref/prompt", "name": "alpha__p"}
        params = {"ref": ref, "argument": {"name": "a", "value": ""}, "context": {"arguments": {"b": "c"}}}
        assert "values" in (await client.result("completion/complete", params))["completion"]
        assert ("context" in alpha.seen("completion/complete")[0].params) is (version != "2025-03-26")


async def test_answers_that_say_nothing_are_empty_objects(url):
    """X-10: strict peers refuse any key."""
    async with LegacyClient(url) as client:
        await client.result("resources/list")
        for method, params in (
            ("ping", None),
            ("logging/setLevel", {"level": "info"}),
            ("resources/subscribe", {"uri": "alpha+a:1"}),
            ("resources/unsubscribe", {"uri": "alpha+a:1"}),
        ):
            async with client.open(method, params, id="e") as exchange:
                await exchange.whole()
            assert json.loads(exchange.body) == {"jsonrpc": "2.0", "id": "e", "result": {}}


async def test_a_log_level_is_set_where_there_are_log_messages(alpha):
    """The handshake says whether there are, and the method is there or not accordingly (F-22)."""
    del alpha.capabilities["logging"]
    endpoints = {"/mcp": {}, "/quiet": {"upstreams": ["alpha"]}}
    async with (
        ScriptedUpstream(tools=[tool("add")]) as talkative,
        running({"alpha": alpha, "beta": talkative}, endpoints=endpoints) as gateway,
    ):
        for place, offered in zip(gateway.addresses.endpoints, (True, False), strict=True):
            client = LegacyClient(place)
            capabilities = (await client.initialize())["result"]["capabilities"]
            assert ("logging" in capabilities) is offered
            if offered:
                assert await client.result("logging/setLevel", {"level": "info"}) == {}
            else:
                assert (await client.error("logging/setLevel", {"level": "info"}))["code"] == -32601


async def test_what_a_method_refuses_is_told_at_200(alpha, url):
    """E-17: 404 would cost the client its session; and in the codes of older revisions."""
    async with LegacyClient(url) as client:
        for method, params, code in (
            ("resources/read", {"uri": "alpha+a:none"}, -32002),
            ("resources/subscribe", {"uri": "nobody:1"}, -32002),
            ("tools/call", {"name": "alpha__none"}, -32602),
            ("tools/call", {}, -32602),
            ("logging/setLevel", {"level": "loud"}, -32602),
            ("tasks/list", {}, -32601),
            ("tasks/get", {"taskId": "t"}, -32601),
            ("no/such", {}, -32601),
            ("subscriptions/listen", {"notifications": {}}, -32601),
        ):
            if code == -32002 and method == "resources/read":
                alpha.once(method, error(-32602, "none", {"uri": "a:none"}, http=400))
            said = await client.error(method, params)
            assert said["code"] == code, (method, said)
        alpha.once("tools/call", error(-1, "its own"))
        assert (await client.error("tools/call", ADD))["code"] == -1


async def test_an_unreadable_body_is_a_bad_request(url):
    async with LegacyClient(url) as client:
        for body in (b"{", b"[]", b'{"jsonrpc":"2.0","id":null,"method":"ping"}'):
            async with client.post(body) as exchange:
                assert (await exchange.whole()).status == 400


async def test_notifications_and_stray_answers_are_taken(url):
    """202 without a body, whatever it is about (M-16)."""
    async with LegacyClient(url) as client:
        for method in (
            "notifications/initialized",
            "notifications/roots/list_changed",
            "notifications/progress",
            "notifications/cancelled",
            "notifications/whatever",
        ):
            assert await client.notify(method, {"progressToken": 1, "progress": 1}) == 202
        assert await client.respond("never asked", {}) == 202
        assert await client.respond(7, error={"code": 1, "message": "no"}) == 202


async def test_progress_comes_on_the_stream_of_its_request_and_messages_once_they_are_wanted(alpha, url):
    """S-24, 9.4: no log messages before the session set a level, and then from that level up."""
    steps = (
        lambda exchange: event(progress(token(exchange), 1, message="half")),
        lambda exchange: event(notice("notifications/message", level="info", data={"n": 1.0})),
        lambda exchange: event(notice("notifications/message", level="error", data="bad")),
        answer({"content": []}),
    )
    alpha.on("tools/call", sse(*steps))
    async with LegacyClient(url, "2025-03-26") as client:
        wanted = {**ADD, "_meta": {"progressToken": "p"}}
        for level, seen in ((None, 0), ("warning", 1), ("debug", 2)):
            if level is not None:
                await client.result("logging/setLevel", {"level": level})
            async with client.open("tools/call", wanted) as exchange:
                await exchange.whole()
            told, *logs = exchange.messages[:-1]
            assert told["params"] == {"progressToken": "p", "progress": 1, "message": "half"}
            assert len(logs) == seen


async def test_two_clients_with_equal_ids_get_each_their_own_answers(alpha, url):
    """B22."""
    alpha.on("tools/call", _echo)
    async with LegacyClient(url) as one, LegacyClient(url) as two:
        calls = [
            client.result("tools/call", {**ADD, "arguments": {"n": number}}, id=1)
            for number, client in enumerate((one, two))
        ]
        for number, called in enumerate(await asyncio.gather(*calls)):
            assert json.loads(called["content"][0]["text"]) == {"n": number}


async def _echo(exchange):
    text = json.dumps(exchange.received.params["arguments"])
    await scripted_result({"content": [{"type": "text", "text": text}]})(exchange)


# Taking back


async def test_a_request_taken_back_is_ended_and_gets_no_answer(alpha, gateway, url):
    """B21: the upstream is told at once, whatever it is doing."""
    alpha.on("tools/call", hang())
    async with LegacyClient(url) as client, client.open("tools/call", ADD, id=101) as exchange:
        seen = await alpha.arrived("tools/call")
        assert (
            await client.notify("notifications/cancelled", {"requestId": "101"}) == 202
        )  # another id (E-04)
        assert await client.notify("notifications/cancelled", {"requestId": 7}) == 202
        assert await client.notify("notifications/cancelled", {"requestId": 101}) == 202
        await seen.closed.wait()
        assert await exchange.ended()
        await gateway.busy(0)
        assert "0 running" in repr(next(iter(gateway.runtime.sessions)))


@pytest.mark.parametrize(
    ("asked", "named"), [(rb'"a\/b"', b'"a/b"'), (b'"\xc3\xa9"', rb'"\u00e9"'), (b"-0", b"0")]
)
async def test_an_id_is_the_same_however_it_is_spelled(alpha, url, asked, named):
    """E-04: when it is taken back, and when it is used once more."""
    alpha.on("tools/call", hang())
    body = message("tools/call", ADD)
    async with LegacyClient(url) as client, client.post(body[:-1] + b',"id":%b}' % asked) as exchange:
        seen = await alpha.arrived("tools/call")
        async with client.post(body[:-1] + b',"id":%b}' % named) as again:
            assert (await again.answer())["error"]["code"] == -32600
        taken = message("notifications/cancelled", {"requestId": "@"}).replace(b'"@"', named)
        async with client.post(taken) as told:
            assert (await told.whole()).status == 202
        await seen.closed.wait()
        assert await exchange.ended()


async def test_an_id_under_way_is_refused(alpha, gateway, url):
    """B21: else nobody could take back the first, and it would outlive its session."""
    alpha.on("tools/call", hang())
    async with LegacyClient(url) as client, client.open("tools/call", ADD, id=1) as exchange:
        first = await alpha.arrived("tools/call")
        said = await client.ask("tools/call", ADD, id=1)
        assert (said["id"], said["error"]["code"]) == (1, -32600)
        assert await client.notify("notifications/cancelled", {"requestId": 1}) == 202
        await first.closed.wait()
        assert await exchange.ended()
        for _ in range(3):  # nor do connections that were lost make room for more
            async with client.open("tools/call", ADD, id=1) as lost:
                lost.leave()
        second = await alpha.arrived("tools/call")
        (session,) = gateway.runtime.sessions
        assert len(session.running) == 1
        assert await client.delete() == 204
        await second.closed.wait()
        await gateway.busy(0)
    assert len(alpha.seen("tools/call")) == 2


async def test_nobody_takes_back_what_another_asked(alpha, url):
    """S-20: an id means something inside of its session alone."""
    released = asyncio.Event()
    alpha.on("tools/call", hang(released, scripted_result({"content": []})))
    async with (
        LegacyClient(url) as ann,
        LegacyClient(url) as bob,
        ann.open("tools/call", ADD, id=5) as exchange,
    ):
        await alpha.arrived("tools/call")
        assert await bob.notify("notifications/cancelled", {"requestId": 5}) == 202
        released.set()
        assert (await exchange.answer())["result"] == {"content": []}


async def test_a_lost_connection_takes_nothing_back(alpha, gateway, url):
    """X-25: the call goes on to its end."""
    released, done = asyncio.Event(), asyncio.Event()

    async def behave(exchange):
        await released.wait()
        await scripted_result({"content": []})(exchange)
        done.set()

    alpha.on("tools/call", behave)
    async with LegacyClient(url) as client:
        async with client.open("tools/call", ADD) as exchange:
            seen = await alpha.arrived("tools/call")
            exchange.leave()
        await gateway.busy(0)
        assert not seen.closed.is_set()
        released.set()
        await done.wait()
        assert not seen.closed.is_set()
        assert await client.result("ping") == {}


async def test_a_session_that_ends_takes_its_requests_along(alpha, url):
    alpha.on("tools/call", hang())
    async with LegacyClient(url) as client, client.open("tools/call", ADD) as exchange:
        seen = await alpha.arrived("tools/call")
        assert await client.delete() == 204
        await seen.closed.wait()
        assert await exchange.ended()


# Batches


async def test_a_batch_is_answered_in_one_array(url):
    """X-60, in the revision that has them: each message on its own."""
    batch = [
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "two", "method": "no/such"},
        {"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": {}},
        {"jsonrpc": "2.0", "id": 4, "method": "ping"},
        7,
    ]
    async with LegacyClient(url, "2025-03-26") as client:
        async with client.post(json.dumps(batch).encode()) as exchange:
            await exchange.whole()
        assert exchange.status == 200
        answers = {one.get("id"): one for one in exchange.messages}
        assert answers.keys() == {1, "two", 3, 4, None}
        assert len(answers[1]["result"]["tools"]) == 2
        assert answers["two"]["error"]["code"] == -32601
        assert answers[3]["error"]["code"] == -32600
        assert answers[4]["result"] == {}


async def test_a_batch_that_was_told_something_is_answered_by_events(alpha, url):
    alpha.on(
        "tools/call",
        sse(lambda exchange: event(progress(token(exchange), 1)), answer({"content": []})),
    )
    batch = [
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**ADD, "_meta": {"progressToken": 1}}},
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
    ]
    async with LegacyClient(url, "2025-03-26") as client:
        async with client.post(json.dumps(batch).encode()) as exchange:
            await exchange.whole()
        assert exchange.messages[0]["method"] == "notifications/progress"
        assert {one["id"] for one in exchange.messages[1:]} == {1, 2}


async def test_a_batch_may_take_back_what_it_asks(alpha, gateway, url):
    """X-60: each message after those before it, so one that comes too early takes nothing back."""
    released = asyncio.Event()
    alpha.on("tools/call", hang(released, scripted_result({"content": []})))
    call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": ADD}
    taken = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}
    ping = {"jsonrpc": "2.0", "id": 6, "method": "ping"}
    async with LegacyClient(url, "2025-03-26") as client:
        async with client.post(json.dumps([call, taken, ping]).encode()) as exchange:
            await exchange.whole()
        assert exchange.messages == [{"jsonrpc": "2.0", "id": 6, "result": {}}]
        async with client.post(json.dumps([taken, call, call]).encode()) as exchange:
            await alpha.arrived("tools/call")
            released.set()
            await exchange.whole()
        assert sorted("result" in one for one in exchange.messages) == [False, True]
        assert next(one for one in exchange.messages if "error" in one)["error"]["code"] == -32600


async def test_a_batch_that_asks_nothing_is_taken(url):
    batch = [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "x", "result": {}},
    ]
    async with LegacyClient(url, "2025-03-26") as client:
        async with client.post(json.dumps(batch).encode()) as exchange:
            await exchange.whole()
        assert (exchange.status, exchange.body) == (202, b"")


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
async def test_an_array_is_no_message_elsewhere(url, version):
    batch = json.dumps([{"jsonrpc": "2.0", "id": 1, "method": "ping"}]).encode()
    for client in (LegacyClient(url, version), LegacyClient(url, "2025-03-26")):
        async with client.post(batch) as exchange:  # nor where there is no session
            assert (await exchange.answer())["error"]["code"] == -32600
        assert exchange.status == 400
    async with LegacyClient(url, version) as client, client.post(batch) as exchange:
        assert (await exchange.answer())["error"]["code"] == -32600
    assert exchange.status == 400


# Credentials


async def test_an_upstreams_challenge_reaches_the_client(alpha):
    """B15, in a session as elsewhere."""
    async with running({"alpha": {"url": alpha.url, "auth": "forward"}}) as gateway:
        url = gateway.addresses.endpoints[0]
        async with LegacyClient(url, token="TOK") as client:
            alpha.on("tools/call", status(401, WWW_Authenticate='Bearer error="invalid_token"'))
            await client.result("tools/list")
            async with client.open("tools/call", ADD) as exchange:
                await exchange.whole()
            assert exchange.status == 401
            assert exchange.headers["www-authenticate"].startswith(WWW)
            assert {seen.header("authorization") for seen in alpha.seen("tools/call")} == {"Bearer TOK"}
            assert all(seen.header("mcp-session-id") is None for seen in alpha.requests)
