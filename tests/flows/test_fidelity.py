"""What passes through is what was sent: arguments, results, errors, ids, headers (B06, B12, B13, B22, B23,
B32, B39, B43)."""

import asyncio
import base64
import json

import pytest

from gateway.protocol.jsonrpc import split
from tests.support.running import running
from tests.support.scripted import (
    META,
    ScriptedUpstream,
    answer,
    error,
    event,
    hang,
    progress,
    result,
    sse,
    tool,
)

NUMBERS = (
    b'{"a": 1.0,"b":1,"c":1e2,"d":-0,"e":9007199254740993,"f":9223372036854775808,"g":18446744073709551616,'
    b'"h":1234567890123456789012345678901234567890,"i":0.1000000000000000055511151231257827,"j":[1E+2,-0.0],'
    b'"z":{"b":1,"a":"\\u00e9\\ud83d\\ude00 \xc3\xa9 \\/ <>&"},"n":null,"":true}'
)


def verbatim(members):
    """Answer with a complete result of exactly these members."""

    async def behave(exchange):
        whole = b'{"jsonrpc":"2.0","id":%d,"result":{"resultType":"complete",%s}}' % (exchange.id, members)
        await exchange.respond(200, {"Content-Type": "application/json"}, [whole], length=len(whole))

    return behave


def posted(arguments, **options):
    """Return a call whose arguments are exactly this text."""
    about = {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}, **options}
    return (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"alpha__a","arguments":%s,"_meta":%s}}'
        % (arguments, json.dumps(about).encode())
    )


# Bytes (B39, B12)


async def test_arguments_and_structured_content_pass_to_the_byte():
    """Every spelling of a number, key order, escapes, nulls, inner whitespace (B39)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", verbatim(b'"content":[],"structuredContent":' + NUMBERS))
        body = posted(NUMBERS)
        called = await gateway.ask("tools/call", {"name": "alpha__a"}, body=body)
        assert called.raw_result["structuredContent"] == NUMBERS
        arrived = await alpha.arrived("tools/call")
        assert bytes(split(split(arrived.body)["params"])["arguments"]) == NUMBERS


async def test_a_cached_read_is_the_same_text_as_a_fetched_one():
    """On the miss and on the hit, unknown members included (B39)."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}) as gateway:
        contents = b'[{"uri":"a:1","text":"\\u00e9","size":1.0,"x":%s}]' % NUMBERS
        alpha.on(
            "resources/read",
            verbatim(b'"contents":%s,"future":%s,"ttlMs":60000,"cacheScope":"public"' % (contents, NUMBERS)),
        )
        for _ in range(2):
            read = await gateway.ask("resources/read", {"uri": "alpha+a:1"})
            assert read.raw_result["future"] == NUMBERS
            (content,) = [split(one) for one in [read.raw_result["contents"][1:-1]]]
            assert bytes(content["x"]) == NUMBERS
            assert (bytes(content["text"]), bytes(content["size"])) == (b'"\\u00e9"', b"1.0")
            assert bytes(content["uri"]) == b'"alpha+a:1"'
        assert len(alpha.seen("resources/read")) == 1


@pytest.mark.parametrize("value", [b'{"id":1}', b"[]", b"0", b"false", b"null", b'"x"', b"{}", b"1e400"])
async def test_structured_content_of_any_kind_stays(value):
    """Present stays present, null is not absent, with and without a declared outputSchema (B12, A-43)."""
    tools = [tool("a"), tool("b", outputSchema={"type": "object"})]
    async with ScriptedUpstream(tools=tools) as alpha, running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", verbatim(b'"content":[],"structuredContent":' + value))
        for name in ("alpha__a", "alpha__b"):
            called = await gateway.ask("tools/call", {"name": name}, judged=value != b"1e400")
            assert called.raw_result["structuredContent"] == value
            assert called.raw_result["content"] == b"[]"
        alpha.on("tools/call", verbatim(b'"content":[{"type":"text","text":"t"}]'))
        assert "structuredContent" not in (await gateway.ask("tools/call", {"name": "alpha__b"})).raw_result


