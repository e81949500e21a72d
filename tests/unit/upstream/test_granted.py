"""What an authorization server gives, and how long that is used."""

import base64
import contextlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.granted import Denied, ends_of, read_granted, token_of


def body(**members: object) -> bytes:
    return json.dumps({"access_token": "T", "token_type": "Bearer", **members}).encode()


def test_a_token_is_good_then_replaced_then_over() -> None:
    """Replaced early, so that nobody waits for the next one."""
    token = token_of("T", 3600.0, now=1000.0, early=30.0)
    assert [token.use(at) for at in (1000.0, 4569.9, 4570.0, 4599.9, 4600.0)] == [
        "good",
        "good",
        "renew",
        "renew",
        "over",
    ]


def test_a_short_token_is_used_for_half_of_its_life() -> None:
    """`early` beyond its lifetime would have it replaced at once, for ever."""
    token = token_of("T", 20.0, now=0.0, early=30.0)
    assert [token.use(at) for at in (9.9, 10.0, 20.0)] == ["good", "renew", "over"]


def test_a_token_is_used_no_longer_than_what_it_was_given_for() -> None:
    """Never beyond either token's end; nor for ever because a number was large."""
    assert token_of("T", 3600.0, now=0.0, early=0.0, ends=100.0).end == 100.0
    assert token_of("T", None, now=0.0, early=0.0, ends=100.0).end == 100.0
    assert token_of("T", 60.0, now=0.0, early=0.0, ends=100.0).end == 60.0
    assert token_of("T", 1e14, now=0.0, early=0.0).end == 366 * 86400.0


def test_a_token_without_a_lifetime_is_used_until_it_is_refused() -> None:
    """Nothing says when it ends."""
    assert token_of("T", None, now=0.0, early=30.0).use(1e12) == "good"


@given(
    st.none() | st.floats(0, 1e9),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.none() | st.floats(0, 1e9),
    st.floats(0, 1e10),
)
def test_no_token_is_good_after_its_end(
    lifetime: float | None, now: float, early: float, ends: float | None, at: float
) -> None:
    """Whatever the numbers are."""
    token = token_of("T", lifetime, now=now, early=early, ends=ends)
    assert not math.isnan(token.renew)
    if at >= token.end:
        assert token.use(at) == "over"
    if ends is not None:
        assert token.end <= ends


def test_what_is_granted() -> None:
    """Token and lifetime; the type in any case."""
    assert read_granted(200, body(expires_in=60), exchanged=False, issuer=None) == ("T", 60.0)
    assert read_granted(200, body(token_type="bearer"), exchanged=False, issuer=None) == ("T", None)
    assert read_granted(200, body(expires_in="60"), exchanged=False, issuer="i") == ("T", 60.0)
    assert read_granted(200, body(iss="i", expires_in=True), exchanged=False, issuer="i") == ("T", None)
    jwt = "urn:ietf:params:oauth:token-type:jwt"
    assert read_granted(200, body(issued_token_type=jwt), exchanged=True, issuer=None) == ("T", None)


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        b"[]",
        b"{}",
        body(token_type="mac"),
        body(token_type=None),
        body(access_token=""),
        body(access_token="a b"),
        body(access_token="a\r\nX: y"),
        body(access_token=5),
        body(iss="other"),
    ],
)
def test_what_is_no_grant(answer: bytes) -> None:
    """A token that could not be sent, another kind, another issuer (Z-11)."""
    with pytest.raises(Denied) as caught:
        read_granted(200, answer, exchanged=False, issuer="i")
    assert caught.value.error == "no token"


def test_what_an_exchange_must_not_give() -> None:
    """A refresh token is no access token (RFC 8693, 2.2.1)."""
    refresh = "urn:ietf:params:oauth:token-type:refresh_token"
    with pytest.raises(Denied):
        read_granted(200, body(issued_token_type=refresh), exchanged=True, issuer=None)


def test_a_refusal_says_its_error_and_nothing_that_it_made_up() -> None:
    """Descriptions may repeat what was sent: they are left out."""
    for status, answer, error in (
        (401, b'{"error": "invalid_client", "error_description": "secret S3CRET"}', "invalid_client"),
        (400, b'{"error": "a\\nb"}', "no token"),
        (500, b"oops", "no token"),
    ):
        with pytest.raises(Denied) as caught:
            read_granted(status, answer, exchanged=False, issuer=None)
        assert caught.value.error == error
        assert "S3CRET" not in caught.value.detail


def token(claims: object) -> str:
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.sig"


def test_when_a_jwt_ends() -> None:
    """What says nothing of it has no end that is known."""
    assert ends_of(token({"exp": 100})) == 100.0
    for other in (
        "opaque",
        token({}),
        token([]),
        token({"exp": "soon"}),
        token({"exp": 10**400}),
        "a.b.c",
        "..",
        "a.é.c",
    ):
        assert ends_of(other) is None


@given(st.text(), st.binary())
def test_anything_is_read(text: str, answer: bytes) -> None:
    """From callers and from servers."""
    ends_of(text)
    ends_of(f"a.{base64.urlsafe_b64encode(answer).decode()}.b")
    with contextlib.suppress(Denied):
        read_granted(200, answer, exchanged=True, issuer="i")
