"""Tasks: created by a call, found again by their creator on any replica, until their upstream ends them."""

import asyncio
import itertools

import pytest

from tests.support.running import Clock, running
from tests.support.scripted import (
    META,
    ScriptedUpstream,
    cut,
    error,
    event,
    hang,
    notification,
    progress,
    result,
    sse,
    status,
    token,
    tool,
)

ANN, BOB = "TOK-ann", "TOK-bob"
EXTENSION = "io.modelcontextprotocol/tasks"
TASKS = {"extensions": {EXTENSION: {}}}
ABLE = {**TASKS, "elicitation": {"form": {}}, "sampling": {}}
BUILD = {"name": "alpha__build", "arguments": {"n": 1.0}}
KEYS = {"keys": ["a-key-of-all-replicas"]}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
FORM = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": SCHEMA}}


def task(status="working", **members):
    """Return a task as an upstream writes it."""
    return {
        "taskId": "t-1",
        "status": status,
        "createdAt": "2026-11-30T10:00:00Z",
        "lastUpdatedAt": "2026-11-30T10:00:01Z",
        "ttlMs": 60_000,
        "pollIntervalMs": 500,
        **members,
    }


def promise(**members):
    """Answer with a new task."""
    return result({"resultType": "task", **task(**members)})


@pytest.fixture
async def alpha():
    async with ScriptedUpstream(
        tools=[tool("build"), tool("other")],
        prompts=[{"name": "p"}],
        resources=[{"uri": "a:1", "name": "one"}],
    ) as alpha:
        alpha.capabilities["extensions"] = {EXTENSION: {}}
        alpha.on("tools/call", promise())
        alpha.on("tasks/get", result(task()))
        alpha.on("tasks/update", result({}))
        alpha.on("tasks/cancel", result({}))
        yield alpha


async def create(gateway, *, who=ANN, capabilities=TASKS, **options):
    """Call the tool and return the id of the task it became."""
    called = await gateway.ask("tools/call", BUILD, token=who, capabilities=capabilities, **options)
    assert called.result["resultType"] == "task", called.message
    return called.result["taskId"]


async def about(gateway, id, method="tasks/get", *, who=ANN, capabilities=TASKS, **options):
    """Make a request about a task."""
    params = {"taskId": id, **({"inputResponses": {}} if method == "tasks/update" else {})}
    return await gateway.ask(method, params, token=who, capabilities=capabilities, **options)


async def test_a_call_becomes_a_task_that_is_polled_answered_and_cancelled(alpha):
    """T-02, T-04, T-09, U-03: every request goes to its upstream, under the upstream's own id."""
    answers = {"who": {"action": "accept", "content": {"n": 1.0}}}
    async with running({"alpha": alpha, "beta": alpha}) as gateway:
        called = await gateway.ask("tools/call", BUILD, token=ANN, capabilities=TASKS)
        made = called.result
        id = made.pop("taskId")
        assert made.pop("_meta")[f"{META}serverInfo"]["name"] == "mcp-gateway"
        assert made == {"resultType": "task", **{k: v for k, v in task().items() if k != "taskId"}}
        assert "t-1" not in id
        got = (await about(gateway, id)).result
        assert (got["resultType"], got["taskId"], got["status"]) == ("complete", id, "working")
        assert (got["ttlMs"], got["pollIntervalMs"]) == (60_000, 500)
        params = {"taskId": id, "inputResponses": answers}
        updated = await gateway.ask("tasks/update", params, token=ANN, capabilities=TASKS)
        cancelled = await about(gateway, id, "tasks/cancel")
        for acknowledged in (updated.result, cancelled.result):
            assert acknowledged.keys() == {"resultType", "_meta"}
            assert acknowledged["resultType"] == "complete"
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            (sent,) = alpha.seen(method)
            assert (sent.params["taskId"], sent.header("mcp-name")) == ("t-1", "t-1")
            assert sent.meta[f"{META}clientCapabilities"] == TASKS
        assert alpha.seen("tasks/update")[0].params["inputResponses"] == answers
        assert b'"n":1.0' in alpha.seen("tasks/update")[0].body.replace(b" ", b"")


