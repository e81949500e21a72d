"""What a token says decides, and nothing else of it does."""

import json
import math
from typing import Any

import pytest

from gateway.front.tokens import (
    LONGEST,
    STANDING,
    Proof,
    Refused,
    Terms,
    judge,
    judge_header,
    read,
    scopes_of,
)
from tests.support.authorization_server import encode

GATEWAY = "https://gateway.example/mcp"
NOW = 1_800_000_000.0
CORP = Terms("https://corp.example", leeway=30.0)


def claims(**changes: Any) -> dict[str, Any]:
    said = {"iss": "https://corp.example", "sub": "alice", "aud": GATEWAY, "exp": NOW + 60, **changes}
    return {name: value for name, value in said.items() if value is not None}


def compact(header: Any, said: Any, signature: str = "c2ln") -> str:
    parts = (one if isinstance(one, bytes) else json.dumps(one).encode() for one in (header, said))
    return f"{'.'.join(map(encode, parts))}.{signature}"


def judged(terms: Terms = CORP, *, signed: bool = True, **changes: Any) -> Proof | Refused:
    return judge(claims(**changes), terms, GATEWAY, NOW, signed=signed)


def reason(verdict: Proof | Refused) -> str:
    assert isinstance(verdict, Refused), verdict
    assert verdict.error == "invalid_token"
    return verdict.reason.removeprefix("The token does not count: ")


def test_a_good_token_says_who_it_is_and_until_when() -> None:
    """The leeway goes on top, for else it would end the moment it is accepted."""
    proof = judged(scope="a b", role="x")
    assert isinstance(proof, Proof)
    assert (proof.subject, proof.scopes, proof.expires) == ("alice", {"a", "b"}, NOW + 90)
    assert proof.claims["role"] == "x"
    assert "alice@" not in repr(judged(email="alice@corp.example"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "opaque",
        "a.b",
        compact({}, {}) + ".x",
        "..",
        compact({}, {}, ""),
        compact({}, {}, "c2l\n"),
        compact({}, {}, "c2=="),
        compact([], {}),
        compact({}, []),
        compact({}, "x"),
        compact({}, b"{"),
        compact({}, b"\xff"),
        compact({}, b'{"exp": NaN}'),
        compact({}, b'{"sub": "alice", "sub": "root"}'),
        compact(b'{"alg": "RS256", "alg": "none"}', {}),
        compact({}, b"[" * 5000),
        compact({}, b'{"a":' * 3000 + b"1" + b"}" * 3000),
        compact({}, b'{"exp": ' + b"9" * 5000 + b"}"),
        compact({}, {"x": "y" * LONGEST}),
    ],
)
def test_what_is_no_jwt_is_not_read(text: str) -> None:
    """Nor what is one in two ways: with a name that is there twice, too deep, or too long."""
    assert read(text) is None


def test_a_jwt_is_read_without_being_believed() -> None:
    """With what is signed, to the byte."""
    token = read(compact({"alg": "RS256", "kid": "1"}, claims()))
    assert token is not None
    assert (token.algorithm, token.key, token.signature) == ("RS256", "1", b"sig")
    assert token.signed == compact({"alg": "RS256", "kid": "1"}, claims()).rpartition(".")[0].encode()


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"alg": "none"}, "it is signed in a way that is not accepted"),
        ({"alg": "HS256"}, "it is signed in a way that is not accepted"),
        ({"alg": "rs256"}, "it is signed in a way that is not accepted"),
        ({"alg": ["RS256"]}, "it is signed in a way that is not accepted"),
        ({}, "it is signed in a way that is not accepted"),
        ({"alg": "RS256", "crit": ["exp"]}, "it has a critical extension that is not understood"),
        ({"alg": "RS256", "crit": []}, "it has a critical extension that is not understood"),
        ({"alg": "RS256", "b64": False}, "it has a critical extension that is not understood"),
        ({"alg": "RS256", "typ": "logout+jwt"}, "it is another kind of token than for access"),
        ({"alg": "RS256", "typ": "dpop+jwt"}, "it is another kind of token than for access"),
        ({"alg": "RS256", "typ": 1}, "it is another kind of token than for access"),
        ({"alg": "RS256", "kid": 1}, "its header is malformed"),
    ],
)
def test_a_header_that_is_not_accepted(header: dict[str, Any], why: str) -> None:
    """Whatever it says of keys: algorithms are the operator's choice, not the token's (RFC 8725)."""
    token = read(compact(header, claims()))
    assert token is not None
    refused = judge_header(token, ["RS256"])
    assert refused is not None
    assert reason(refused) == why


