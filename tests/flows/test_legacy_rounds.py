"""What an upstream asks inside an answer, put to clients of older revisions as requests (M-14 to M-18)."""

import asyncio
import json

import pytest

from tests.support.legacy_client import LegacyClient
from tests.support.running import running
from tests.support.scripted import META, ScriptedUpstream, complete, result, tool

VERSIONS = ["2025-11-25", "2025-06-18", "2025-03-26"]
ABLE = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {"listChanged": True}}
DEPLOY = {"name": "alpha__deploy", "arguments": {"n": 1.0}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
FORM = {
    "method": "elicitation/create",
    "params": {"message": "Who?", "requestedSchema": SCHEMA, "mode": "form"},
}
PAGE = {"method": "elicitation/create", "params": {"message": "Go", "url": "https://x/?q=1", "mode": "url"}}
MESSAGES = [{"role": "user", "content": {"type": "text", "text": "?"}}]
SAMPLING = {"method": "sampling/createMessage", "params": {"messages": MESSAGES, "maxTokens": 5}}
ROOTS = {"method": "roots/list"}
ACCEPTED = {"action": "accept", "content": {"name": "Ann", "n": 1.0}}
SAID = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "!"}}
ANN = {"roots": [{"uri": "file:///ann"}]}


def asks(requests, state="opaque=="):
    """Ask while a request brings no answers; echo those of the others."""

    async def behave(exchange):
        params = exchange.received.params
        if "inputResponses" not in params:
            await question(requests, state)(exchange)
            return
        text = json.dumps({"answers": params["inputResponses"], "state": params.get("requestState")})
        await exchange.reply({"result": complete({"content": [{"type": "text", "text": text}]})})

    return behave


def question(requests, state):
    asked = {"inputRequests": requests, "requestState": state}
    return result({"resultType": "input_required", **{k: v for k, v in asked.items() if v is not None}})


@pytest.fixture
async def alpha():
    tools = [tool("deploy")]
    prompts, resources = [{"name": "p"}], [{"uri": "a:1", "name": "one"}]
    async with ScriptedUpstream(tools=tools, prompts=prompts, resources=resources) as alpha:
        yield alpha


@pytest.fixture
async def gateway(alpha):
    async with running({"alpha": alpha}, limits={"rounds": 2}) as gateway:
        yield gateway


@pytest.fixture
def url(gateway):
    return gateway.addresses.endpoints[0]


def echoed(answer):
    return json.loads(answer["result"]["content"][0]["text"])


@pytest.mark.parametrize(
    ("version", "asked", "given"),
    [
        ("2025-11-25", FORM, ACCEPTED),
        ("2025-06-18", FORM, ACCEPTED),
        ("2025-11-25", PAGE, {"action": "accept"}),
        *[(version, SAMPLING, SAID) for version in VERSIONS],
        *[(version, ROOTS, ANN) for version in VERSIONS],
    ],
)
async def test_a_question_is_put_on_the_stream_of_its_call(alpha, url, version, asked, given):
    """M-15, and the answer goes up with the state, byte for byte where it can."""
    alpha.on("tools/call", asks({"k": asked}))
    async with LegacyClient(url, version, capabilities=ABLE) as client:
        async with client.open("tools/call", DEPLOY, id="c") as posted:
            put = await posted.next()
            assert put["method"] == asked["method"]
            assert await client.respond(put["id"], given) == 202
            answer = await posted.answer()
        assert answer["id"] == "c"
        assert echoed(answer) == {"answers": {"k": given}, "state": "opaque=="}
        first, second = alpha.seen("tools/call")
        assert first.message["id"] != second.message["id"]
        assert second.params["arguments"] == {"n": 1.0}
        declared = second.meta[f"{META}clientCapabilities"]
        assert "url" in declared.get("elicitation", {}) or version != "2025-11-25"


async def test_a_question_names_who_asks_and_a_page_has_an_id_of_ours(alpha, url):
    """M-23, M-18: the id is new each time, and does not go up again."""
    alpha.on("tools/call", asks({"k": PAGE}))
    ids = set()
    async with LegacyClient(url, capabilities=ABLE) as client:
        for _ in range(2):
            async with client.open("tools/call", DEPLOY) as posted:
                put = await posted.next()
                assert put["params"]["message"] == "[alpha] Go"
                assert put["params"]["url"] == "https://x/?q=1"
                ids.add(put["params"]["elicitationId"])
                await client.respond(put["id"], {"action": "decline"})
                assert echoed(await posted.answer())["answers"] == {"k": {"action": "decline"}}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("method", "params", "finished"),
    [
        ("prompts/get", {"name": "alpha__p"}, {"messages": []}),
        ("resources/read", {"uri": "alpha+a:1"}, {"contents": []}),
    ],
)
async def test_prompts_and_reads_may_ask_as_well(alpha, url, method, params, finished):
    alpha.once(method, question({"k": ROOTS}, None), result(finished))
    async with LegacyClient(url, capabilities=ABLE) as client, client.open(method, params) as posted:
        put = await posted.next()
        await client.respond(put["id"], ANN)
        assert (await posted.answer())["result"] == finished
    assert alpha.seen(method)[1].params["inputResponses"] == {"k": ANN}
    assert "requestState" not in alpha.seen(method)[1].params