async def test_the_extension_is_advertised_when_somebody_has_it(alpha):
    """T-01: with empty settings; and it is not there where the operator does not let it through (K-01)."""
    async with ScriptedUpstream(tools=[tool("a")]) as beta:
        async with running({"alpha": alpha, "beta": beta}) as gateway:
            offered = (await gateway.ask("server/discover")).result["capabilities"]["extensions"]
            assert offered == {EXTENSION: {}}
        async with running({"alpha": alpha}, extensions=[]) as gateway:
            offered = (await gateway.ask("server/discover", capabilities=TASKS)).result["capabilities"]
            assert "extensions" not in offered
            assert (await about(gateway, "x")).code == -32601
            called = await gateway.ask("tools/call", BUILD, capabilities=TASKS)
            assert alpha.seen("tools/call")[-1].meta[f"{META}clientCapabilities"] == {}
            assert called.code == -32603  # it was not asked for a task
        async with running({"beta": beta}) as gateway:
            assert "extensions" not in (await gateway.ask("server/discover")).result["capabilities"]
            refused = await about(gateway, "x")
            assert (refused.status, refused.code) == (404, -32601)


@pytest.mark.parametrize("declared", [{}, {"extensions": {}}, {"extensions": {EXTENSION: None}}])
async def test_a_client_that_does_not_know_tasks_is_never_given_one(alpha, declared):
    """T-01, T-02, T-16: undeclared upstream, too; a task all the same is that upstream's fault."""
    async with running({"alpha": alpha}) as gateway:
        called = await gateway.ask("tools/call", BUILD, token=ANN, capabilities=declared)
        assert (called.code, called.error["message"]) == (-32603, "upstream alpha: invalid response")
        assert EXTENSION not in str(alpha.seen("tools/call")[0].meta)
        alpha.on("tools/call", error(-32021, "needs tasks", {"requiredCapabilities": TASKS}, http=400))
        refused = await gateway.ask("tools/call", BUILD, token=ANN, capabilities=declared)
        assert (refused.status, refused.code) == (400, -32021)
        assert refused.error["data"] == {"requiredCapabilities": TASKS}


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_requests_about_tasks_need_the_extension(alpha, method):
    """T-04: -32021 before anything is said of the id, and no upstream is asked."""
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway)
        for known in (id, "nobody-knows-this"):
            refused = await about(gateway, known, method, capabilities={"elicitation": {}})
            assert (refused.status, refused.code) == (400, -32021)
            assert refused.error["data"] == {"requiredCapabilities": TASKS}
        assert not alpha.seen(method)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_nobody_else_can_use_an_id(alpha, method):
    """T-06, T-07: other callers, changed and invented ids get the one answer, and no upstream is asked."""
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway)
        changed = id[:-1] + ("A" if id[-1] != "A" else "B")
        tries = [
            (id, BOB),
            (id, None),
            (changed, ANN),
            ("t-1", ANN),
            ("", ANN),
            ("ä" * 99, ANN),
            (id + "=", ANN),
        ]
        refusals = [await about(gateway, known, method, who=who) for known, who in tries]
        assert {(r.status, r.code, r.error["message"]) for r in refusals} == {(400, -32602, "Unknown task")}
        assert not alpha.seen(method)


async def test_without_a_credential_the_id_is_the_key(alpha):
    """T-07: whoever has it; one that was given to a caller with a credential stays that caller's."""
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway, who=None)
        assert (await about(gateway, id, who=None)).result["taskId"] == id
        assert (await about(gateway, id, who=ANN)).code == -32602


async def test_every_replica_with_the_same_keys_knows_the_task(alpha):
    """T-06, T-08: nothing is kept, so it is found at once, and after a restart."""
    async with running({"alpha": alpha}, secrets=KEYS) as one, running({"alpha": alpha}, secrets=KEYS) as two:
        id = await create(one)
        assert (await about(two, id)).result["taskId"] == id
    async with running({"alpha": alpha}, secrets=KEYS) as again:
        assert (await about(again, id)).result["taskId"] == id
    async with running({"alpha": alpha}, secrets={"keys": ["a-newer-key-is-first", *KEYS["keys"]]}) as turned:
        assert (await about(turned, id)).result["taskId"] == id
    async with running({"alpha": alpha}, secrets={"keys": ["another-key-altogether"]}) as stranger:
        assert (await about(stranger, id)).code == -32602