@pytest.mark.parametrize("signature", ["c2lnbg", "c2lnbh", "c2lnbv", "c2h"])
def test_a_signature_has_one_spelling(signature: str) -> None:
    """Else one token would be several credentials: the last bits of it mean nothing."""
    token = read(compact({"alg": "RS256"}, claims(), signature))
    assert token is not None
    refused = judge_header(token, ["RS256"])
    if signature == "c2lnbg":
        assert refused is None
    else:
        assert refused is not None
        assert reason(refused) == "its signature is malformed"


@pytest.mark.parametrize("kind", [None, "JWT", "at+jwt", "AT+JWT", "application/at+jwt"])
def test_access_tokens_are_called_in_several_ways(kind: str | None) -> None:
    """Most issuers say JWT, RFC 9068 says at+jwt, some say nothing."""
    token = read(compact({"alg": "RS256", **({} if kind is None else {"typ": kind})}, claims()))
    assert token is not None
    assert judge_header(token, ["RS256"]) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"iss": None}, "it is of another issuer"),
        ({"iss": "https://corp.example/"}, "it is of another issuer"),
        ({"iss": "https://CORP.example"}, "it is of another issuer"),
        ({"iss": ["https://corp.example"]}, "it is of another issuer"),
        ({"exp": None}, "it does not say when it ends"),
        ({"exp": NOW - 30}, "it has expired"),
        ({"exp": str(NOW + 60)}, "a time in it is malformed"),
        ({"exp": True}, "a time in it is malformed"),
        ({"exp": math.inf}, "a time in it is malformed"),
        ({"exp": 10**400}, "a time in it is malformed"),
        ({"nbf": NOW + 31}, "it does not count yet"),
        ({"nbf": "soon"}, "a time in it is malformed"),
        ({"iat": NOW + 31}, "it does not count yet"),
        ({"iat": []}, "a time in it is malformed"),
        ({"aud": None}, "it is for another audience"),
        ({"aud": []}, "it is for another audience"),
        ({"aud": {"https://gateway.example/mcp": 1}}, "it is for another audience"),
        ({"aud": "https://gateway.example"}, "it is for another audience"),
        ({"aud": "https://gateway.example/mcp/more"}, "it is for another audience"),
        ({"aud": "https://gateway.example/MCP"}, "it is for another audience"),
        ({"aud": "http://gateway.example/mcp"}, "it is for another audience"),
        ({"aud": "https://gateway.example.evil/mcp"}, "it is for another audience"),
        ({"aud": ["https://upstream.example/mcp"]}, "it is for another audience"),
        ({"aud": "https://["}, "it is for another audience"),
        ({"aud": "https://gateway.example:x/mcp"}, "it is for another audience"),
        ({"sub": None}, "it does not say whose it is"),
        ({"sub": ""}, "it does not say whose it is"),
        ({"sub": 7}, "it does not say whose it is"),
        ({"sub": "a\nb"}, "it does not say whose it is"),
        ({"sub": "\ud800"}, "it does not say whose it is"),
        ({"sub": "x" * 1025}, "it does not say whose it is"),
        ({"cnf": {"jkt": "x"}}, "it is bound to a key, and nothing here proves who holds that"),
        ({"nonce": "n-0S6"}, "it is another kind of token than for access"),
        ({"at_hash": "x"}, "it is another kind of token than for access"),
        ({"c_hash": "x", "typ": "Bearer"}, "it is another kind of token than for access"),
        ({"events": {}, "token_use": "access"}, "it is another kind of token than for access"),
        ({"token_use": "id"}, "it is another kind of token than for access"),
        ({"typ": "ID"}, "it is another kind of token than for access"),
        ({"typ": "Logout"}, "it is another kind of token than for access"),
        ({"typ": "Refresh"}, "it is another kind of token than for access"),
    ],
)
def test_a_token_that_does_not_count(changes: dict[str, Any], why: str) -> None:
    """Each reason is told, without a word of the token."""
    assert reason(judged(**changes)) == why


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW - 29},
        {"exp": NOW + 0.5},
        {"nbf": NOW + 29},
        {"iat": NOW + 29},
        {"aud": ["https://other.example", GATEWAY]},
        {"aud": "HTTPS://Gateway.Example:443/mcp/"},
        {"sub": "Ann-Émilie"},
        {"typ": "Bearer", "nonce": "n-0S6", "azp": "app", "sid": "x"},  # Keycloak before 25
        {"typ": "Bearer", "acr": "1", "azp": "app", "sid": "x"},
        {"token_use": "access", "client_id": "app", "version": 2},  # Cognito
        {"azp": "app", "oid": "x", "scp": "read", "uti": "x", "ver": "2.0", "aio": "x", "rh": "x"},  # Entra
    ],
)
def test_a_token_that_counts_just_so(changes: dict[str, Any]) -> None:
    """Clocks differ by the leeway; a URL has one meaning however it is spelled (Z-06)."""
    assert isinstance(judged(**changes), Proof)


