"""Calls of several rounds: an upstream asks the user, the answer finds it again, and nobody else's does."""

import asyncio

import pytest

from gateway.core.lists import MISSING_META
from gateway.protocol.call import UpstreamName
from tests.support.running import Clock, running
from tests.support.scripted import META, ScriptedUpstream, complete, result, tool

ANN, BOB = "TOK-ann", "TOK-bob"
ABLE = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
ANSWER = {"who": {"action": "accept", "content": {"name": "Ann", "n": 1.0}}}
DEPLOY = {"name": "alpha__deploy", "arguments": {"to": "prod", "n": 1.0}}


def form(message="Who?", **params):
    """Return the question of an elicitation."""
    return {
        "method": "elicitation/create",
        "params": {"message": message, "requestedSchema": SCHEMA, **params},
    }


def sampling(content, **params):
    messages = [{"role": "user", "content": content}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": 5, **params}}


ASKS = {"who": form()}
TEXT = {"type": "text", "text": "?"}


def asks(requests=ASKS, state="opaque==", **members):
    """Answer with a question; None leaves its part out."""
    asked = {"inputRequests": requests, "requestState": state}
    return result(
        {"resultType": "input_required", **{k: v for k, v in asked.items() if v is not None}, **members}
    )


def asks_once(**asked):
    """Ask a request that brings no answer, and echo what the others bring."""

    async def behave(exchange):
        if "inputResponses" not in exchange.received.params:
            await asks(**asked)(exchange)
        else:
            await exchange.reply({"result": complete({"content": []})})

    return behave


@pytest.fixture
async def alpha():
    tools = [tool("deploy"), tool("other")]
    async with ScriptedUpstream(
        tools=tools, prompts=[{"name": "p"}], resources=[{"uri": "a:1", "name": "one"}]
    ) as alpha:
        alpha.on("tools/call", asks_once())
        yield alpha


async def begin(gateway, params=DEPLOY, method="tools/call", token=ANN, **options):
    """Make the first attempt and return the question."""
    answer = await gateway.ask(method, params, token=token, capabilities=ABLE, **options)
    assert answer.result["resultType"] == "input_required", answer.message
    return answer.result


async def go_on(gateway, asked, params=DEPLOY, method="tools/call", token=ANN, answers=ANSWER, **options):
    """Make the retry: the same request with the answers and the state that came with the question."""
    retry = {**params, "inputResponses": answers, "requestState": asked["requestState"]}
    return await gateway.ask(method, retry, token=token, capabilities=ABLE, **options)


@pytest.mark.parametrize(
    ("method", "params", "original", "finished"),
    [
        (
            "tools/call",
            {"name": "alpha__deploy", "arguments": {}},
            {"name": "deploy", "arguments": {}},
            {"content": []},
        ),
        ("prompts/get", {"name": "alpha__p"}, {"name": "p"}, {"messages": []}),
        ("resources/read", {"uri": "alpha+a:1"}, {"uri": "a:1"}, {"contents": []}),
    ],
)
async def test_a_question_is_relayed_and_its_answer_goes_back(alpha, method, params, original, finished):
    """On all three methods: fresh id, original params, answers verbatim, the state as it was (M-01, M-06)."""
    async with running({"alpha": alpha}) as gateway:
        alpha.once(method, asks(), result(finished))
        asked = await begin(gateway, params, method)
        done = await go_on(gateway, asked, params, method)
        assert done.result["resultType"] == "complete"
        first, second = alpha.seen(method)
        assert first.message["id"] != second.message["id"]
        sent = {key: value for key, value in second.params.items() if key != "_meta"}
        assert sent == {**original, "inputResponses": ANSWER, "requestState": "opaque=="}
        assert b'"n":1.0' in second.body.replace(b" ", b"")
        assert second.meta[f"{META}clientCapabilities"] == ABLE


@pytest.mark.parametrize("method", ["tools/list", "completion/complete"])
async def test_what_asks_where_nothing_may_be_asked_is_an_invalid_response(alpha, method):
    """M-01: -32603, and no question."""
    ref = {"ref": {"type": "ref/prompt", "name": "alpha__p"}, "argument": {"name": "a", "value": ""}}
    params = ref if method == "completion/complete" else None
    async with running({"alpha": alpha}) as gateway:
        alpha.on(method, asks())
        answer = await gateway.ask(method, params, capabilities=ABLE)
        assert answer.code == -32603
        assert "invalid response" in answer.error["message"]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"inputRequests": None, "requestState": None},
        {"requestState": 7},
        {"inputRequests": []},
        {"inputRequests": {"a": None}},
        {"inputRequests": {"a": {"method": "ping", "params": {}}}},
        {"inputRequests": {"a": {"method": "elicitation/create"}}},
        {"inputRequests": {"a": {"method": "elicitation/create", "params": {"requestedSchema": SCHEMA}}}},
    ],
)
async def test_a_question_nobody_could_read_is_the_upstreams_fault(alpha, broken):
    """M-02: it has requests of the three kinds, or a state, or both."""
    async with running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", result({"resultType": "input_required", **broken}))
        answer = await gateway.ask("tools/call", DEPLOY, capabilities=ABLE)
        assert (answer.code, answer.error["message"]) == (-32603, "upstream alpha: invalid response")


