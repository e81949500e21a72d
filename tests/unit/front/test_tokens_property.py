"""Whatever a token is made of: nothing breaks on it, and what is accepted here PyJWT accepts, too."""

import base64
import json
from typing import Any

import jwt
from hypothesis import given
from hypothesis import strategies as st

from gateway.front.keyset import fitting, read_keys
from gateway.front.tokens import Proof, Terms, judge, judge_header, read
from tests.support.authorization_server import SigningKey, encode, make_key, sign

GATEWAY = "https://gateway.example/mcp"
ISSUER = "https://corp.example"
NOW = 1_700_000_000
ALGORITHMS = ["RS256", "ES256", "EdDSA"]
OURS = [make_key("RS256", "rsa", number=0), make_key("ES256", "ec"), make_key("EdDSA", "ed")]
THEIRS = [make_key("RS256", "rsa", number=1), make_key("ES256", "ec"), make_key("EdDSA", "ed")]
KEYS = read_keys({"keys": [key.jwk for key in OURS]})
TERMS = Terms(ISSUER)

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.lists(st.text(max_size=4), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)
GOOD = {"iss": ISSUER, "sub": "alice", "aud": GATEWAY, "exp": NOW + 60, "nbf": NOW - 60, "iat": NOW - 60}
OTHERWISE: dict[str, Any] = {
    "iss": st.sampled_from([f"{ISSUER}/", ISSUER.upper()]),
    "sub": st.sampled_from(["bob", "", "a\0b"]),
    "aud": st.sampled_from([[GATEWAY], [GATEWAY, "x"], f"{GATEWAY}/x", "x", f"{GATEWAY}/"]),
    "exp": st.integers(NOW - 2, NOW + 2),
    "nbf": st.integers(NOW - 2, NOW + 2),
    "iat": st.integers(NOW - 2, NOW + 2),
}


def accepted(text: str) -> str | None:
    """Return the subject that a token lets in."""
    token = read(text)
    if token is None or judge_header(token, ALGORITHMS) is not None:
        return None
    proof = judge(token.claims, TERMS, GATEWAY, NOW)
    keys = fitting(KEYS, token.key, token.algorithm)
    good = any(key.verifies(token.algorithm, token.signed, token.signature) for key in keys)
    return proof.subject if good and isinstance(proof, Proof) else None


def accepted_elsewhere(text: str) -> str | None:
    """Return the same as PyJWT sees it, times aside: its clock is not ours to set."""
    for key in OURS:
        try:
            options = {"verify_exp": False, "verify_iat": False, "verify_nbf": False, "verify_aud": False}
            public = key.private.public_key()
            return str(jwt.decode(text, public, [key.alg], issuer=ISSUER, options=options)["sub"])
        except jwt.PyJWTError:
            continue
    return None


@st.composite
def claims(draw: st.DrawFn) -> dict[str, Any]:
    said = dict(GOOD)
    for name in draw(st.lists(st.sampled_from(sorted(GOOD)), max_size=2)):
        value = draw(st.one_of(OTHERWISE[name], ODD))
        said[name] = value
        if value is None:
            del said[name]
    return said


@st.composite
def tokens(draw: st.DrawFn) -> tuple[str, bool]:
    """Return a token, and whether its signature is one of ours over just that."""
    ours = draw(st.booleans())
    key: SigningKey = draw(st.sampled_from(OURS if ours else THEIRS))
    header = {"kid": draw(st.sampled_from([key.kid, None, "unknown", "rsa"])), "typ": "JWT"}
    if draw(st.integers(0, 3)) == 0:
        header |= draw(st.dictionaries(st.sampled_from(["alg", "crit", "typ", "kid", "jwk", "zip"]), ODD))
    text = sign(draw(claims()), key, header)
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text) - 1))
        text, ours = text[:at] + draw(st.sampled_from("aZ_-.=\n{")) + text[at + 1 :], False
    return text, ours


@given(tokens())
def test_what_is_accepted_is_a_token_of_ours(made: tuple[str, bool]) -> None:
    """Signed with one of our keys, as another implementation sees it, too."""
    text, ours = made
    subject = accepted(text)
    if subject is not None:
        assert subject == accepted_elsewhere(text)
        if not ours:
            # A changed character may lead to the same bytes: those of our key, all the same.
            _same_bytes(text)


def _same_bytes(text: str) -> None:
    parts = [part + "=" * (-len(part) % 4) for part in text.split(".")]
    header, body, _ = (base64.urlsafe_b64decode(part) for part in parts)
    assert json.loads(header)["alg"] in ALGORITHMS
    assert json.loads(body)["iss"] == ISSUER


@given(
    st.one_of(
        st.text(),
        st.binary().map(encode),
        st.lists(st.binary(), max_size=5).map(lambda parts: ".".join(map(encode, parts))),
    )
)
def test_nothing_breaks_on_text(text: str) -> None:
    """And nobody gets in by it."""
    assert accepted(text) is None


@given(st.recursive(ODD, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
def test_nothing_breaks_on_claims(said: Any) -> None:
    """Of any shape, each beside good ones."""
    for name in (*GOOD, "scope", "scp", "cnf"):
        judge({**GOOD, name: said}, TERMS, GATEWAY, NOW)
        judge({**GOOD, name: said}, TERMS, GATEWAY, NOW, signed=False)


MEMBERS = st.sampled_from(["kty", "crv", "x", "y", "n", "e", "kid", "alg", "use", "key_ops", "d", "x5c"])


@given(st.sampled_from(OURS), st.dictionaries(MEMBERS, ODD, max_size=3))
def test_nothing_breaks_on_keys(key: SigningKey, changes: dict[str, Any]) -> None:
    """A key that is changed is left out, or still of one kind."""
    for found in read_keys({"keys": [{**key.jwk, **changes}]}):
        assert found.fits <= {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"} or len(found.fits) == 1
        found.verifies(key.alg, b"text", b"signature")
