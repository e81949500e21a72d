"""An upstream is told what one client declared and the gateway carries, and not one thing more."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.capabilities import (
    RELAYED,
    TASKS,
    UI,
    asked_of,
    is_well_formed,
    list_profile,
    relayable,
    undeclared,
)
from gateway.protocol.jsonrpc import encode

EVERYTHING = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {"listChanged": True},
    "extensions": {UI: {"mimeTypes": ["text/html;profile=mcp-app"]}, TASKS: {}, "com.example/x": {}},
    "experimental": {"e": {}},
}


def told(declared: Any, **more: Any) -> Any:
    """Return what an upstream is told for a client that declared this."""
    return json.loads(relayable(encode(declared), **more))


class TestAddressedCalls:
    def test_nothing_can_be_asked_back_that_is_not_relayed(self) -> None:
        """U-13: a client that could answer is no use when the question cannot reach it."""
        assert told(EVERYTHING, relay=frozenset()) == {
            "extensions": {UI: EVERYTHING["extensions"][UI], TASKS: {}},
            "experimental": {"e": {}},
        }

    def test_every_way_to_ask_back_is_told_but_for_other_servers_context(self) -> None:
        """U-13, U-14: `sampling.context` stays out, roots are bare."""
        assert told(EVERYTHING) == {
            "elicitation": {"form": {}, "url": {}},
            "sampling": {"tools": {}},
            "roots": {},
            "extensions": {UI: EVERYTHING["extensions"][UI], TASKS: {}},
            "experimental": {"e": {}},
        }

    @pytest.mark.parametrize(
        ("declared", "relay", "left"),
        [
            ({}, {"elicitation.form"}, {}),
            ({}, {"elicitation.url"}, None),
            ({"form": {}}, {"elicitation.form", "elicitation.url"}, {"form": {}}),
            ({"form": {}, "url": {}}, {"elicitation.form"}, {"form": {}}),
            ({"form": {}, "url": {}}, {"elicitation.url"}, {"url": {}}),
            ({"url": {}}, {"elicitation.form"}, None),
            ({"form": None, "url": {}}, {"elicitation.form"}, None),
            ({"form": None}, {"elicitation.form"}, {}),
            ({"form": {"x": 1}, "future": {}}, {"elicitation.form"}, {"form": {"x": 1}, "future": {}}),
            (None, {"elicitation.form"}, None),
            (True, {"elicitation.form"}, None),
            ([], {"elicitation.form"}, None),
        ],
    )
    def test_elicitation_modes_are_the_clients_and_ours(
        self, declared: Any, relay: set[str], left: Any
    ) -> None:
        """S-30: an empty elicitation means form."""
        wanted = {} if left is None else {"elicitation": left}
        assert told({"elicitation": declared}, relay=frozenset(relay)) == wanted

    @pytest.mark.parametrize("odd", [None, True, [], "x", 7])
    def test_what_is_no_object_is_not_declared(self, odd: Any) -> None:
        """A malformed capability would make the upstream refuse the whole request."""
        declared = {"sampling": odd, "roots": odd, "extensions": odd}
        assert told(declared, relay=RELAYED) == {}
        assert told({"extensions": {UI: odd}}) == {}

    def test_extensions_pass_by_allow_list_with_their_settings_as_they_are(self) -> None:
        """K-01, K-09: spelling included."""
        declared = b'{"extensions":{"com.example/x":{},"io.modelcontextprotocol/ui":{ "n":1.0, "x":null}}}'
        assert relayable(declared) == b'{"extensions":{"io.modelcontextprotocol/ui":{ "n":1.0, "x":null}}}'
        assert relayable(b'{"extensions":{"com.example/x":{}}}') == b"{}"
        assert told(EVERYTHING, extensions=frozenset({TASKS}))["extensions"] == {TASKS: {}}

    def test_unknown_capabilities_pass(self) -> None:
        """K-02, S-30: they are between the two ends."""
        assert relayable(b'{"future":{"a":1.0},"gone":null}') == b'{"future":{"a":1.0}}'

    @given(
        st.dictionaries(
            st.sampled_from([*EVERYTHING, "future"]),
            st.none() | st.booleans() | st.dictionaries(
                st.sampled_from(["form", "url", "tools", "context", UI, TASKS, "x"]),
                st.none() | st.just({}) | st.booleans(),
            ),
        ),
        st.frozensets(st.sampled_from(sorted(RELAYED))),
    )  # fmt: skip
    def test_nothing_is_told_that_the_client_did_not_declare(
        self, declared: Any, relay: frozenset[str]
    ) -> None:
        """U-13: never more, and telling it again changes nothing."""
        declared = {key: value for key, value in declared.items() if key != "future" or value == {}}
        once = relayable(encode(declared), relay=relay)
        assert undeclared(once, encode(declared)) is None
        assert relayable(once, relay=relay) == once


class TestListProfile:
    def test_it_is_one_spelling_of_little(self) -> None:
        """C-06: order, nulls, settings of the asking back and experimental things make no new cache entry."""
        one = list_profile(
            b'{"experimental":{"e":{}},"sampling":{"x":1,"tools":{"y":1},"context":{}},'
            b'"roots":{"listChanged":true},'
            b'"elicitation":{"url":{},"form":{"z":1}},'
            b'"extensions":{"io.modelcontextprotocol/ui":{"b":1,"a":[ ]}}}',
            relay=RELAYED,
        )
        other = list_profile(
            b'{"extensions":{"io.modelcontextprotocol/ui":{"a":[],"b":1},"x/y":{}},'
            b'"elicitation":{"form":{},"url":{}},'
            b'"roots":{},"sampling":{"tools":{}},"future":{},"experimental":null}',
            relay=RELAYED,
        )
        assert one == other
        assert one.capabilities == (
            b'{"elicitation":{"form":{},"url":{}},"extensions":{"io.modelcontextprotocol/ui":{"a":[],"b":1}},'
            b'"roots":{},"sampling":{"tools":{}}}'
        )

    def test_an_empty_elicitation_is_form(self) -> None:
        """S-30: both spellings share one entry."""
        empty, form = (
            list_profile(text, relay=RELAYED)
            for text in (b'{"elicitation":{}}', b'{"elicitation":{"form":{}}}')
        )
        assert empty == form

    @pytest.mark.parametrize(
        "declared",
        [
            {"extensions": {UI: {}}},
            {"extensions": {UI: {"a": 1}}},
            {"sampling": {}},
            {"sampling": {"tools": {}}},
            {"elicitation": {}},
            {"elicitation": {"url": {}}},
            {"roots": {}},
        ],
    )
    def test_what_may_shape_a_list_makes_another_digest(self, declared: Any) -> None:
        """C-07: a client without ui never gets a list fetched for one that has it."""
        digests = {list_profile(encode(each), relay=RELAYED).digest for each in ({}, declared, EVERYTHING)}
        assert len(digests) == 3

    def test_what_shapes_no_list_makes_no_profile_of_its_own(self) -> None:
        """The set of profiles is kept small (C-06)."""
        assert list_profile(encode({"experimental": {"e": {}}, "future": {}})) == list_profile(b"{}")
        assert list_profile(b"{}").capabilities == b"{}"

    def test_settings_without_one_spelling_are_not_declared(self) -> None:
        """A number no decoder can hold has no canonical form; the rest of the profile stays."""
        declared = b'{"extensions":{"io.modelcontextprotocol/ui":{"n":1e999}}}'
        assert list_profile(declared).capabilities == b"{}"


class TestUndeclared:
    @pytest.mark.parametrize(
        ("required", "declared", "missing"),
        [
            ({}, {}, None),
            ({"sampling": {}}, {}, {"sampling": {}}),
            ({"sampling": {}}, {"sampling": None}, {"sampling": {}}),
            ({"sampling": {}}, {"sampling": True}, {"sampling": {}}),
            ({"sampling": {}}, {"sampling": {"tools": {}}}, None),
            ({"sampling": {"tools": {}}}, {"sampling": {}}, {"sampling": {"tools": {}}}),
            ({"elicitation": {"url": {}}}, {"elicitation": {}}, {"elicitation": {"url": {}}}),
            ({"elicitation": {}}, {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
            ({"extensions": {TASKS: {}}}, {"extensions": {UI: {}}}, {"extensions": {TASKS: {}}}),
            ({"roots": None}, {}, None),
            (["roots"], {}, None),
            ("roots", {}, None),
        ],
    )
    def test_it_names_what_the_client_would_have_to_add(
        self, required: Any, declared: Any, missing: Any
    ) -> None:
        """F-31, E-15: shaped like capabilities, leaves are objects."""
        named = undeclared(encode(required), encode(declared))
        assert (named and json.loads(named)) == missing
        assert named is None or is_well_formed(named)

    @pytest.mark.parametrize(
        "bad",
        [
            '["sampling"]',
            '{"sampling":true}',
            '{"sampling":null}',
            '{"elicitation":{"url":null}}',
            "null",
            '{"extensions":[]}',
        ],
    )
    def test_badly_shaped_capabilities_are_told_apart(self, bad: str) -> None:
        """E-15."""
        assert not is_well_formed(bad.encode())

    def test_no_requests_need_nothing(self) -> None:
        """A result that carries a state only needs no capability (M-14)."""
        assert asked_of({}) == asked_of({"a": b"{}"}) == b"{}"
