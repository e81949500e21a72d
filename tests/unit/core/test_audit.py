"""What two callers are given, compared: a leak, a refusal, or only time."""

import json
from typing import Any

import pytest

from gateway.core.audit import Difference, Given, Outcome, Refused, Silent, difference, instability, shown_uri

READ, TOOLS = "resources/read", "tools/list"


def given(*pages: Any) -> Given:
    return Given(tuple(json.dumps(page).encode() for page in pages))


def text(words: str, **members: Any) -> Given:
    return given({"contents": [{"uri": "a:1", "text": words}], "ttlMs": 5, "cacheScope": "public", **members})


def tools(*names: str, **members: Any) -> Given:
    return given({"tools": [{"name": name, "inputSchema": {}} for name in names], **members})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (text("x"), text("x", ttlMs=4)),
        (text("x"), text("x", _meta={"progressToken": 7, "io.modelcontextprotocol/serverInfo": {}})),
        (Given((b'{"a":1,"b":"\\u0041"}',)), Given((b'{ "b": "A", "a": 1 }',))),
        (Refused("HTTP 403"), Refused("HTTP 401")),
    ],
)
def test_what_reads_alike_is_the_same(first: Outcome, second: Outcome) -> None:
    """Hints, `_meta` of one hop and spelling are no payload; what nobody is given leaks to nobody."""
    assert difference(READ, [first], [second]) is None


def test_the_order_and_the_pages_of_a_list_are_no_difference() -> None:
    """Only what is in it."""
    one = given({"tools": [{"name": "a"}, {"name": "b"}]})
    assert difference(TOOLS, [one], [given({"tools": [{"name": "b"}, {"name": "a"}]})]) is None
    assert difference(TOOLS, [one], [given({"tools": [{"name": "a"}]}, {"tools": [{"name": "b"}]})]) is None


@pytest.mark.parametrize(
    ("method", "ours", "theirs", "where"),
    [
        (READ, [text("ann's")] * 2, [text("bob's")] * 2, "contents/0/text"),
        (TOOLS, [tools("a", "admin")] * 2, [tools("a")] * 2, "tools/admin/inputSchema, tools/admin/name"),
        (TOOLS, [tools()] * 2, [tools("a")] * 2, "tools/a/inputSchema"),
        (READ, [text("x", _meta={"user": "ann"})] * 2, [text("x", _meta={"user": "bob"})] * 2, "_meta/user"),
        # One part moves with time; another is each caller's own all the time.
        (READ, [text("1", who="a"), text("2", who="a")], [text("3", who="b"), text("4", who="b")], "who"),
        (READ, [text("1", own=1), text("2", own=1)], [text("3"), text("4")], "own"),
    ],
)
def test_what_each_is_always_given_differs_between_callers(
    method: str, ours: list[Outcome], theirs: list[Outcome], where: str
) -> None:
    """It names where, and no value."""
    found = difference(method, ours, theirs)
    assert found is not None
    assert found.kind == "differs"
    assert where in found.words
    assert "ann" not in found.words


def test_what_only_moves_with_time_is_unstable() -> None:
    """No leak by itself; what moves in `_meta` alone, such as a request's id, is not even that."""
    found = difference(READ, [text("1"), text("2")], [text("3"), text("4")])
    assert found == Difference("unstable", "it differs from fetch to fetch at contents/0/text")
    moving = [text("x", _meta={"trace": number}) for number in range(4)]
    assert difference(READ, moving[:2], moving[2:]) is None


def test_a_refusal_counts_when_it_lasts() -> None:
    """Which caller, with what; one that comes and goes is unstable."""
    yes, no = text("x"), Refused("error -32602")
    assert difference(READ, [yes, yes], [no, no]) == Difference(
        "refused", "the second caller is refused it (error -32602)"
    )
    assert difference(READ, [no], [yes]) == Difference(
        "refused", "the first caller is refused it (error -32602)"
    )
    assert difference(READ, [yes, yes], [no, yes]).kind == "unstable"  # type: ignore[union-attr]


def test_of_silence_nothing_is_known() -> None:
    """Neither same nor different."""
    assert difference(READ, [text("x")], [Silent("no answer")]) == Difference("unknown", "no answer")


def test_of_one_caller_only_instability_is_known() -> None:
    """Whatever differs."""
    assert instability(READ, [text("x"), text("x")]) is None
    for other in (text("y"), Refused("HTTP 500")):
        found = instability(READ, [text("x"), other])
        assert found is not None
        assert found.kind == "unstable"
        assert "caller" not in found.words
    assert instability(READ, [text("x"), Silent("-")]) == Difference("unknown", "-")


def test_odd_results_are_compared_as_they_are() -> None:
    """Nothing that an upstream sends ends the audit."""
    odd = [b"[]", b"{", b'{"tools":7}', b'{"tools":[7,{}]}', b'{"x":1e999}', b'{"x":' + b"[" * 3000]
    for one in odd:
        assert difference(TOOLS, [Given((one,))], [Given((one,))]) is None
        for other in odd:
            if other != one:
                assert difference(TOOLS, [Given((one,))] * 2, [Given((other,))] * 2) is not None


def test_a_query_is_not_shown() -> None:
    """It may hold a secret."""
    assert shown_uri("a:1?key=SECRET") == "a:1?…"
    assert shown_uri("a:1") == "a:1"
