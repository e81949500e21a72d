"""Whose a task's id is, and how a listener is told of a task."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Config
from gateway.core.dialogue import Dialogue
from gateway.core.federation import Federation
from gateway.core.router import Namespace
from gateway.core.shapes import InvalidResult
from gateway.core.tasks import Held, Tasks
from gateway.protocol.call import Call, Notice, Partition, Principal, RequestMeta, UpstreamName
from gateway.protocol.jsonrpc import McpError, encode
from gateway.support.seal import Seal

GH, JIRA = UpstreamName("gh"), UpstreamName("jira")
ANN, BOB, NOBODY = (
    Principal(Partition("a" * 64), "Bearer a"),
    Principal(Partition("b" * 64), "Bearer b"),
    Principal(),
)
ASKED = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": {}}}


def tasks(*keys: str, upstreams: tuple[str, ...] = ("gh", "jira")) -> Tasks:
    """Return those of an endpoint; they know the task of any other with the same key."""
    config = Config.model_validate({"upstreams": {name: f"http://{name}.example" for name in upstreams}})
    federation, seal = Federation("/mcp", config), Seal(keys or ("k" * 32,))
    return Tasks(federation, Dialogue(federation, config, seal), seal, carried=True)


@given(original=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100))
def test_an_id_leads_back_to_the_task_for_its_caller_alone(original: str) -> None:
    """T-06, T-07."""
    held = Held(GH, original)
    for principal in (ANN, NOBODY):
        id = tasks().expose(held, principal)
        assert id.isascii()
        assert id.isprintable()
        assert tasks().find(id, principal) == held
        for other in {ANN, BOB, NOBODY} - {principal}:
            with pytest.raises(McpError) as caught:
                tasks().find(id, other)
            assert (caught.value.code, caught.value.data) == (-32602, None)


def test_an_id_says_nothing_and_no_two_are_alike() -> None:
    """T-06: it cannot be guessed from another."""
    ids = {tasks().expose(Held(GH, "task-1"), NOBODY) for _ in range(50)}
    assert len(ids) == 50
    assert not any("task-1" in id for id in ids)


@given(id=st.text(max_size=300))
def test_an_invented_id_leads_nowhere(id: str) -> None:
    """T-07: whatever it is, it is one defined refusal."""
    assert tasks().places([id], NOBODY) == {}
    with pytest.raises(McpError):
        tasks().find(id, NOBODY)


def test_a_token_for_something_else_is_no_id() -> None:
    """T-06: what is sealed for another purpose does not open here."""
    token = Seal(["k" * 32]).seal("cursor", b"\x92\xa2gh\xa1t", ttl=60)
    assert tasks().places([token], NOBODY) == {}


@pytest.mark.parametrize("original", ["", "t" * 2049, "ä" * 1025])
def test_an_id_has_to_fit_into_a_header(original: str) -> None:
    """T-06."""
    with pytest.raises(InvalidResult):
        tasks().expose(Held(GH, original), ANN)
    longest = tasks().expose(Held(GH, "t" * 2048), ANN)
    assert len(longest) < 3000


def test_of_many_ids_those_that_are_known_are_found() -> None:
    """L-23: in the client's own form; another caller's, invented ones and other upstreams' are not."""
    own = {tasks().expose(held, ANN): held for held in (Held(GH, "1"), Held(JIRA, "1"), Held(GH, "2"))}
    foreign = [tasks().expose(Held(GH, "3"), BOB), "invented", ""]
    assert tasks().places([*own, *foreign], ANN) == own
    fewer = tasks(upstreams=("gh",)).places([*own, *foreign], ANN)
    assert fewer == {id: held for id, held in own.items() if held.upstream == GH}
    assert tasks("newer-key-of-the-ring", "k" * 32).places(own, ANN) == own


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["content", "code", "message", "uri", "method", "params", "_meta", "x"]), inner
        )
    ),
    max_leaves=8,
)
MEMBERS = st.sampled_from(
    ["taskId", "status", "ttlMs", "inputRequests", "result", "error", "resultType", "_meta", "task", "x"]
)


@given(
    method=st.sampled_from(["tasks/get", "tasks/update", "tasks/cancel"]),
    said=st.dictionaries(MEMBERS, JSON),
)
def test_whatever_an_upstream_says_is_fit_for_the_client_or_refused(
    method: str, said: dict[str, Any]
) -> None:
    """K-04: one defined outcome for everything, and no upstream's own id in it."""
    call = Call(b"1", method, {"taskId": b'"mine"'}, RequestMeta("2026-07-28", b"{}"))
    namespace = Namespace(GH, "gh")
    try:
        dressed = tasks().report(
            call, Held(GH, "1"), encode(said), namespace=namespace, server_info=b'{"name":"we"}'
        )
    except InvalidResult:
        return
    sent = json.loads(b"".join(dressed.segments()))
    assert sent["resultType"] == "complete"
    if method != "tasks/get":
        assert sent.keys() == {"resultType", "_meta"}
    else:
        assert sent["taskId"] == "mine"
        assert sent.get("x") == said.get("x")


def tell(declared: Any = None, **members: Any) -> Any:
    """Return what a listener is told of a task of gh, known to it as `mine`."""
    params = {"taskId": "1", "status": "working", "ttlMs": 5, **members}
    notice = Notice("notifications/tasks", {key: encode(value) for key, value in params.items()})
    capabilities = encode(declared or {"elicitation": {}})
    told = tasks().tell(notice, "mine", Held(GH, "1"), capabilities, namespace=Namespace(GH, "gh"))
    if told is None:
        return None
    assert told.method == "notifications/tasks"
    return {key: json.loads(bytes(raw)) for key, raw in told.params.items()}


def test_a_listener_is_told_all_of_a_task_under_its_own_id() -> None:
    """L-23, T-13: rewritten as an answer to `tasks/get` is."""
    block = {"type": "resource_link", "uri": "a:1", "name": "a"}
    told = tell(status="completed", result={"content": [block]}, statusMessage=None, v={"n": None})
    assert told == {
        "taskId": "mine",
        "status": "completed",
        "ttlMs": 5,
        "result": {"content": [{**block, "uri": "gh+a:1"}]},
        "v": {"n": None},
    }
    asked = tell(status="input_required", inputRequests={"who": ASKED})
    assert asked["inputRequests"]["who"]["params"]["message"] == "[gh] Who?"
    failed = tell(status="failed", error={"code": -32002, "message": "gone", "data": {"uri": "a:1"}})
    assert failed["error"] == {"code": -32602, "message": "gone", "data": {"uri": "gh+a:1"}}
    assert tell(ttlMs=None)["ttlMs"] is None


@pytest.mark.parametrize(
    "odd",
    [
        {"taskId": "2"},
        {"taskId": 1},
        {"result": 7},
        {"error": {"code": "x"}},
        {"inputRequests": {"who": {"method": "ping"}}},
    ],
)
def test_what_makes_no_sense_is_not_told(odd: dict[str, Any]) -> None:
    """K-04: another task's above all."""
    assert tell(**odd) is None


def test_nobody_is_told_of_questions_he_cannot_answer() -> None:
    """M-05: there is no error to send instead; a poll says what is missing."""
    assert tell({"sampling": {}}, inputRequests={"who": ASKED}) is None