async def test_a_question_carries_no_hints_and_who_answers(alpha):
    """M-04: a resource that asks is not cacheable, and serverInfo is the gateway's."""
    async with running({"alpha": alpha}) as gateway:
        alpha.on("resources/read", asks(ttlMs=60_000, cacheScope="public", **{"v/x": 1}))
        answer = await gateway.ask("resources/read", {"uri": "alpha+a:1"}, token=ANN, capabilities=ABLE)
        assert answer.result.keys() == {"resultType", "inputRequests", "requestState", "_meta", "v/x"}
        assert answer.result["_meta"][f"{META}serverInfo"]["name"] == "mcp-gateway"
        assert answer.header("cache-control") == "no-store"
        assert answer.header("mcp-gateway-cache") == "bypass; reason=incomplete"


async def test_the_user_is_shown_which_upstream_asks(alpha):
    """M-23: by its key, in both modes; the rest of the question stays as it is, url included (M-03, M-25)."""
    visit = {"mode": "url", "message": "Sign in", "url": "https://a.example/x?y=%20#z", "v": 1.0}
    requests = {"who ": form("Who is it?"), "visit": {"method": "elicitation/create", "params": visit}}
    async with running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", asks(requests))
        asked = (await begin(gateway))["inputRequests"]
        assert asked == {
            "who ": form("[alpha] Who is it?"),
            "visit": {"method": "elicitation/create", "params": {**visit, "message": "[alpha] Sign in"}},
        }


@pytest.mark.parametrize(("label", "shown"), [("GitHub (prod)", "[GitHub (prod)] Who?"), ("", "Who?")])
async def test_the_label_is_the_operators_choice(alpha, label, shown):
    """M-23: a name for people, or none where one server is fronted."""
    async with running({"alpha": {"url": alpha.url, "label": label}}) as gateway:
        asked = await begin(gateway)
        assert asked["inputRequests"]["who"]["params"]["message"] == shown


async def test_uris_in_sampling_messages_are_those_the_client_can_read(alpha):
    """F-12: in the blocks of tool results; names, text and schemas stay (F-06)."""
    link = {"type": "resource_link", "uri": "a:9", "name": "nine"}
    embedded = {"type": "resource", "resource": {"uri": "a:8", "text": "a:8"}}
    used = {
        "type": "tool_result",
        "toolUseId": "t",
        "content": [link, embedded],
        "structuredContent": {"uri": "a:7"},
    }
    asked_tool = {"name": "deploy", "inputSchema": {"type": "object", "default": {"uri": "a:1"}}}
    requests = {"s": sampling([{"type": "text", "text": "a:1"}, used], tools=[asked_tool])}
    async with running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", asks(requests))
        params = (await begin(gateway))["inputRequests"]["s"]["params"]
        assert params["tools"] == [asked_tool]
        text, shown = params["messages"][0]["content"]
        assert text == {"type": "text", "text": "a:1"}
        assert [shown["content"][0]["uri"], shown["content"][1]["resource"]] == [
            "alpha+a:9",
            {"uri": "alpha+a:8", "text": "a:8"},
        ]
        assert shown["structuredContent"] == {"uri": "a:7"}