@pytest.mark.parametrize("arguments", [b'"x"', b"[]", b"7", b"true"])
async def test_arguments_that_are_no_object_are_refused(arguments):
    """Before any upstream is asked."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        refused = await gateway.ask("tools/call", {"name": "alpha__a"}, body=posted(arguments))
        assert (refused.status, refused.code) == (400, -32602)
        assert alpha.seen("tools/call") == []


@pytest.mark.parametrize("arguments", [b" {}", b"null", b'{"a":{"a":1,"a":2}}'])
async def test_arguments_of_any_spelling_reach_the_upstream(arguments):
    """Whitespace before them, null for none, duplicates inside: not ours to judge."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        assert (await gateway.ask("tools/call", {"name": "alpha__a"}, body=posted(arguments))).status == 200
        sent = split(split((await alpha.arrived("tools/call")).body)["params"])
        assert bytes(sent.get("arguments", b"null")).strip() == arguments.strip()


async def test_vendor_meta_passes_both_ways_and_nested():
    """On request, result and content; the trace goes on, what hops own does not (B32, E-24)."""
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}
    block = {"type": "text", "text": "t", "_meta": {"v/b": None}, "futureField": {"k": [1]}}
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.on(
            "tools/call",
            result({"content": [block], "_meta": {"v/r": [1], f"{META}serverInfo": {"name": "x"}}}),
        )
        called = await gateway.ask(
            "tools/call",
            {"name": "alpha__a", "futureParam": {"k": 1}},
            meta={"com.example/a": {"n": None}, "baggage": "user=ann", **trace},
        )
        arrived = await alpha.arrived("tools/call")
        assert arrived.meta["com.example/a"] == {"n": None}
        assert arrived.params["futureParam"] == {"k": 1}
        assert {key: arrived.meta[key] for key in trace} == trace
        assert "baggage" not in arrived.meta
        assert arrived.meta[f"{META}clientInfo"]["name"] == "mcp-gateway"
        assert called.result["content"] == [block]
        assert called.result["_meta"]["v/r"] == [1]
        assert called.result["_meta"][f"{META}serverInfo"]["name"] == "mcp-gateway"


# Errors (B13)


async def test_a_tools_own_error_is_a_result_unchanged():
    """isError with an outputSchema and no structuredContent: no validation of ours (B13, F-32)."""
    async with (
        ScriptedUpstream(tools=[tool("a", outputSchema={"type": "object", "required": ["x"]})]) as alpha,
        running({"alpha": alpha}) as gateway,
    ):
        failed = {"isError": True, "content": [{"type": "text", "text": "quota used up"}]}
        alpha.on("tools/call", result(failed))
        called = await gateway.ask("tools/call", {"name": "alpha__a"})
        assert called.status == 200
        assert {key: called.result[key] for key in failed} == failed


@pytest.mark.parametrize(
    ("sent", "came"),
    [
        (error(-32602, "bad n", {"n": [1.0, None]}, http=400), (400, -32602, "bad n", {"n": [1.0, None]})),
        (error(-32603, "kaput", "why"), (200, -32603, "kaput", "why")),
        (error(-32001, "mine"), (200, -32001, "mine", None)),
        (error(7, "seven", 0), (200, 7, "seven", 0)),
        (error(-32002, "gone", {"uri": "a:1"}), (400, -32602, "gone", {"uri": "alpha+a:1"})),
    ],
)
async def test_an_upstreams_error_keeps_code_message_and_data(sent, came):
    """But for the codes of older revisions and the places where a URI stands (F-31)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", sent)
        called = await gateway.ask("tools/call", {"name": "alpha__a"}, id="i")
        assert (called.status, called.code, called.error["message"], called.error.get("data")) == came
        assert called.message["id"] == "i"


@pytest.mark.parametrize("code", [-32700, -32600, -32022, -32042, -32055])
async def test_what_only_concerns_the_gateway_and_its_upstream_is_not_the_callers_error(code):
    """-32603 names the upstream; codes that are not defined never leave (F-31, E-11)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.on(
            "tools/call",
            error(code, "hm", {"supported": ["2026-07-28"], "requested": "2026-07-28"}, http=400),
        )
        called = await gateway.ask(
            "tools/call", {"name": "alpha__a"}, capabilities={"elicitation": {"url": {}}}
        )
        assert (called.status, called.code) == (200, -32603)
        assert "alpha" in called.error["message"]


