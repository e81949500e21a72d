"""Filters of subscriptions are read strictly from clients, tolerantly from servers, and spelt sparsely."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.jsonrpc import INVALID_PARAMS, McpError
from gateway.protocol.subscriptions import Wanted, circular, read_acknowledged, read_wanted, spell

NAMES = st.frozensets(st.text(st.characters(exclude_categories=["Cs"])), max_size=4)
WANTED = st.builds(Wanted, st.booleans(), st.booleans(), st.booleans(), NAMES, NAMES)
KEYS = st.sampled_from(
    [
        "toolsListChanged",
        "promptsListChanged",
        "resourcesListChanged",
        "resourceSubscriptions",
        "taskIds",
        "x",
    ]
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(), inner, max_size=3)
)


def params(filter: Any) -> dict[str, bytes]:
    return {"notifications": filter if isinstance(filter, bytes) else json.dumps(filter).encode()}


def members(wanted: Wanted) -> set[object]:
    """Return a filter as one plain set, by whose algebra ours is measured."""
    flags = {key for key in ("tools", "prompts", "resources") if getattr(wanted, key)}
    return flags | {("uri", uri) for uri in wanted.uris} | {("task", task) for task in wanted.tasks}


def test_every_kind_of_wish_is_read() -> None:
    """Flags count when true; repeated names are one (L-01)."""
    wanted = read_wanted(
        params(
            {
                "toolsListChanged": True,
                "promptsListChanged": False,
                "resourcesListChanged": None,
                "resourceSubscriptions": ["file:///a", "b:c", "b:c"],
                "taskIds": ["t"],
                "io.example/more": {"x": 1},
            }
        )
    )
    assert wanted == Wanted(tools=True, uris=frozenset({"file:///a", "b:c"}), tasks=frozenset({"t"}))


def test_an_empty_wish_is_legal() -> None:
    """It asks for nothing, which is not the same as not asking (L-08)."""
    assert read_wanted(params({})) == Wanted()
    assert read_wanted(params({"resourceSubscriptions": None, "taskIds": []})) == Wanted()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "notifications must"),
        (params(None), "notifications must"),
        (params([]), "notifications must"),
        (params("x"), "notifications must"),
        (params({"toolsListChanged": "true"}), "toolsListChanged"),
        (params({"promptsListChanged": 1}), "promptsListChanged"),
        (params({"resourcesListChanged": []}), "resourcesListChanged"),
        (params({"resourceSubscriptions": "a:b"}), "resourceSubscriptions"),
        (params({"resourceSubscriptions": ["a:b", 1]}), "resourceSubscriptions"),
        (params({"resourceSubscriptions": {}}), "resourceSubscriptions"),
        (params(b'{"resourceSubscriptions":[1e999]}'), "resourceSubscriptions"),
        (params({"taskIds": [None]}), "taskIds"),
        (params({"taskIds": False}), "taskIds"),
    ],
)
def test_a_malformed_wish_names_what_is_wrong(given: dict[str, bytes], named: str) -> None:
    """-32602 with the member's name in it (L-01)."""
    with pytest.raises(McpError, match=named) as refused:
        read_wanted(given)
    assert refused.value.code == INVALID_PARAMS


@pytest.mark.parametrize(
    ("filter", "granted"),
    [
        ({"toolsListChanged": True, "promptsListChanged": None}, Wanted(tools=True)),
        ({"toolsListChanged": "true", "promptsListChanged": 1, "resourcesListChanged": False}, Wanted()),
        ({"resourceSubscriptions": ["a:b", None, 3], "taskIds": "t"}, Wanted(uris=frozenset({"a:b"}))),
        ({"resourceSubscriptions": None, "taskIds": [], "x": {}}, Wanted()),
        ([], Wanted()),
        (None, Wanted()),
        (b"", Wanted()),
    ],
)
def test_an_acknowledgement_grants_what_it_clearly_grants(filter: Any, granted: Wanted) -> None:
    """Anything else a server writes there is no grant, and no error either (L-16)."""
    assert read_acknowledged(params(filter)) == granted


def test_an_acknowledgement_may_name_nothing() -> None:
    """Then it grants nothing."""
    assert read_acknowledged({}) == Wanted()


def test_a_filter_is_spelt_without_what_it_does_not_want() -> None:
    """False flags and empty arrays end some clients (L-04)."""
    assert spell(Wanted()) == b"{}"
    assert spell(Wanted(prompts=True)) == b'{"promptsListChanged":true}'
    assert spell(Wanted(resources=True, uris=frozenset("ba"), tasks=frozenset({"é"}))) == (
        '{"resourcesListChanged":true,"resourceSubscriptions":["a","b"],"taskIds":["é"]}'.encode()
    )


@given(WANTED)
def test_a_spelt_filter_reads_as_itself(wanted: Wanted) -> None:
    """From a client and from a server alike."""
    assert read_wanted(params(spell(wanted))) == read_acknowledged(params(spell(wanted))) == wanted


@given(WANTED, WANTED)
def test_filters_are_sets_of_wishes(one: Wanted, other: Wanted) -> None:
    """Union, intersection, difference and emptiness are those of sets."""
    assert members(one | other) == members(one) | members(other)
    assert members(one & other) == members(one) & members(other)
    assert members(one - other) == members(one) - members(other)
    assert bool(one) == bool(members(one))
    assert (one == other) == (members(one) == members(other))


@given(ANYTHING)
def test_whatever_a_server_acknowledges_is_read(filter: Any) -> None:
    """And where a client may write it too, both readings agree."""
    granted = read_acknowledged(params(filter))
    with suppress(McpError):
        assert read_wanted(params(filter)) == granted


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({}, b""),
        ({"uri": b'"a:1"'}, b',"uri":"a:1"'),
        ({"a": b"[1,\r\n2]", "b": b"{\n}"}, b',"a":[1,  2],"b":{ }'),
    ],
)
def test_a_circular_is_one_line_with_room_for_an_id(params: dict[str, bytes], text: bytes) -> None:
    """Whatever whitespace a server put between the tokens, so that it is one event for each (L-05)."""
    before, behind = circular("notifications/x", params)
    start = b'{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":'
    meta = b'{"io.modelcontextprotocol/subscriptionId":"me"}'
    assert before + b'"me"' + behind == start + meta + text + b"}}"
    json.loads(before + b'"me"' + behind)