async def test_keys_change_step_by_step_and_no_task_is_lost(alpha):
    """M-13, T-06: while replicas are at one step or the next, each opens what the other gave."""
    old, new = "the-old-key-of-all", "the-new-key-of-all"
    steps = [[old], [old, new, old], [new, old]]
    for before, after in itertools.pairwise(steps):
        async with (
            running({"alpha": alpha}, secrets={"keys": before}) as one,
            running({"alpha": alpha}, secrets={"keys": after}) as two,
        ):
            for giver, other in ((one, two), (two, one)):
                assert (await about(other, await create(giver))).result["taskId"]
    async with (
        running({"alpha": alpha}, secrets={"keys": [new, old]}) as before,
        running({"alpha": alpha}, secrets={"keys": [new]}) as last,
    ):
        assert (await about(last, id := await create(before))).result["taskId"] == id
        assert (await about(last, id, who=BOB)).code == -32602


async def test_a_task_lives_as_long_as_its_upstream_says(alpha):
    """T-06: `ttlMs: null` is without end, and nothing here ends it sooner; its end is the upstream's word."""
    clock = Clock()
    alpha.on("tools/call", promise(ttlMs=None))
    async with running({"alpha": alpha}, clock=clock) as gateway:
        called = await gateway.ask("tools/call", BUILD, token=ANN, capabilities=TASKS)
        assert called.result["ttlMs"] is None
        clock.advance(10 * 365 * 86_400)
        assert (await about(gateway, called.result["taskId"])).result["status"] == "working"
        alpha.on("tasks/get", error(-32602, "Unknown task t-1", http=400))
        assert (await about(gateway, called.result["taskId"])).code == -32602


async def test_an_id_of_an_upstream_that_is_not_served_here_is_unknown(alpha):
    """T-07: an endpoint reaches its own upstreams only."""
    async with ScriptedUpstream(tools=[tool("a")]) as beta:
        beta.capabilities["extensions"] = {EXTENSION: {}}
        endpoints = {"/mcp": {}, "/beta": {"upstreams": ["beta"]}}
        async with running({"alpha": alpha, "beta": beta}, endpoints=endpoints) as gateway:
            id = await create(gateway)
            assert (await about(gateway, id, path="/beta")).code == -32602


async def test_the_callers_own_credential_goes_with_every_request(alpha):
    """T-09: where the upstream authorizes callers itself."""
    async with running({"alpha": {"url": alpha.url, "auth": "forward"}}) as gateway:
        id = await create(gateway)
        await about(gateway, id)
        assert [seen.header("authorization") for seen in alpha.seen("tasks/get")] == [f"Bearer {ANN}"]


async def test_a_finished_task_brings_its_result_as_the_call_would_have(alpha):
    """T-03, F-12: URIs lead through the gateway, data stays, and no hop's `_meta` is left in it."""
    content = [{"type": "resource_link", "uri": "a:9", "name": "nine", "title": None}]
    meta = {
        f"{META}serverInfo": {"name": "x", "version": "1"},
        f"{META}related-task": {"taskId": "t-1"},
        "v/x": {"taskId": "t-1"},
    }
    done = {
        "content": content,
        "structuredContent": {"uri": "a:9", "n": None},
        "isError": True,
        "_meta": meta,
    }
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway)
        alpha.on("tasks/get", result(task("completed", result=done, statusMessage=None, error=None)))
        got = (await about(gateway, id)).result
        assert got["result"] == {
            "content": [{"type": "resource_link", "uri": "alpha+a:9", "name": "nine"}],
            "structuredContent": {"uri": "a:9", "n": None},
            "isError": True,
            "_meta": {"v/x": {"taskId": "t-1"}},
        }
        assert got["status"] == "completed"  # isError is no failure of the task (T-10)
        assert not {"statusMessage", "error"} & got.keys()
        alpha.on(
            "tasks/get",
            result(task("completed", result={"content": [], "_meta": {f"{META}related-task": {}}})),
        )
        assert (await about(gateway, id)).result["result"] == {"content": []}