# Ids and progress (B22, B23)


@pytest.mark.parametrize("id", ["1", 1, 0, -1, "a😀", "", 9007199254740993, 2**70])
async def test_the_clients_id_comes_back_as_it_was(id):
    """Same value and type; upstream ids are the gateway's own (E-04, U-12)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        for method, params in (("tools/list", None), ("tools/call", {"name": "alpha__a"}), ("no/such", None)):
            came = (await gateway.ask(method, params, id=id)).message["id"]
            assert (came, type(came)) == (id, type(id)), method
        ids = [received.message["id"] for received in alpha.requests]
        assert all(isinstance(own, int) and 0 < own < 2**53 for own in ids)
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("id", [None, 1.5, True, {}, []])
async def test_an_id_that_is_none_is_refused(id):
    """400 and -32600, without an id (E-03, E-06)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        refused = await gateway.ask("tools/list", id=id)
        assert (refused.status, refused.code) == (400, -32600)
        assert "id" not in refused.message


async def test_fifty_calls_with_one_id_get_fifty_answers():
    """From two users, answered in reverse: each answer goes to its own call (B22)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        gates = [asyncio.Event() for _ in range(50)]

        async def gated(exchange):
            number = exchange.received.params["arguments"]["n"]
            await gates[number].wait()
            await result({"content": [], "structuredContent": number})(exchange)

        alpha.on("tools/call", gated)
        tasks = [
            asyncio.create_task(
                gateway.ask("tools/call", {"name": "alpha__a", "arguments": {"n": n}}, token="AB"[n % 2])
            )
            for n in range(50)
        ]
        for _ in tasks:
            await alpha.arrived("tools/call")
        for gate in reversed(gates):
            gate.set()
        answers = await asyncio.gather(*tasks)
        assert [one.result["structuredContent"] for one in answers] == list(range(50))
        assert {one.message["id"] for one in answers} == {1}


async def test_progress_returns_under_the_callers_own_token():
    """Equal tokens of two callers, a string one, and none: each stream has its own (B23, E-34)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        together = asyncio.Event()

        async def reporting(exchange):
            number = exchange.received.params["arguments"]["n"]
            own = exchange.received.meta.get("progressToken", 12345)
            steps = [progress(own, value) for value in (number, number + 0.5, number + 0.5)]
            late = progress(own, number + 9)
            await together.wait()
            await sse(
                *map(event, steps),
                event(progress("unknown", 1)),
                answer({"content": [], "structuredContent": number}),
                event(late),
            )(exchange)

        alpha.on("tools/call", reporting)
        tokens = [1, 1, "1", None]
        tasks = [
            asyncio.create_task(
                gateway.ask(
                    "tools/call",
                    {"name": "alpha__a", "arguments": {"n": n}},
                    meta={} if own is None else {"progressToken": own},
                    token=f"T{n}",
                )
            )
            for n, own in enumerate(tokens)
        ]
        sent = [(await alpha.arrived("tools/call")).meta.get("progressToken") for _ in tasks]
        given = [own for own in sent if own is not None]
        assert len(set(given)) == len(given) == 3
        together.set()
        for n, (own, called) in enumerate(zip(tokens, await asyncio.gather(*tasks), strict=True)):
            assert called.result["structuredContent"] == n
            expected = [] if own is None else [(own, n), (own, n + 0.5)]
            assert [
                (one["params"]["progressToken"], one["params"]["progress"]) for one in called.notices
            ] == expected
            assert called.streamed == (own is not None)