async def test_several_questions_are_answered_in_any_order(alpha, url):
    alpha.on("tools/call", asks({"a": ROOTS, "b": FORM, "c": SAMPLING}))
    async with LegacyClient(url, capabilities=ABLE) as client, client.open("tools/call", DEPLOY) as posted:
        put = {one["method"]: one["id"] for one in [await posted.next() for _ in range(3)]}
        assert len(set(put.values())) == 3
        await client.respond(put["sampling/createMessage"], SAID)
        await client.respond(put["roots/list"], ANN)
        await client.respond(put["elicitation/create"], ACCEPTED)
        assert echoed(await posted.answer())["answers"] == {"a": ANN, "b": ACCEPTED, "c": SAID}


async def test_an_answer_counts_once_and_in_its_own_session(alpha, url):
    """M-16: somebody else's is dropped, and so is a second one."""
    alpha.on("tools/call", asks({"k": ROOTS}))
    async with (
        LegacyClient(url, capabilities=ABLE) as ann,
        LegacyClient(url, capabilities=ABLE) as bob,
        ann.open("tools/call", DEPLOY) as posted,
    ):
        put = await posted.next()
        assert await bob.respond(put["id"], {"roots": [{"uri": "file:///bob"}]}) == 202
        assert await ann.respond(put["id"], ANN) == 202
        assert await ann.respond(put["id"], {"roots": []}) == 202
        assert echoed(await posted.answer())["answers"] == {"k": ANN}


@pytest.mark.parametrize(
    ("version", "capabilities", "asked", "named"),
    [
        ("2025-11-25", {}, FORM, "elicitation"),
        ("2025-11-25", {"elicitation": {}}, PAGE, "elicitation.url"),
        ("2025-11-25", {}, SAMPLING, "sampling"),
        ("2025-11-25", {}, ROOTS, "roots"),
        ("2025-06-18", ABLE, PAGE, "elicitation.url"),
        ("2025-03-26", ABLE, FORM, "elicitation"),
        (
            "2025-06-18",
            ABLE,
            {
                **FORM,
                "params": {**FORM["params"], "requestedSchema": {"properties": {"a": {"type": "array"}}}},
            },
            "elicitation",
        ),
    ],
)
async def test_what_cannot_be_asked_fails_the_call_and_says_what_is_lacking(
    alpha, url, version, capabilities, asked, named
):
    """M-15, M-18, A-50: never hung, and nothing is asked."""
    alpha.on("tools/call", asks({"k": asked}))
    async with LegacyClient(url, version, capabilities=capabilities) as client:
        said = await client.error("tools/call", DEPLOY)
        assert said["code"] == -32603
        assert named in said["message"]
        assert len(alpha.seen("tools/call")) == 1


async def test_an_error_of_the_client_cancels_a_form_and_ends_everything_else(alpha, url):
    """M-17, and what else was asked is taken back."""
    alpha.on("tools/call", asks({"k": FORM}))
    refusal = {"code": -7, "message": "no", "data": {"n": 1.0}}
    async with LegacyClient(url, capabilities=ABLE) as client:
        async with client.open("tools/call", DEPLOY) as posted:
            await client.respond((await posted.next())["id"], error=refusal)
            assert echoed(await posted.answer())["answers"] == {"k": {"action": "cancel"}}
        alpha.on("tools/call", asks({"a": ROOTS, "b": FORM}))
        async with client.open("tools/call", DEPLOY) as posted:
            roots, form = [await posted.next() for _ in range(2)]
            await client.respond(roots["id"], error=refusal)
            answer = await posted.answer()
        assert answer["error"] == refusal
        withdrawn = posted.messages[-2]
        assert (withdrawn["method"], withdrawn["params"]["requestId"]) == (
            "notifications/cancelled",
            form["id"],
        )
        assert len(alpha.seen("tools/call")) == 3


async def test_rounds_are_bounded(alpha, url):
    """M-16: `limits.rounds`, each of them asked."""
    alpha.on("tools/call", question({"k": ROOTS}, "s"))
    async with LegacyClient(url, capabilities=ABLE) as client, client.open("tools/call", DEPLOY) as posted:
        asked = 0
        while (put := await posted.next()) is not None and "method" in put:
            asked += 1
            await client.respond(put["id"], ANN)
        assert put["error"]["code"] == -32603
        assert asked == 2
        assert len(alpha.seen("tools/call")) == 3