@pytest.mark.parametrize(
    ("asked", "left"), [("thisServer", "none"), ("allServers", "none"), ("none", "none"), (None, None)]
)
async def test_other_servers_context_is_not_asked_for(alpha, asked, left):
    """M-24: behind a gateway "this server" is all of them."""
    request = sampling(TEXT, includeContext=asked)
    async with running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", asks({"s": request}))
        assert (await begin(gateway))["inputRequests"]["s"]["params"].get("includeContext") == left


async def test_nulls_of_optional_members_are_left_out(alpha):
    """E-28: clients refuse them; a null in a schema is data."""
    schema = {**SCHEMA, "default": None}
    elicitation = {"mode": None, "_meta": None, "message": "?", "requestedSchema": schema}
    requests = {
        "who": {"method": "elicitation/create", "params": elicitation},
        "roots": {"method": "roots/list", "params": None},
    }
    async with running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", asks(requests))
        shown = (await begin(gateway, judged=False))["inputRequests"]
        assert shown["who"]["params"] == {"message": "[alpha] ?", "requestedSchema": schema}
        assert shown["roots"] == {"method": "roots/list"}


@pytest.mark.parametrize(
    ("declared", "requests", "missing"),
    [
        ({}, {"who": form()}, {"elicitation": {"form": {}}}),
        ({"elicitation": {}}, {"v": form(mode="url", url="https://a.example")}, {"elicitation": {"url": {}}}),
        ({"elicitation": {"url": {}}}, {"who": form()}, {"elicitation": {"form": {}}}),
        ({"elicitation": {}}, {"s": sampling(TEXT)}, {"sampling": {}}),
        (
            {"sampling": {}},
            {"s": sampling(TEXT, tools=[])},
            {"sampling": {"tools": {}}},
        ),
        ({"sampling": {}, "elicitation": {}}, {"r": {"method": "roots/list"}, "who": form()}, {"roots": {}}),
    ],
)
async def test_what_the_client_did_not_declare_is_not_asked_of_it(alpha, declared, requests, missing, caplog):
    """M-05: -32021 names just what is missing; the operator learns whose fault it is."""
    async with running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", asks(requests))
        answer = await gateway.ask("tools/call", DEPLOY, capabilities=declared)
        assert (answer.status, answer.code) == (400, -32021)
        assert answer.error["data"] == {"requiredCapabilities": missing}
        assert await gateway.counted('dropped_total{upstream="alpha",what="response"}') == 1
    assert "not offered to it" in caplog.text


@pytest.mark.parametrize(
    "request_",
    [
        form(mode="voice"),
        form(mode=5),
        {"method": "sampling/createMessage", "params": {"maxTokens": 5}},
        {"method": "sampling/createMessage", "params": {"messages": "no", "maxTokens": 5}},
        {"method": "sampling/createMessage", "params": {"messages": ["no"], "maxTokens": 5}},
    ],
)
async def test_a_question_that_makes_no_sense_is_no_answer(alpha, request_):
    """M-02: whatever the client declared, the fault is the upstream's."""
    async with running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", asks({"q": request_}))
        for declared in ({}, {"elicitation": {"form": {}, "url": {}}, "sampling": {}}):
            answer = await gateway.ask("tools/call", DEPLOY, capabilities=declared)
            assert answer.code == -32603
        assert await gateway.counted('dropped_total{upstream="alpha",what="response"}') == 2


async def test_an_upstream_hears_what_this_client_declared_and_no_other_did(alpha):
    """U-13: for reads too, which travel with the profile that lists do."""
    async with running({"alpha": alpha}) as gateway:
        for declared in (ABLE, {}, {"sampling": {}}):
            await gateway.ask("resources/read", {"uri": "alpha+a:1"}, token=ANN, capabilities=declared)
        told = [seen.meta[f"{META}clientCapabilities"] for seen in alpha.seen("resources/read")]
        assert told == [ABLE, {}, {"sampling": {}}]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_user_may_decline(alpha, action):
    """B44: that is an answer like any other, and the upstream's to deal with."""
    async with running({"alpha": alpha}) as gateway:
        asked = await begin(gateway)
        done = await go_on(gateway, asked, answers={"who": {"action": action}, "unasked": {"x": None}})
        assert done.result["resultType"] == "complete"
        sent = alpha.seen("tools/call")[-1].params["inputResponses"]
        assert sent == {"who": {"action": action}, "unasked": {"x": None}}, "unknown keys too (M-06)"