async def test_log_messages_come_only_to_who_asked_and_from_its_level_up():
    """Opt-in per request (S-24)."""

    def log(level):
        params = {"level": level, "data": {"n": 1.0}, "logger": None}
        return event({"jsonrpc": "2.0", "method": "notifications/message", "params": params})

    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", sse(log("debug"), log("warning"), log("shout"), answer({"content": []})))
        silent = await gateway.ask("tools/call", {"name": "alpha__a"})
        assert (silent.streamed, silent.notices) == (False, [])
        asked = await gateway.ask("tools/call", {"name": "alpha__a"}, meta={f"{META}logLevel": "info"})
        assert [one["params"] for one in asked.notices] == [{"level": "warning", "data": {"n": 1.0}}]
        levels = [seen.meta.get(f"{META}logLevel") for seen in alpha.seen("tools/call")]
        assert levels == [None, "info"]


# Headers (B06, B43)


async def test_none_of_the_clients_headers_arrives_upstream():
    """Headers are built fresh; above all not its credentials (B06)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        intruders = {
            "Cookie": "s=1",
            "Mcp-Session-Id": "gw-1",
            "Last-Event-ID": "7",
            "Connection": "keep-alive, X-Secret",
            "X-Secret": "1",
            "Proxy-Authorization": "x",
            "Accept-Encoding": "br",
            "X-Forwarded-For": "1.2.3.4",
            "User-Agent": "spy",
            "Mcp-Param-Foreign": "f",
            "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        }
        for method, params in (("tools/list", None), ("tools/call", {"name": "alpha__a"})):
            assert (await gateway.ask(method, params, token="TOK-A", headers=intruders)).status == 200
        for received in alpha.requests:
            names = {name.decode().lower() for name, _ in received.raw_headers}
            assert names <= {
                "host",
                "content-type",
                "content-length",
                "accept",
                "accept-encoding",
                "user-agent",
                "mcp-protocol-version",
                "mcp-method",
                "mcp-name",
            }
            assert received.header("user-agent").startswith("mcp-gateway/")
            assert received.header("accept-encoding") == "gzip, deflate"
            assert b"TOK-A" not in received.body


MIRRORED = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
        "dry": {"type": "boolean", "x-mcp-header": "Dry"},
        "free": {"type": "string"},
    },
}


def wrapped(text):
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


@pytest.mark.parametrize(
    ("arguments", "given", "sent"),
    [
        ({"region": "eu"}, {"Mcp-Param-Region": "eu"}, {"region": "eu"}),
        (
            {"region": "a\r\nX: y"},
            {"Mcp-Param-Region": wrapped("a\r\nX: y")},
            {"region": wrapped("a\r\nX: y")},
        ),
        ({"region": " pad "}, {"Mcp-Param-Region": wrapped(" pad ")}, {"region": wrapped(" pad ")}),
        ({"region": "größe"}, {"mcp-param-region": wrapped("größe")}, {"region": wrapped("größe")}),
        (
            {"region": "=?base64?eA==?="},
            {"Mcp-Param-Region": wrapped("=?base64?eA==?=")},
            {"region": wrapped("=?base64?eA==?=")},
        ),
        ({"region": "eu"}, {"Mcp-Param-Region": wrapped("eu")}, {"region": "eu"}),
        (
            {"count": 42, "dry": False},
            {"Mcp-Param-Count": "42.0", "Mcp-Param-Dry": "false"},
            {"count": "42", "dry": "false"},
        ),
        ({"count": 42.0}, {"Mcp-Param-Count": "42"}, {"count": "42"}),
        ({"region": None, "free": "x"}, {}, {}),
        ({}, {"Mcp-Param-Free": "undeclared"}, {}),
    ],
)
async def test_mirrored_arguments_are_checked_and_built_anew(arguments, given, sent):
    """Encoded as the specification has it, from the body, so nothing can be injected (B43, U-06, S-14)."""
    async with (
        ScriptedUpstream(tools=[tool("get", inputSchema=MIRRORED)]) as alpha,
        running({"alpha": alpha}) as gateway,
    ):
        called = await gateway.ask(
            "tools/call", {"name": "alpha__get", "arguments": arguments}, headers=given
        )
        assert called.status == 200
        arrived = await alpha.arrived("tools/call")
        assert arrived.header("mcp-name") == "get"
        params = {
            name.decode().lower().removeprefix("mcp-param-"): value.decode()
            for name, value in arrived.raw_headers
            if name.lower().startswith(b"mcp-param-")
        }
        assert params == sent
        assert arrived.params["arguments"] == arguments


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ({"region": "eu"}, {}),
        ({"region": "eu"}, {"Mcp-Param-Region": "us"}),
        ({"region": "eu"}, {"Mcp-Param-Region": "EU"}),
        ({"region": None}, {"Mcp-Param-Region": "eu"}),
        ({}, {"Mcp-Param-Region": ""}),
        ({"region": "eu"}, {"Mcp-Param-Region": "=?base64?###?="}),
        ({"count": 42}, {"Mcp-Param-Count": "43"}),
        ({"region": "eu"}, {"Mcp-Name": "alpha__other", "Mcp-Param-Region": "eu"}),
        ({"region": "eu"}, {"Mcp-Name": None, "Mcp-Param-Region": "eu"}),
        ({"region": "eu"}, {"Mcp-Name": "get", "Mcp-Param-Region": "eu"}),
        ({"region": "eu"}, {"Mcp-Name": "=?BASE64?YWxwaGFfX2dldA==?=", "Mcp-Param-Region": "eu"}),
    ],
)
async def test_a_header_that_contradicts_the_body_is_refused(arguments, given):
    """400 and -32020 before anything is sent, the first call of all too (S-14, S-11)."""
    async with (
        ScriptedUpstream(tools=[tool("get", inputSchema=MIRRORED)]) as alpha,
        running({"alpha": alpha}) as gateway,
    ):
        refused = await gateway.ask(
            "tools/call", {"name": "alpha__get", "arguments": arguments}, headers=given
        )
        assert (refused.status, refused.code) == (400, -32020)
        assert alpha.seen("tools/call") == []


async def test_a_name_in_another_alphabet_travels_encoded():
    """Both Mcp-Name forms are understood, and the upstream gets its own name (S-12, B43)."""
    async with (
        ScriptedUpstream(resources=[{"uri": "memo://größe x", "name": "g"}]) as alpha,
        running({"alpha": alpha}) as gateway,
    ):
        uri = "alpha+memo://größe x"
        for name in (wrapped(uri), None):
            read = await gateway.ask(
                "resources/read", {"uri": uri}, headers={} if name else {"Mcp-Name": None}
            )
            assert read.status == (200 if name else 400)
        assert (await alpha.arrived("resources/read")).header("mcp-name") == wrapped("memo://größe x")


async def test_a_schema_that_changed_upstream_is_read_again_and_the_call_retried_once():
    """-32020 from the upstream: its list is read anew, past every ttl, headers are rebuilt (U-20, B43)."""
    async with (
        ScriptedUpstream(tools=[tool("get"), tool("b")], page_size=1) as alpha,
        running({"alpha": alpha}) as gateway,
    ):
        await gateway.ask("tools/list")
        alpha.tools[0] = tool("get", inputSchema=MIRRORED)
        alpha.once("tools/call", error(-32020, "Mcp-Param-Region is missing", http=400))
        called = await gateway.ask("tools/call", {"name": "alpha__get", "arguments": {"region": "eu"}})
        assert called.text == {"tool": "get", "arguments": {"region": "eu"}}
        first, second = alpha.seen("tools/call")
        assert (first.header("mcp-param-region"), second.header("mcp-param-region")) == (None, "eu")
        assert first.message["id"] != second.message["id"]
        assert len(alpha.seen("tools/list")) == 4


async def test_an_upstream_that_goes_on_refusing_its_own_headers_is_at_fault():
    """Two attempts, then -32603: a relayed -32020 would blame the client (U-20)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", error(-32020, "no", http=400))
        called = await gateway.ask("tools/call", {"name": "alpha__a"})
        assert (called.status, called.code) == (200, -32603)
        assert len(alpha.seen("tools/call")) == 2