@pytest.mark.parametrize(
    ("failed", "told"),
    [
        ({"code": -32603, "message": "it broke", "data": {"uri": "a:9", "n": None}, "x": 1},
         {"code": -32603, "message": "it broke", "data": {"uri": "alpha+a:9", "n": None}, "x": 1}),
        ({"code": 7, "message": "own"}, {"code": 7, "message": "own"}),
        ({"code": -32002, "message": "gone", "data": {"uri": "https://a/"}},
         {"code": -32602, "message": "gone", "data": {"uri": "https://a/"}}),
        ({"code": -32020, "message": "headers"},
         {"code": -32603, "message": "upstream alpha refused the gateway's request (-32020)"}),
    ],
)  # fmt: skip
async def test_a_failed_task_brings_the_error_as_it_would_have_been_told(alpha, failed, told):
    """T-04, F-31, E-11."""
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway)
        alpha.on("tasks/get", result(task("failed", error=failed)))
        assert (await about(gateway, id)).result["error"] == told


async def test_a_task_asks_as_a_call_would(alpha):
    """T-10, M-03, M-23, M-24: keys stay, the user sees who asks, other servers' context is not asked for."""
    sampling = {
        "method": "sampling/createMessage",
        "params": {"messages": [], "maxTokens": 5, "includeContext": "allServers"},
    }
    asked = {"who ": FORM, "model": sampling}
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway, capabilities=ABLE)
        alpha.on("tasks/get", result(task("input_required", inputRequests=asked)))
        got = (await about(gateway, id, capabilities=ABLE)).result
        assert got["inputRequests"]["who "]["params"]["message"] == "[alpha] Who?"
        assert got["inputRequests"]["model"]["params"]["includeContext"] == "none"
        assert list(got["inputRequests"]) == ["who ", "model"]
        assert "requestState" not in got


async def test_input_is_not_asked_of_a_client_that_cannot_give_it(alpha):
    """M-05: the capabilities are those of the poll (E-21)."""
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway, capabilities=ABLE)
        alpha.on("tasks/get", result(task("input_required", inputRequests={"who": FORM})))
        refused = await about(gateway, id)
        assert (refused.status, refused.code) == (400, -32021)
        assert refused.error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}
        assert (await about(gateway, id, capabilities=ABLE)).result["status"] == "input_required"


@pytest.mark.parametrize("responses", [None, [], "x", 7])
async def test_an_update_brings_an_object_of_answers(alpha, responses):
    """T-04, S-06 step 15."""
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway)
        params = {"taskId": id, "inputResponses": responses}
        refused = await gateway.ask("tasks/update", params, token=ANN, capabilities=TASKS)
        assert (refused.status, refused.code) == (400, -32602)
        assert not alpha.seen("tasks/update")


async def test_what_an_upstream_adds_to_an_acknowledgement_is_left_out(alpha):
    """T-04: nothing but `_meta` beside the resultType."""
    alpha.on(
        "tasks/cancel",
        result({**task("cancelled"), "ttlMs": 1, "_meta": {"v/x": 1, f"{META}serverInfo": {}}}),
    )
    async with running({"alpha": alpha}) as gateway:
        cancelled = (await about(gateway, await create(gateway), "tasks/cancel")).result
        assert cancelled.keys() == {"resultType", "_meta"}
        assert cancelled["_meta"]["v/x"] == 1


async def test_peers_that_call_every_answer_a_task_are_understood(alpha):
    """T-17, A-25: and the client is told what it has to be."""
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway)
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            alpha.on(method, result({"resultType": "task", **task()}))
            assert (await about(gateway, id, method)).result["resultType"] == "complete"


@pytest.mark.parametrize(
    "broken",
    [
        {"taskId": None},
        {"taskId": 7},
        {"taskId": ""},
        {"taskId": "t" * 2049},
        {"inputRequests": []},
    ],
)
async def test_a_task_nobody_could_find_again_is_the_upstreams_fault(alpha, broken):
    """T-02, K-04: -32603."""
    alpha.on("tools/call", promise(**broken))
    async with running({"alpha": alpha}) as gateway:
        called = await gateway.ask("tools/call", BUILD, capabilities=TASKS)
        assert (called.code, called.error["message"]) == (-32603, "upstream alpha: invalid response")
        assert await gateway.counted('dropped_total{upstream="alpha",what="response"}') == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"taskId": "t-2"},
        {"taskId": 7},
        {"result": []},
        {"result": {"content": {}}},
        {"result": {"resultType": "input_required", "requestState": "s"}},
        {"error": {"message": "no code"}},
        {"error": "x"},
        {"resultType": "input_required", "requestState": "s"},
        {"resultType": "strange"},
    ],
)
async def test_a_report_nobody_could_read_is_the_upstreams_fault(alpha, broken):
    """K-04, M-01: another task's above all."""
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway)
        alpha.on("tasks/get", result({**task(), **broken}))
        assert (await about(gateway, id)).code == -32603


