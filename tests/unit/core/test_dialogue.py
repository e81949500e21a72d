"""Who may go on with a call, for how long, and what of a question the client is shown."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Config
from gateway.core.dialogue import Dialogue, Refused
from gateway.core.federation import Federation
from gateway.core.results import Asking, normalise
from gateway.core.router import Namespace
from gateway.core.shapes import InvalidResult
from gateway.protocol.call import Call, Partition, Principal, RequestMeta, UpstreamName
from gateway.protocol.jsonrpc import Json, McpError, encode, split, text_of
from gateway.support.seal import Seal
from tests.support.wire import check_result

WE = b'{"name":"mcp-gateway","version":"0.1.0"}'
GH = UpstreamName("gh")
ANN, NOBODY = Principal(Partition("a" * 64), "Bearer a"), Principal()
ALL = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}
KEY = "k" * 32
SPACE = Namespace(GH, "gh")


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def dialogue(clock: Clock | None = None, **members: Any) -> Dialogue:
    """Return one of an endpoint with the upstreams gh and jira; every one has the same key."""
    upstreams = {"gh": "http://gh.example", "jira": "http://jira.example"}
    config = Config.model_validate({"upstreams": upstreams, **members})
    return Dialogue(Federation("/mcp", config), config, Seal([KEY], now=clock or Clock()))


def call(method: str = "tools/call", declared: Any = ALL, **params: Any) -> Call:
    named = {"name": "gh__deploy"} if method != "resources/read" else {"uri": "gh+a:1"}
    members: dict[str, Json] = {key: encode(value) for key, value in {**named, **params}.items()}
    return Call(b"1", method, members, RequestMeta("2026-07-28", encode(declared)))


def ask(to: Dialogue, of: Call, body: str, principal: Principal = ANN) -> dict[str, Any]:
    """Return the question as it goes out, after the checker passed it."""
    result = raw_ask(to, of, body, principal)
    check_result(of.method, result)
    return dict(json.loads(result))


def raw_ask(to: Dialogue, of: Call, body: str, principal: Principal = ANN) -> bytes:
    result = f'{{"resultType":"input_required",{body}}}'.encode()
    asking = normalise(of.method, result, namespace=SPACE, server_info=WE)
    assert isinstance(asking, Asking)
    dressed = to.ask(of, principal, asking, namespace=SPACE, server_info=WE)
    return b"".join(dressed.segments(60_000, "public"))


def token(to: Dialogue, of: Call, state: str = '"requestState":"s"', principal: Principal = ANN) -> str:
    return str(ask(to, of, state, principal)["requestState"])


def refuses(by: Dialogue, of: Call, principal: Principal = ANN) -> bool:
    with pytest.raises(McpError) as caught:
        by.resume(of, principal)
    assert caught.value.code == -32602
    return True


class TestHowLong:
    @pytest.mark.parametrize(
        ("principal", "members", "seconds"),
        [
            (ANN, {}, 600),
            (NOBODY, {}, 300),
            (NOBODY, {"cache": {"single_tenant": True}}, 600),
            (ANN, {"limits": {"input_wait": 60.0}}, 60),
            (NOBODY, {"limits": {"anonymous_input_wait": 5.0}}, 5),
        ],
    )
    def test_a_token_ends_when_the_operator_says(
        self, principal: Principal, members: dict[str, Any], seconds: int
    ) -> None:
        """M-12, M-13: anybody could bring the token of a caller nobody knows, so it lives shorter."""
        clock = Clock()
        here = dialogue(clock, **members)
        given = token(here, call(), principal=principal)
        clock.now += seconds - 0.5
        assert here.resume(call(requestState=given), principal).upstream == GH
        clock.now += 1
        assert refuses(here, call(requestState=given), principal)


class TestWhose:
    @pytest.mark.parametrize(
        "other",
        [
            call(arguments={"a": 1}),
            call("prompts/get"),
            call("resources/read"),
            call(name="jira__deploy"),
            call(unknown=None),
        ],
    )
    def test_a_token_is_for_one_request(self, other: Call) -> None:
        """M-09: the method and everything asked for."""
        here = dialogue()
        given = encode(token(here, call()))
        assert refuses(here, Call(b"1", other.method, {**other.params, "requestState": given}, other.meta))

    def test_answers_capabilities_and_what_a_method_does_not_take_are_no_part_of_it(self) -> None:
        """M-09; a legacy `task` is dropped anyway (T-14), and a null is absent (E-26)."""
        here = dialogue()
        given = token(here, call())
        again = call(
            declared={}, requestState=given, inputResponses={"x": 1}, task={"ttl": 1}, arguments=None
        )
        assert here.resume(again, ANN).goes_on

    @pytest.mark.parametrize(
        ("one", "other", "same"),
        [
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
            ({"a": 1}, {"a": 1.0}, False),
            ({"a": "\u00e9"}, {"a": "e\u0301"}, False),
            ({"a": None}, {}, False),
            ({"a": "x" * 100_000}, {"a": "x" * 100_000}, True),
            ({"a": "x" * 100_000}, {"a": "x" * 99_999 + "y"}, False),
            ({"a": 2**64}, {"a": 2**64 + 1}, False),
        ],
    )
    def test_equal_arguments_are_equal_however_they_are_spelled(
        self, one: Any, other: Any, same: bool
    ) -> None:
        """M-11: those too large or odd for one spelling have to be the very text."""
        here = dialogue()
        again = call(arguments=other, requestState=token(here, call(arguments=one)))
        assert here.resume(again, ANN).goes_on if same else refuses(here, again)

    def test_another_caller_or_endpoint_cannot_go_on(self) -> None:
        """M-09."""
        here = dialogue()
        again = call(requestState=token(here, call()))
        assert refuses(here, again, NOBODY)
        assert refuses(here, again, Principal(Partition("b" * 64), "Bearer b"))
        both: Any = {"upstreams": {"gh": "http://gh.example"}, "endpoints": {"/mcp": {}, "/other": {}}}
        config = Config.model_validate(both)
        assert refuses(Dialogue(Federation("/other", config), config, Seal([KEY], now=Clock())), again)

    def test_an_upstream_that_is_gone_is_not_asked(self) -> None:
        """M-11: the same endpoint and caller, another configuration."""
        config = Config.model_validate({"upstreams": {"new": "http://gh.example"}})
        after = Dialogue(Federation("/mcp", config), config, Seal([KEY], now=Clock()))
        assert refuses(after, call(requestState=token(dialogue(), call())))

    @given(st.text() | st.binary().map(lambda raw: raw.hex()))
    def test_no_text_is_a_token(self, text: str) -> None:
        """M-08: a client may send anything."""
        params: dict[str, Json] = {"name": b'"gh__deploy"', "requestState": json.dumps(text).encode()}
        assert refuses(dialogue(), Call(b"1", "tools/call", params, RequestMeta("2026-07-28")))

    def test_a_token_for_another_use_is_none(self) -> None:
        """A cursor of the same caller does not pass for a state (F-19)."""
        cursor = Seal([KEY], now=Clock()).seal("cursor", b"\x92\xa2gh\xa1s", bound_to=b"", ttl=60)
        assert refuses(dialogue(), call(requestState=cursor))

    @given(st.text(st.characters(exclude_categories=["Cs"])) | st.none())
    def test_the_upstreams_state_comes_back_as_it_was(self, state: str | None) -> None:
        """M-09, M-10: any text, the empty one too, and none."""
        here = dialogue()
        asked = ask(here, call(), f'"inputRequests":{{}},"requestState":{json.dumps(state)}')
        turn = here.resume(call(requestState=asked["requestState"]), ANN)
        assert (turn.upstream, turn.goes_on) == (GH, True)
        assert text_of(turn.call.params.get("requestState")) == state
        assert ("requestState" in turn.call.params) == (state is not None)


class TestFirstAttempts:
    @pytest.mark.parametrize(
        ("extra", "goes_on"),
        [
            ({}, False),
            ({"inputResponses": None, "requestState": None}, False),
            ({"inputResponses": {}}, True),
            ({"inputResponses": {"a": {}}, "requestState": None}, True),
        ],
    )
    def test_without_a_state_nothing_is_verified(self, extra: dict[str, Any], goes_on: bool) -> None:
        """M-11; what brings input goes past the cache all the same (C-03)."""
        turn = dialogue().resume(call(**extra), ANN)
        assert (turn.goes_on, turn.upstream) == (goes_on, None)


class TestQuestions:
    def test_what_is_not_ours_to_change_keeps_its_text(self) -> None:
        """M-03: order, spelling and unknown members."""
        here = dialogue(upstreams={"gh": {"url": "http://a", "label": ""}})
        requests = (
            '{ "z":{"x":1.0,"method":"elicitation/create","params":{ "requestedSchema":{"type":"object",'
            '"properties":{}}, "message":"\\u0041"}},"a":{"method":"roots/list"}}'
        )
        shown = split(raw_ask(here, call(), f'"inputRequests":{requests}'))["inputRequests"]
        assert bytes(shown) == requests.replace("{ ", "{", 1).encode()

    @pytest.mark.parametrize("state", ["7", "[]", "true", '"\\ud800"'])
    def test_a_state_is_a_string(self, state: str) -> None:
        """M-02."""
        with pytest.raises(InvalidResult):
            ask(dialogue(), call(), f'"inputRequests":{{}},"requestState":{state}')

    def test_a_refusal_says_two_things(self) -> None:
        """M-05, M-13: the log the reason, the client what it can do about it."""
        request = (
            '{"a":{"method":"elicitation/create","params":{"mode":"url","message":"?","url":"https://x"}}}'
        )
        with pytest.raises(Refused, match="not offered") as caught:
            ask(dialogue(), call(declared={}), f'"inputRequests":{request}')
        assert caught.value.told.code == -32021
        with pytest.raises(Refused, match=r"limits\.request_state") as caught:
            ask(dialogue(limits={"request_state": 3}), call(), '"requestState":"1234"')
        assert caught.value.told.code == -32603

    def test_the_largest_state_an_operator_may_allow_fits(self) -> None:
        """M-13: into a token, whatever its characters."""
        here = dialogue(limits={"request_state": 512 * 2**10})
        state = "\u00e9" * 2**18
        turn = here.resume(call(requestState=token(here, call(), f'"requestState":"{state}"')), ANN)
        assert text_of(turn.call.params["requestState"]) == state


def test_what_was_verified_is_bound_to_the_person() -> None:
    """M-12: a token may be renewed between two rounds; another person's token opens nothing."""
    person = Partition("p" * 64)
    one, two = (
        Principal(Partition(letter * 64), f"Bearer {letter}", id="corp:ann", subject=person)
        for letter in "ab"
    )
    ours = dialogue()
    token = ask(ours, call(), '"inputRequests":{},"requestState":"s"', one)["requestState"]
    assert ours.resume(call(requestState=token), two).upstream == GH
    for other in (Principal(Partition("a" * 64), "Bearer a"), replace(one, id="corp:bob"), Principal()):
        with pytest.raises(McpError):
            ours.resume(call(requestState=token), other)