async def test_an_upstream_that_wants_to_be_asked_again_is_asked_again(alpha, url):
    """M-14: the client notices nothing."""
    alpha.once("tools/call", question(None, "later"), result({"content": []}))
    async with LegacyClient(url) as client:
        assert await client.result("tools/call", DEPLOY) == {"content": []}
    assert [seen.params.get("requestState") for seen in alpha.seen("tools/call")] == [None, "later"]


async def test_a_call_taken_back_takes_its_question_back(alpha, gateway, url):
    """9.4: on the stream of the call, which then ends without an answer."""
    alpha.on("tools/call", asks({"k": ROOTS}))
    async with LegacyClient(url, capabilities=ABLE) as client:
        async with client.open("tools/call", DEPLOY, id=9) as posted:
            put = await posted.next()
            assert await client.notify("notifications/cancelled", {"requestId": 9}) == 202
            withdrawn = await posted.next()
            assert (withdrawn["method"], withdrawn["params"]["requestId"]) == (
                "notifications/cancelled",
                put["id"],
            )
            assert await posted.ended()
        assert await client.respond(put["id"], ANN) == 202
        await gateway.busy(0)
        (session,) = gateway.runtime.sessions
        assert not session.busy
        assert len(alpha.seen("tools/call")) == 1


async def test_a_client_that_does_not_answer_is_not_waited_for_for_ever(alpha):
    alpha.on("tools/call", asks({"k": ROOTS}))
    async with running({"alpha": alpha}, limits={"input_wait": 0.05}) as gateway:
        url = gateway.addresses.endpoints[0]
        async with (
            LegacyClient(url, capabilities=ABLE) as client,
            client.open("tools/call", DEPLOY) as posted,
        ):
            answer = await posted.answer()
            assert answer["error"]["code"] == -32603
            assert posted.messages[-2]["method"] == "notifications/cancelled"


def _stated(limit):
    return {"most" if limit == "questions" else "most_per_caller": 1}


@pytest.mark.parametrize("limit", ["questions_per_caller", "questions"])
async def test_calls_that_wait_for_a_client_are_bounded(alpha, limit):
    """Altogether, and for each caller: one that asks its fill leaves room for the others (B29)."""
    alpha.on("tools/call", asks({"k": ROOTS}))
    async with running({"alpha": alpha}, limits={limit: 1}, admin="127.0.0.1:0") as gateway:
        url = gateway.addresses.endpoints[0]
        async with (
            LegacyClient(url, capabilities=ABLE, token="ANN") as client,
            LegacyClient(url, capabilities=ABLE, token="ANN") as again,
            LegacyClient(url, capabilities=ABLE, token="BOB") as other,
            client.open("tools/call", DEPLOY) as first,
        ):
            put = await first.next()
            assert await gateway.counted("asked_calls") == 1
            _, status = await gateway.admin("/status.json")
            assert status["questions"] == {
                "parked": 0, "asked": 1, "most": 1000, "most_per_caller": 100, **_stated(limit)
            }  # fmt: skip
            assert f"`limits.{limit}`" in (await again.error("tools/call", DEPLOY))["message"]
            if limit == "questions":
                assert f"`limits.{limit}`" in (await other.error("tools/call", DEPLOY))["message"]
            else:
                async with other.open("tools/call", DEPLOY) as second:
                    assert (await second.next())["method"] == "roots/list"
            await client.respond(put["id"], ANN)
            assert echoed(await first.answer())["answers"] == {"k": ANN}
            async with again.open("tools/call", DEPLOY) as third:
                assert (await third.next())["method"] == "roots/list"
            assert await gateway.counted("sessions ") == 3


async def test_an_answer_may_come_after_the_connection_was_lost(alpha, gateway, url):
    """X-25: what was asked before can still be answered, and the call goes on."""
    alpha.on("tools/call", asks({"k": ROOTS}))
    async with LegacyClient(url, capabilities=ABLE) as client:
        async with client.open("tools/call", DEPLOY) as posted:
            put = await posted.next()
            posted.leave()
        await gateway.busy(0)
        assert await client.respond(put["id"], ANN) == 202
        await alpha.arrived("tools/call")
        await alpha.arrived("tools/call")


async def test_nobody_is_asked_who_has_left(alpha, gateway, url):
    """A question needs the stream of its call."""
    released = asyncio.Event()

    async def behave(exchange):
        await released.wait()
        await question({"k": ROOTS}, "s")(exchange)

    alpha.on("tools/call", behave)
    async with LegacyClient(url, capabilities=ABLE) as client:
        async with client.open("tools/call", DEPLOY) as posted:
            await alpha.arrived("tools/call")
            posted.leave()
        await gateway.busy(0)
        released.set()
        (session,) = gateway.runtime.sessions
        while session.busy:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.002)
        assert len(alpha.seen("tools/call")) == 1
