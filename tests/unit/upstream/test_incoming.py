"""What a message that comes back means to its request."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.call import Notice, Reply
from gateway.protocol.jsonrpc import Malformed, McpError, encode, read_incoming
from gateway.protocol.subscriptions import Wanted
from gateway.upstream.incoming import Acknowledged, Conversation, Dropped, Ended, Stale, Subscription


def message(**members):
    return read_incoming(encode({"jsonrpc": "2.0", **members}))


def notification(method, **params):
    return message(method=f"notifications/{method}", params=params)


def plain(meaning):
    """Return a notice's method and its params as bytes: a Raw equals nothing."""
    return meaning.method, {key: bytes(raw) for key, raw in meaning.params.items()}


@pytest.mark.parametrize("id", [7, "7"])
def test_an_answer_is_ours_by_number_or_by_its_string(id):
    """A stringified id is still matched (B22)."""
    reply = Conversation(7).meaning(message(id=id, result={"a": 1}))
    assert isinstance(reply, Reply)
    assert bytes(reply.result) == b'{"a":1}'


@pytest.mark.parametrize("id", [8, "8", "07", 7.5, True, [7], None])
def test_a_result_for_another_id_is_refused(id):
    """A mismatching id is a failed request (U-25)."""
    with pytest.raises(Malformed):
        Conversation(7).meaning(message(id=id, result={}))


def test_true_is_not_one():
    """Python's True equals 1, JSON's does not."""
    with pytest.raises(Malformed):
        Conversation(1).meaning(message(id=True, result={}))


def test_an_error_without_id_belongs_to_the_one_request():
    """Servers answer with id null when they could not read it (U-25)."""
    error = {"code": -32600, "message": "x", "data": None}
    for members in ({"error": error}, {"id": None, "error": error}):
        meaning = Conversation(7).meaning(message(**members))
        assert isinstance(meaning, McpError)
        assert (meaning.code, bytes(meaning.data)) == (-32600, b"null")
    with pytest.raises(Malformed):
        Conversation(7).meaning(message(id=6, error=error))


@pytest.mark.parametrize("result", [[], "x", 1, None, True])
def test_a_result_is_an_object(result):
    """Anything else is no result of this protocol."""
    with pytest.raises(Malformed):
        Conversation(7).meaning(message(id=7, result=result))


def test_progress_is_ours_and_increases():
    """Unknown tokens and values that stand still are dropped (E-34, B23)."""
    talk = Conversation(7, progress=True)
    seen = [
        talk.meaning(notification("progress", progressToken=token, progress=value))
        for token, value in [(7, 1), (8, 2), ("7", 1), (7, 0.5), ("7", 1.5), (None, 9), (7, "9"), (7, True)]
    ]
    assert [type(meaning) for meaning in seen] == [
        Notice,
        Dropped,
        Dropped,
        Dropped,
        Notice,
        Dropped,
        Dropped,
        Dropped,
    ]
    assert plain(seen[0]) == ("notifications/progress", {"progress": b"1"})


def test_progress_nobody_asked_for_is_dropped():
    """Without a token there is no progress, whatever the upstream invents."""
    meaning = Conversation(7).meaning(notification("progress", progressToken=7, progress=1))
    assert meaning == Dropped("progress", "its token is not this request's")


def test_a_number_too_large_for_python_is_dropped_progress():
    """A hostile number costs the notification, not the call."""
    raw = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1e999}}'
    assert isinstance(Conversation(7, progress=True).meaning(read_incoming(raw)), Dropped)


@pytest.mark.parametrize(
    ("asked", "level", "kept"),
    [
        ("warning", "info", False),
        ("warning", "warning", True),
        ("warning", "emergency", True),
        (None, "emergency", False),
        ("debug", "loud", False),
    ],
)
def test_log_messages_start_at_the_level_asked_for(asked, level, kept):
    """No level, no messages (S-24)."""
    meaning = Conversation(7, log_level=asked).meaning(notification("message", level=level, data=1))
    assert isinstance(meaning, Notice) is kept


def test_changes_are_for_the_cache():
    """Notifications of a listen stream that come here are consumed, not forwarded (U-22)."""
    talk = Conversation(7)
    assert talk.meaning(notification("tools/list_changed")) == Stale(("tools/list",))
    both = Stale(("resources/list", "resources/templates/list"))
    assert talk.meaning(notification("resources/list_changed")) == both
    assert talk.meaning(notification("resources/updated", uri="a:b")) == Stale(("resources/read",), "a:b")
    assert isinstance(talk.meaning(notification("resources/updated")), Dropped)


def test_requests_and_foreign_core_notifications_are_dropped():
    """A modern server asks nothing; core notifications have their own places (U-22)."""
    talk = Conversation(7)
    assert talk.meaning(message(id=1, method="elicitation/create", params={})).what == "request"
    assert talk.meaning(notification("cancelled", requestId=7)).what == "notification"
    assert talk.meaning(notification("tasks/status")).what == "notification"


def test_unknown_notifications_pass():
    """An extension's own notification on a request's stream is relayed (K-07)."""
    notice = Conversation(7).meaning(message(method="com.example/x", params={"a": 1.0}))
    assert plain(notice) == ("com.example/x", {"a": b"1.0"})