async def test_what_older_tasks_had_is_left_out_and_what_is_due_is_there(alpha):
    """T-03: flat, with a ttlMs; members that nobody knows stay (K-02)."""
    old = {"ttl": 5, "pollInterval": 1, "requestState": "s", "task": {"taskId": "t-1"}, "v/x": 1.5}
    made = {key: value for key, value in task(**old).items() if key != "ttlMs"}
    alpha.on("tools/call", result({"resultType": "task", "cacheScope": "public", **made}))
    async with running({"alpha": alpha}) as gateway:
        called = (await gateway.ask("tools/call", BUILD, capabilities=TASKS)).result
        assert (called["ttlMs"], called["v/x"]) == (None, 1.5)
        assert not {"ttl", "pollInterval", "requestState", "task", "cacheScope"} & called.keys()


@pytest.mark.parametrize(
    ("method", "params"),
    [("prompts/get", {"name": "alpha__p"}), ("resources/read", {"uri": "alpha+a:1"})],
)
async def test_only_calls_become_tasks(alpha, method, params):
    """T-02."""
    alpha.on(method, promise())
    async with running({"alpha": alpha}) as gateway:
        assert (await gateway.ask(method, params, capabilities=TASKS)).code == -32603


async def test_nothing_of_a_task_is_cached(alpha):
    """T-12: neither the task of a tool whose results are kept, nor any poll."""
    kept = {"url": alpha.url, "cache": {"calls": {"build": {"ttl": 60, "scope": "public"}}}}
    async with running({"alpha": kept}) as gateway:
        ids = {await create(gateway) for _ in range(2)}
        assert (len(ids), len(alpha.seen("tools/call"))) == (2, 2)
        answers = [await about(gateway, ids.copy().pop()) for _ in range(2)]
        assert len(alpha.seen("tasks/get")) == 2
        assert {answer.header("cache-control") for answer in answers} == {"no-store"}


async def test_callers_at_the_same_time_get_tasks_of_their_own(alpha):
    """T-07: two equal calls are two calls."""
    kept = {"url": alpha.url, "cache": {"calls": {"build": {"ttl": 60, "scope": "public"}}}}
    answered = asyncio.Event()
    alpha.on("tools/call", hang(answered, promise()))
    async with running({"alpha": kept}) as gateway:
        asked = [asyncio.create_task(create(gateway, who=who)) for who in (ANN, BOB, None, None)]
        await alpha.arrived("tools/call")
        answered.set()
        assert len(set(await asyncio.gather(*asked))) == 4
        assert len(alpha.seen("tools/call")) == 4


async def test_a_poll_that_got_lost_is_made_again_and_an_update_is_not(alpha):
    """T-12, U-27: nobody knows whether what was lost had been done."""
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway)
        alpha.once("tasks/get", status(503), cut())
        assert (await about(gateway, id)).result["status"] == "working"
        assert len(alpha.seen("tasks/get")) == 3
        for method in ("tasks/update", "tasks/cancel"):
            alpha.once(method, cut())
            assert (await about(gateway, id, method)).code == -32603
            assert len(alpha.seen(method)) == 1


async def test_no_progress_and_no_log_messages_are_told_of_tasks(alpha):
    """T-13: nor asked for."""
    alpha.on(
        "tasks/get",
        sse(
            lambda exchange: event(progress(token(exchange) or exchange.id, 1)),
            event(notification("notifications/message", level="error", data="x")),
            lambda exchange: event(
                {"jsonrpc": "2.0", "id": exchange.id, "result": {"resultType": "complete", **task()}}
            ),
        ),
    )
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway)
        meta = {"progressToken": "p", f"{META}logLevel": "debug"}
        answer = await about(gateway, id, meta=meta)
        assert answer.result["taskId"] == id
        assert not answer.notices
        assert not {"progressToken", f"{META}logLevel"} & alpha.seen("tasks/get")[0].meta.keys()