async def test_several_rounds_each_with_its_own_state(alpha):
    """The token of a round holds the state of that round."""
    async with running({"alpha": alpha}) as gateway:
        alpha.once("tools/call", asks(state="one"), asks(state="two"), result({"content": []}))
        first = await begin(gateway)
        second = (await go_on(gateway, first)).result
        assert second["resultType"] == "input_required"
        assert second["requestState"] != first["requestState"]
        await go_on(gateway, second)
        assert [seen.params.get("requestState") for seen in alpha.seen("tools/call")] == [None, "one", "two"]


async def test_there_is_always_a_token_and_it_may_stand_for_no_state(alpha):
    """M-10: the upstream that gave none is sent none."""
    async with running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", asks_once(state=None))
        asked = await begin(gateway)
        assert asked["requestState"]
        assert (await go_on(gateway, asked)).result["resultType"] == "complete"
        assert "requestState" not in alpha.seen("tools/call")[-1].params


async def test_a_state_that_is_empty_text_is_a_state(alpha):
    """M-10: absent and empty differ."""
    async with running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", asks_once(state=""))
        await go_on(gateway, await begin(gateway))
        assert alpha.seen("tools/call")[-1].params["requestState"] == ""


async def test_a_state_without_questions_is_relayed(alpha):
    """M-14: a client that comes back with it alone is let through, whatever it declared."""
    async with running({"alpha": alpha}) as gateway:
        alpha.once("tools/call", asks(requests=None, state="busy"), result({"content": []}))
        asked = await gateway.ask("tools/call", DEPLOY, token=ANN)
        assert asked.result.keys() == {"resultType", "requestState", "_meta"}
        retry = {**DEPLOY, "requestState": asked.result["requestState"]}
        assert (await gateway.ask("tools/call", retry, token=ANN)).result["resultType"] == "complete"
        sent = alpha.seen("tools/call")[-1].params
        assert (sent["requestState"], "inputResponses" in sent) == ("busy", False)


async def test_answers_without_a_state_are_a_first_attempt_with_extra_data(alpha):
    """M-11: they are passed on, and nothing is verified."""
    async with running({"alpha": alpha}) as gateway:
        await begin(gateway)
        done = await gateway.ask("tools/call", {**DEPLOY, "inputResponses": ANSWER}, token=BOB)
        assert done.result["resultType"] == "complete"
        assert alpha.seen("tools/call")[-1].params["inputResponses"] == ANSWER


@pytest.mark.parametrize("answers", [7, "x", [], True])
async def test_answers_are_an_object(alpha, answers):
    """Anything else is the client's mistake and reaches nobody; null means that there are none (E-26)."""
    async with running({"alpha": alpha}) as gateway:
        refused = await gateway.ask("tools/call", {**DEPLOY, "inputResponses": answers})
        assert (refused.status, refused.code) == (400, -32602)
        assert not alpha.seen("tools/call")
        nothing = {**DEPLOY, "inputResponses": None, "requestState": None}
        assert (await gateway.ask("tools/call", nothing, capabilities=ABLE)).result["requestState"]
        assert not {"inputResponses", "requestState"} & alpha.seen("tools/call")[-1].params.keys()


# Whose state it is (M-09, M-11, B44)


async def refused(gateway, upstreams, method="tools/call", params=None, token=ANN, **options):
    """Whether a retry is refused with -32602 before any upstream is asked anything."""
    before = [len(upstream.requests) for upstream in upstreams]
    answer = await gateway.ask(method, params, token=token, capabilities=ABLE, **options)
    assert [len(upstream.requests) for upstream in upstreams] == before, "an upstream was asked"
    assert (answer.status, answer.code) == (400, -32602), answer.message
    assert answer.error == {
        "code": -32602,
        "message": "requestState: not one given for this request, or too old",
    }
    return True