# Capabilities and input (U-13, M)


async def test_an_upstream_is_told_only_what_the_gateway_relays():
    """What it cannot carry is not declared; settings of what it can are (U-13)."""
    declared = {
        "elicitation": {},
        "sampling": {"tools": {}, "context": {}},
        "roots": {"listChanged": True},
        "experimental": {"x": {"y": 1}},
        "extensions": {
            "io.modelcontextprotocol/ui": {"mimeTypes": ["a/b"]},
            "io.modelcontextprotocol/tasks": {},
            "v/x": {},
        },
    }
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        await gateway.ask("tools/call", {"name": "alpha__a"}, capabilities=declared)
        told = (await alpha.arrived("tools/call")).meta[f"{META}clientCapabilities"]
        assert told == {
            "elicitation": {},
            "sampling": {"tools": {}},
            "roots": {},
            "experimental": {"x": {"y": 1}},
            "extensions": {
                "io.modelcontextprotocol/ui": {"mimeTypes": ["a/b"]},
                "io.modelcontextprotocol/tasks": {},
            },
        }


@pytest.mark.parametrize("kind", ["task", "strange", 7])
async def test_a_result_of_a_kind_nobody_asked_for_is_the_upstreams_fault(kind):
    """-32603, and nothing of it is shown (E-09, T-02)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", result({"resultType": kind, "taskId": "t", "content": []}))
        called = await gateway.ask("tools/call", {"name": "alpha__a"})
        assert (called.status, called.code) == (200, -32603)
        assert called.error["message"] == "upstream alpha: invalid response"


async def test_input_members_travel_only_with_the_methods_that_ask():
    """inputResponses reach calls and prompts, but no completion; nor is a state read there (M-07)."""
    extra = {"inputResponses": {"k": {"action": "accept", "content": {"n": 1.0}}}}
    async with (
        ScriptedUpstream(tools=[tool("a")], prompts=[{"name": "p"}]) as alpha,
        running({"alpha": alpha}) as gateway,
    ):
        await gateway.ask("tools/call", {"name": "alpha__a", **extra})
        await gateway.ask("prompts/get", {"name": "alpha__p", **extra})
        ref = {"ref": {"type": "ref/prompt", "name": "alpha__p"}, "argument": {"name": "a", "value": ""}}
        await gateway.ask("completion/complete", {**ref, **extra, "requestState": "s=="})
        assert extra.items() <= (await alpha.arrived("tools/call")).params.items()
        assert extra.items() <= (await alpha.arrived("prompts/get")).params.items()
        sent = (await alpha.arrived("completion/complete")).params
        assert not {"inputResponses", "requestState"} & sent.keys()


# Leaving


async def test_a_client_that_leaves_cancels_its_call_upstream():
    """Within moments, whether the answer streams already or not (S-21, U-23, B21)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, running({"alpha": alpha}) as gateway:
        alpha.once("tools/call", hang())
        async with gateway.open("tools/call", {"name": "alpha__a"}):
            waiting = await alpha.arrived("tools/call")
        await waiting.closed.wait()
        alpha.once(
            "tools/call",
            sse(
                lambda exchange: event(progress(exchange.received.meta["progressToken"], 1)), asyncio.Event()
            ),
        )
        async with gateway.open("tools/call", {"name": "alpha__a"}, meta={"progressToken": 1}) as exchange:
            await exchange.event()
            streaming = await alpha.arrived("tools/call")
        await streaming.closed.wait()
        await gateway.busy(0)