async def test_leaving_a_poll_or_a_created_task_cancels_no_task(alpha):
    """T-11: the poll's own stream is closed, nothing else is said."""
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway)
        alpha.once("tasks/get", hang())
        async with gateway.open("tasks/get", {"taskId": id}, token=ANN, capabilities=TASKS) as exchange:
            polled = await alpha.arrived("tasks/get")
            exchange.leave()
            await polled.closed.wait()
        assert (await about(gateway, id)).result["status"] == "working"
        assert not alpha.seen("tasks/cancel")
        assert not alpha.seen("notifications/cancelled")


async def test_a_hint_of_the_older_revision_makes_no_task(alpha):
    """T-14: whether there is one the upstream alone decides, and it never sees the hint."""
    async with running({"alpha": alpha}) as gateway:
        params = {**BUILD, "task": {"ttl": 5}}
        called = await gateway.ask("tools/call", params, token=ANN, capabilities=TASKS)
        assert called.result["resultType"] == "task"
        assert "task" not in alpha.seen("tools/call")[0].params


async def test_a_call_asks_first_and_becomes_a_task_then(alpha):
    """T-15: two dialogues with keys and states of their own."""
    ask = {"resultType": "input_required", "inputRequests": {"who": FORM}, "requestState": "s"}
    async with running({"alpha": alpha}) as gateway:
        alpha.once("tools/call", result(ask))
        asked = (await gateway.ask("tools/call", BUILD, token=ANN, capabilities=ABLE)).result
        answers = {"who": {"action": "accept", "content": {}}}
        retry = {**BUILD, "inputResponses": answers, "requestState": asked["requestState"]}
        called = (await gateway.ask("tools/call", retry, token=ANN, capabilities=ABLE)).result
        assert called["resultType"] == "task"
        alpha.on("tasks/get", result(task("input_required", inputRequests={"who": FORM})))
        got = (await about(gateway, called["taskId"], capabilities=ABLE)).result
        assert list(got["inputRequests"]) == ["who"]


async def test_the_name_header_of_a_task(alpha):
    """T-05, A-10: another id in it is refused, none at all is tolerated unless the operator is strict."""
    async with running({"alpha": alpha}, secrets=KEYS) as gateway:
        id = await create(gateway)
        differs = await about(gateway, id, headers={"mcp-name": "other"})
        assert (differs.status, differs.code) == (400, -32020)
        assert (await about(gateway, id, headers={"mcp-name": None})).result["taskId"] == id
    async with running({"alpha": alpha}, secrets=KEYS, strict_task_headers=True) as gateway:
        assert (await about(gateway, id, headers={"mcp-name": None})).code == -32020
        assert (await about(gateway, id)).result["taskId"] == id


async def test_methods_that_tasks_no_longer_have_are_not_found(alpha):
    """S-03, K-08: not even passed on where there is one upstream only."""
    async with running({"alpha": alpha}) as gateway:
        for method in ("tasks/list", "tasks/result", "tasks/anything"):
            refused = await gateway.ask(method, {"taskId": "t"}, capabilities=TASKS)
            assert (refused.status, refused.code) == (404, -32601)
            assert not alpha.seen(method)


async def test_an_id_from_other_alphabets_goes_up_as_it_was(alpha):
    """T-06, U-05: clients get printable ASCII, the upstream its own spelling."""
    alpha.on("tools/call", promise(taskId=" tâche №1 "))
    alpha.on("tasks/get", result(task(taskId=" tâche №1 ")))
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway)
        assert id.isascii()
        assert (await about(gateway, id)).result["taskId"] == id
        (sent,) = alpha.seen("tasks/get")
        assert sent.params["taskId"] == " tâche №1 "
        assert sent.header("mcp-name").startswith("=?base64?")


async def test_a_task_of_an_upstream_that_is_down_says_so(alpha):
    """E-14: the id is good, its upstream is not there."""
    async with running({"alpha": alpha}) as gateway:
        id = await create(gateway)
        await alpha.stop()
        failed = await about(gateway, id)
        assert failed.code == -32603
        assert failed.error["message"].startswith("upstream alpha: ")