def test_audiences_take_the_place_of_the_endpoints_url() -> None:
    """An operator who names them means these."""
    terms = Terms("https://corp.example", audiences=["api://gateway", "https://front.example"])
    assert isinstance(judged(terms, aud="api://gateway"), Proof)
    assert isinstance(judged(terms, aud="https://front.example/"), Proof)
    assert reason(judged(terms)) == "it is for another audience"


def test_another_claim_may_say_who_it_is() -> None:
    """And `sub` then does not."""
    terms = Terms("https://corp.example", subject="email")
    proof = judged(terms, email="a@corp.example")
    assert isinstance(proof, Proof)
    assert proof.subject == "a@corp.example"
    assert reason(judged(terms)) == "it does not say whose it is"


def test_an_answer_of_the_issuer_may_leave_out_who_it_is_and_when_it_ends() -> None:
    """What it says all the same has to be right."""
    proof = judged(signed=False, iss=None, exp=None)
    assert isinstance(proof, Proof)
    assert proof.expires == NOW + STANDING  # or a stream would outlive it for ever
    assert reason(judged(signed=False, iss="https://other.example")) == "it is of another issuer"
    assert reason(judged(signed=False, exp=NOW - 31)) == "it has expired"
    assert reason(judged(signed=False, exp=None, nbf=NOW + 31)) == "it does not count yet"
    assert reason(judged(signed=False, aud=None)) == "it is for another audience"


@pytest.mark.parametrize(
    ("said", "scopes"),
    [
        ({}, set()),
        ({"scope": "a  b a"}, {"a", "b"}),
        ({"scp": "a b"}, {"a", "b"}),
        ({"scp": ["a", "b", 1]}, {"a", "b"}),
        ({"scopes": ["a"], "scope": "b"}, {"a", "b"}),
        ({"scope": {"a": 1}}, set()),
    ],
)
def test_issuers_spell_scopes_in_their_own_ways(said: dict[str, Any], scopes: set[str]) -> None:
    """Text with spaces, or a list."""
    assert scopes_of(said) == scopes