async def test_two_upstreams_with_the_same_state_text_each_get_their_own_back(alpha):
    """B44: the token says whose it is."""
    async with (
        ScriptedUpstream(tools=[tool("deploy")]) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        beta.on("tools/call", asks_once())
        other = {**DEPLOY, "name": "beta__deploy"}
        asked = [await begin(gateway), await begin(gateway, other)]
        assert asked[1]["inputRequests"]["who"]["params"]["message"] == "[beta] Who?"
        await go_on(gateway, asked[1], other)
        await go_on(gateway, asked[0])
        for upstream in (alpha, beta):
            assert [seen.params.get("requestState") for seen in upstream.seen("tools/call")] == [
                None,
                "opaque==",
            ]
        swapped = {**other, "inputResponses": ANSWER, "requestState": asked[0]["requestState"]}
        assert await refused(gateway, [alpha, beta], params=swapped)


async def test_what_users_answer_reaches_who_asked_and_nobody_else(alpha):
    """M-26, M-25: within that retry, not with the next call; and nobody here visits the page."""
    async with (
        ScriptedUpstream(tools=[tool("deploy")], resources=[{"uri": "b:1", "name": "one"}]) as beta,
        ScriptedUpstream() as page,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        visit = {"mode": "url", "message": "Sign in", "url": page.url}
        requests = {
            "roots": {"method": "roots/list"},
            "visit": {"method": "elicitation/create", "params": visit},
        }
        answers = {"roots": {"roots": [{"uri": "file:///home/ann"}]}, "visit": {"action": "accept"}}
        alpha.once("tools/call", asks(requests), result({"content": []}), result({"content": []}))
        asked = await begin(gateway)
        assert asked["inputRequests"]["visit"]["params"]["url"] == page.url
        assert (await go_on(gateway, asked, answers=answers)).result["resultType"] == "complete"
        await gateway.ask("tools/call", DEPLOY, token=ANN, capabilities=ABLE)
        await gateway.ask("tools/call", {**DEPLOY, "name": "beta__deploy"}, token=ANN, capabilities=ABLE)
        await gateway.ask("resources/read", {"uri": "beta+b:1"}, token=ANN, capabilities=ABLE)
        got = [seen.params.get("inputResponses") for seen in alpha.seen("tools/call")]
        assert got == [None, answers, None]
        assert not [seen for seen in beta.requests if b"/home/ann" in seen.body]
        assert not page.requests


@pytest.mark.parametrize("change", ["caller", "nobody", "params", "extra", "tool", "prompt", "endpoint"])
async def test_a_state_opens_for_the_same_caller_and_request_only(alpha, change):
    """M-11: another user, other params, another tool, method or endpoint; and no upstream hears of it."""
    async with running({"alpha": alpha}, endpoints={"/mcp": {}, "/two": {}}) as gateway:
        for path in ("/mcp", "/two"):
            await gateway.ask("prompts/list", path=path, token=ANN, capabilities=ABLE)
        asked = await begin(gateway)
        retry = {**DEPLOY, "inputResponses": ANSWER, "requestState": asked["requestState"]}
        options = {"params": retry}
        match change:
            case "caller":
                options["token"] = BOB
            case "nobody":
                options["token"] = None
            case "params":
                options["params"] = {**retry, "arguments": {"to": "test", "n": 1.0}}
            case "extra":
                options["params"] = {**retry, "x": 1}
            case "tool":
                options["params"] = {**retry, "name": "alpha__other"}
            case "prompt":
                options |= {"method": "prompts/get", "params": {**retry, "name": "alpha__p"}}
            case "endpoint":
                options["path"] = "/two"
        assert await refused(gateway, [alpha], **options)
        assert (await go_on(gateway, asked)).result["resultType"] == "complete", "it is still good"


@pytest.mark.parametrize("state", ["opaque==", "", "x" * 3_000_000, 7, [], {}, "\u00e4"])
async def test_what_is_no_token_of_ours_is_refused(alpha, state):
    """M-08: whatever a client comes up with, the upstream's own state included."""
    async with running({"alpha": alpha}) as gateway:
        assert await refused(gateway, [alpha], params={**DEPLOY, "requestState": state})


async def test_a_changed_token_is_refused(alpha):
    """M-08: any of its characters."""
    async with running({"alpha": alpha}) as gateway:
        token = (await begin(gateway))["requestState"]
        for at in (0, len(token) // 2, len(token) - 1):
            other = "A" if token[at] != "A" else "Q"
            changed = token[:at] + other + token[at + 1 :]
            assert await refused(gateway, [alpha], params={**DEPLOY, "requestState": changed})
        assert await refused(gateway, [alpha], params={**DEPLOY, "requestState": token + "-TAMPERED"})


async def test_the_same_params_in_another_spelling_are_the_same(alpha):
    """M-09: clients write a retry anew, and may order or space it otherwise; a null is absent (E-26)."""
    async with running({"alpha": alpha}) as gateway:
        asked = await begin(gateway, {"name": "alpha__deploy", "arguments": {"a": "é", "b": [1, 2]}})
        again = {"requestState": asked["requestState"], "context": None, "arguments": {"b": [1, 2], "a": "é"}}
        again |= {"inputResponses": ANSWER, "name": "alpha__deploy"}
        assert (await gateway.ask("tools/call", again, token=ANN)).result["resultType"] == "complete"


async def test_an_endpoint_without_that_upstream_refuses_its_state(alpha):
    """M-11: another replica may have another configuration: the upstream is gone there."""
    keys = {"keys": ["k" * 32]}
    async with (
        ScriptedUpstream(tools=[tool("deploy")]) as beta,
        running({"alpha": alpha}, secrets=keys) as before,
        running({"beta": {"url": beta.url, "prefix": "alpha"}}, secrets=keys) as after,
    ):
        await after.ask("tools/list", token=ANN, capabilities=ABLE)
        asked = await begin(before)
        retry = {**DEPLOY, "inputResponses": ANSWER, "requestState": asked["requestState"]}
        assert await refused(after, [beta], params=retry)


async def test_a_state_is_good_on_every_replica_with_the_same_keys(alpha):
    """M-13: nothing is kept in the one that gave it; a new key before the old ones opens it too."""
    old, new = "o" * 32, "n" * 32
    async with (
        running({"alpha": alpha}, secrets={"keys": [old]}) as one,
        running({"alpha": alpha}, secrets={"keys": [old]}) as two,
        running({"alpha": alpha}, secrets={"keys": [new, old]}) as rotated,
        running({"alpha": alpha}, secrets={"keys": [new]}) as later,
    ):
        for gateway in (two, rotated, later):
            await gateway.ask("tools/list", token=ANN, capabilities=ABLE)
        asked = await begin(one)
        for gateway in (two, rotated):
            assert (await go_on(gateway, asked)).result["resultType"] == "complete"
        retry = {**DEPLOY, "requestState": asked["requestState"]}
        assert await refused(later, [alpha], params=retry), "the old key is out"
        asked = await begin(rotated)
        assert (await go_on(later, asked)).result["resultType"] == "complete"


async def test_a_state_of_a_resource_that_two_upstreams_have_goes_back_to_who_asked(alpha):
    """M-11: an https URI is nobody's by its text; who lists it may change between the rounds."""
    page = {"uri": "https://x.example/1", "name": "page"}
    async with (
        ScriptedUpstream(resources=[]) as first,
        ScriptedUpstream(resources=[page]) as second,
        running({"first": first, "second": second}) as gateway,
    ):
        second.once("resources/read", asks())
        read = {"uri": page["uri"]}
        asked = await begin(gateway, read, "resources/read")
        first.resources = [page]
        for name in ("first", "second"):
            await gateway.runtime.catalogue.forget(UpstreamName(name), "resources/list", "list_changed")
        await gateway.ask("resources/list", token=ANN, capabilities=ABLE)
        done = await go_on(gateway, asked, read, "resources/read")
        assert done.result["resultType"] == "complete"
        assert (len(first.seen("resources/read")), len(second.seen("resources/read"))) == (0, 2)
        assert MISSING_META not in done.result["_meta"]


async def test_an_upstreams_refusal_of_its_own_state_is_passed_on(alpha):
    """F-31: it may know better; a read's refusal is no missing resource then (F-16)."""

    async def stale(exchange):
        await exchange.reply(
            {"error": {"code": -32602, "message": "Invalid or expired requestState"}}, status=400
        )

    async with running({"alpha": alpha}) as gateway:
        alpha.once("resources/read", asks(), stale)
        read = {"uri": "alpha+a:1"}
        answer = await go_on(gateway, await begin(gateway, read, "resources/read"), read, "resources/read")
        assert answer.error == {"code": -32602, "message": "Invalid or expired requestState"}


async def test_a_state_too_large_to_hand_on_is_a_clear_error(alpha, caplog):
    """M-13: the client learns whose state, the operator which limit."""
    async with running({"alpha": alpha}, limits={"request_state": 1024}) as gateway:
        alpha.on("tools/call", asks(state="é" * 512))
        assert await begin(gateway)
        alpha.on("tools/call", asks(state="é" * 513))
        answer = await gateway.ask("tools/call", DEPLOY, token=ANN, capabilities=ABLE)
        assert answer.code == -32603
        assert answer.error["message"] == "upstream alpha asks for input with a state too large to hand on"
    assert "limits.request_state, 1024 bytes" in caplog.text


async def test_no_state_is_readable_on_its_way(alpha):
    """M-13: neither the upstream's state nor its key stands in the token."""
    async with running({"alpha": alpha}) as gateway:
        asked = await begin(gateway)
        assert "opaque" not in asked["requestState"]
        again = await begin(gateway)
        assert again["requestState"] != asked["requestState"]


# Nothing of a dialogue is cached or shared (C-03)


async def test_whoever_waits_for_the_same_call_is_asked_himself(alpha):
    """With `cache.calls` too: equal calls share a fetch, but no question and no token."""
    kept = {"url": alpha.url, "cache": {"calls": {"deploy": {"ttl": 60.0, "scope": "public"}}}}
    async with running({"alpha": kept}, clock=Clock()) as gateway:
        go = asyncio.Event()

        async def held(exchange):
            await go.wait()
            await asks_once()(exchange)

        alpha.on("tools/call", held)
        async with gateway.open("tools/call", DEPLOY, token=ANN, capabilities=ABLE) as one:
            await alpha.arrived("tools/call")
            async with gateway.open("tools/call", DEPLOY, token=ANN, capabilities=ABLE) as two:
                await gateway.busy(2)
                go.set()
                asked = [(await one.answer()).result, (await two.answer()).result]
        assert asked[0]["requestState"] != asked[1]["requestState"]
        assert len(alpha.seen("tools/call")) == 2
        for question in asked:
            done = await go_on(gateway, question)
            assert done.header("mcp-gateway-cache") == "bypass; reason=mrtr"
        assert len(alpha.seen("tools/call")) == 4, "no answer was kept"
        assert (await begin(gateway))["inputRequests"], "nor a question"


async def test_a_callers_question_is_not_his_neighbours(alpha):
    """A read that was public before is fetched once for all, but a question is nobody else's."""
    async with running({"alpha": alpha}, clock=Clock()) as gateway:
        read = {"uri": "alpha+a:1"}
        alpha.on("resources/read", asks())
        questions = [await begin(gateway, read, "resources/read", token=who) for who in (ANN, ANN, BOB)]
        assert len({question["requestState"] for question in questions}) == 3
        retry = {**read, "inputResponses": ANSWER, "requestState": questions[2]["requestState"]}
        assert await refused(gateway, [alpha], "resources/read", retry)


async def test_what_users_answer_is_not_logged(alpha, caplog):
    """M-25, M-26: neither form data nor a url with its query, at any level."""
    caplog.set_level("DEBUG")
    visit = {"mode": "url", "message": "Sign in", "url": "https://a.example/?code=SECRET-1"}
    async with running({"alpha": alpha}) as gateway:
        alpha.on("tools/call", asks_once(requests={"v": {"method": "elicitation/create", "params": visit}}))
        answers = {"v": {"action": "accept", "content": {"pin": "SECRET-2"}}}
        await go_on(gateway, await begin(gateway), answers=answers)
        await gateway.ask("tools/call", {**DEPLOY, "inputResponses": answers, "requestState": "SECRET-3"})
    assert "SECRET" not in caplog.text