@given(st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_relayed_progress_strictly_increases(values):
    """Whatever the upstream sends, the caller sees a rising sequence (E-33)."""
    talk = Conversation(7, progress=True)
    meanings = [talk.meaning(notification("progress", progressToken=7, progress=value)) for value in values]
    kept = [value for value, meaning in zip(values, meanings, strict=True) if isinstance(meaning, Notice)]
    assert all(a < b for a, b in pairwise(kept))
    assert bool(kept) is bool(values)


# Of a subscription

ID = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "subscriptions/acknowledged"


def opened(id=7, wanted=Wanted(tools=True)):  # noqa: B008 - it is frozen
    subscription = Subscription(id, wanted)
    first = subscription.meaning(notification(ACKNOWLEDGED, notifications={"toolsListChanged": True}))
    assert first == Acknowledged(Wanted(tools=True) & wanted)
    return subscription


def test_a_subscription_begins_with_its_first_acknowledgement():
    """A foreign one opens nothing, a second one changes nothing (L-16)."""
    subscription = Subscription(7, Wanted(tools=True, prompts=True))
    grants = {"toolsListChanged": True, "resourcesListChanged": True}
    foreign = notification(ACKNOWLEDGED, _meta={ID: 8}, notifications={"promptsListChanged": True})
    ours = notification(ACKNOWLEDGED, _meta={ID: "7"}, notifications=grants)
    assert isinstance(subscription.meaning(notification("tools/list_changed")), Dropped)
    assert isinstance(subscription.meaning(foreign), Dropped)
    assert isinstance(subscription.meaning(notification("tools/list_changed")), Dropped)
    assert subscription.meaning(ours) == Acknowledged(Wanted(tools=True))
    assert isinstance(subscription.meaning(ours), Dropped)
    assert plain(subscription.meaning(notification("tools/list_changed")))[0].endswith("tools/list_changed")


def test_a_change_keeps_everything_but_what_is_this_hops():
    """Ids of subscriptions and tokens stay here; vendors' words and odd numbers pass (L-05, E-24)."""
    meta = {ID: 7, "progressToken": 1, "io.modelcontextprotocol/serverInfo": {}, "com.example/a": 1.0}
    told = opened().meaning(notification("resources/updated", _meta=meta, uri="a:b", size=2**64))
    assert plain(told) == (
        "notifications/resources/updated",
        {"uri": b'"a:b"', "size": b"18446744073709551616", "_meta": b'{"com.example/a":1.0}'},
    )


@pytest.mark.parametrize("meta", [None, [], "x", {}, {ID: None}, {ID: 7.0}, {"progressToken": 7}])
def test_meta_that_says_nothing_costs_no_change(meta):
    """Whatever is there instead, the stream says whose it is."""
    told = opened().meaning(notification("tools/list_changed", _meta=meta))
    assert plain(told) == ("notifications/tools/list_changed", {})


@given(
    st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.lists(st.integers())
)
def test_no_other_id_is_taken_for_ours(given):
    """Numbers, their strings, and nothing else (B22)."""
    ours = not isinstance(given, bool) and given in (7, "7")
    told = opened().meaning(message(method="notifications/tools/list_changed", params={"_meta": {ID: given}}))
    assert isinstance(told, Notice if ours else Dropped)
    cancelled = opened().meaning(notification("cancelled", requestId=given))
    assert isinstance(cancelled, Ended if ours else Dropped)


def test_a_subscription_ends_by_result_error_or_cancellation():
    """Each is told apart, before and after the acknowledgement (L-10, L-27)."""
    for subscription in (Subscription(7, Wanted()), opened()):
        assert subscription.meaning(message(id="7", result={})) == Ended("result")
        assert subscription.meaning(notification("cancelled", requestId=7)) == Ended("cancelled")
        refused = subscription.meaning(message(error={"code": -32601, "message": "x"}))
        assert isinstance(refused, McpError)
        assert refused.code == -32601
        for foreign in (message(id=8, result={}), message(result={}), message(id=7, result=[])):
            with pytest.raises(Malformed):
                subscription.meaning(foreign)


METHODS = st.sampled_from(
    [
        "tools/list_changed",
        "resources/updated",
        "tasks",
        "progress",
        "message",
        "cancelled",
        ACKNOWLEDGED,
        "x/y",
    ]
)
PARAMS = st.dictionaries(
    st.sampled_from(["uri", "taskId", "requestId", "_meta", "notifications", "progressToken"]),
    st.none()
    | st.integers(6, 8)
    | st.sampled_from(["7", "a:b"])
    | st.dictionaries(st.just(ID), st.integers(6, 8)),
)


@given(st.lists(st.tuples(METHODS, PARAMS), max_size=8))
def test_nothing_but_changes_is_ever_handed_on(messages):
    """In whatever order they come; and never with a subscription's id (L-05, L-16, L-22)."""
    subscription, acknowledged = Subscription(7, Wanted(tools=True)), False
    for method, params in messages:
        meaning = subscription.meaning(notification(method, **params))
        if isinstance(meaning, Acknowledged):
            assert not acknowledged
            acknowledged = True
        if isinstance(meaning, Notice):
            assert acknowledged
            assert method not in ("progress", "message", "cancelled", ACKNOWLEDGED)
            assert "_meta" not in meaning.params
            assert method != "resources/updated" or isinstance(params["uri"], str)
            assert method != "tasks" or isinstance(params["taskId"], str)
