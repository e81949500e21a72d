"""What callers show as tokens, and what issuers say of tokens and keys; each function is one target."""

import json

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.front.keyset import fitting, read_keys
from gateway.front.tokens import Proof, Refused, Terms, judge, judge_header, read
from tests.support.authorization_server import SigningKey, sign

RESOURCE = "https://gateway.example/mcp"
NOW = 1_800_000_000.0
KEY = SigningKey("1", "EdDSA", Ed25519PrivateKey.from_private_bytes(b"the same key in every run, it is"))
CLAIMS = {"iss": "https://corp.example", "sub": "alice", "aud": RESOURCE, "exp": NOW + 60, "scope": "a b"}
TOKEN = sign(CLAIMS, KEY, {"kid": "1", "typ": "at+jwt"})
JWKS = json.dumps({"keys": [KEY.jwk]}).encode()

_TERMS = Terms("https://corp.example", leeway=30.0)
_KEYS = read_keys(json.loads(JWKS))


def signed_token(data: bytes) -> None:
    """Nobody gets in but with the one token that was signed, whatever is changed in it."""
    token = read(data.decode("latin-1"))
    if token is None or judge_header(token, ["EdDSA", "RS256", "ES256"]) is not None:
        return
    proof = judge(token.claims, _TERMS, RESOURCE, NOW)
    keys = fitting(_KEYS, token.key, token.algorithm)
    if any(key.verifies(token.algorithm, token.signed, token.signature) for key in keys):
        assert token.signed == TOKEN.rpartition(".")[0].encode()
        assert isinstance(proof, Proof)


def token_claims(data: bytes) -> None:
    """Claims of any shape prove somebody or nobody, and a refusal repeats nothing of them."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(said, dict):
        return
    for signed in (True, False):
        match judge(said, _TERMS, RESOURCE, NOW, signed=signed):
            case Proof(subject, scopes, expires):
                assert subject.isprintable()
                assert all(isinstance(scope, str) for scope in scopes)
                assert said["aud"]
                assert expires > NOW
            case Refused(error, reason):
                assert error == "invalid_token"
                assert reason.isascii()


def published_keys(data: bytes) -> None:
    """Whatever an issuer publishes is keys that can be used, or none."""
    try:
        keys = read_keys(json.loads(data))
    except (ValueError, RecursionError):
        return
    for key in keys:
        for algorithm in (*key.fits, "HS256", "none"):
            assert not key.verifies(algorithm, b"text", b"signature" * 8)
