"""Reads signed tokens and judges what tokens say. No keys and no clock: both are handed in.

Nothing of what was presented is repeated in a refusal: it goes to the client, and into logs.
"""

import binascii
import json
import math
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn, TypeAlias

from gateway.front.metadata import canonical

Claims: TypeAlias = Mapping[str, object]

LONGEST = 16 * 2**10
"""The most characters of a token that are looked at."""
STANDING = 3600.0
"""How long a token counts for a stream that is open, where its issuer does not say when it ends."""
_LONGEST_SUBJECT = 1024
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")
_TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""Other signed tokens of the same issuer, such as for logging out, are no access tokens (RFC 8725, 3.11)."""
_OF_OTHERS = frozenset({"at_hash", "c_hash", "events"})
"""Claims that only tokens about a login, or its end, have; most of these are of type JWT."""
_KINDS_OF_OTHERS = frozenset({"id", "serialized-id", "refresh", "offline", "logout"})
"""What Keycloak has in the claim `typ` of tokens that are not for access."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a credential does not count.

    `invalid_request` is one that is no credential at all (400), `invalid_token` one that does not let in
    (401); `unavailable` says that nobody could tell (503).
    """

    error: Literal["invalid_request", "invalid_token", "unavailable"]
    reason: str
    """A sentence for whoever called; without anything secret."""
    retry_after: float = 0.0
    """In how many seconds it may go better, where it is `unavailable`."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is written; nothing of it is to be believed before its signature is verified."""

    header: Claims
    claims: Claims
    signed: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    plain: bool = True
    """Whether the signature is spelled as any issuer spells it; its last bits may mean nothing."""

    @property
    def algorithm(self) -> str:
        alg = self.header.get("alg")
        return alg if isinstance(alg, str) else ""

    @property
    def key(self) -> str | None:
        """The name of the key it says it is signed with."""
        kid = self.header.get("kid")
        return kid if isinstance(kid, str) else None


@dataclass(frozen=True, slots=True)
class Terms:
    """What a token has to say so that it counts."""

    issuer: str
    audiences: Sequence[str] = ()
    """What it may be for; by default the resource that is asked."""
    subject: str = "sub"
    leeway: float = 0.0


@dataclass(frozen=True, slots=True)
class Proof:
    """What a token that counts says of who shows it."""

    subject: str
    scopes: frozenset[str]
    expires: float
    """When it counts no longer, the leeway included."""
    claims: Claims = field(repr=False)


def read(text: str) -> Token | None:
    """Return what a JWT in its compact form says; None for what is none, and then may be opaque."""
    parts = text.split(".")
    if len(text) > LONGEST or len(parts) != 3 or not all(map(_BASE64URL.fullmatch, parts)):
        return None
    try:
        header, claims = _object(parts[0]), _object(parts[1])
        signature = _decode(parts[2])
    except (ValueError, RecursionError):
        return None
    plain = urlsafe_b64encode(signature).rstrip(b"=") == parts[2].encode()
    return Token(header, claims, text.rpartition(".")[0].encode(), signature, plain)


def judge_header(token: Token, algorithms: Iterable[str]) -> Refused | None:
    """Return why a token is none of those that are accepted, before anything is verified.

    Keys and addresses of keys that the token itself names (jwk, jku, x5c, x5u) are never looked at.
    """
    if token.algorithm not in algorithms:
        return _refused("it is signed in a way that is not accepted")
    if "crit" in token.header or "b64" in token.header:
        return _refused("it has a critical extension that is not understood")
    kind = token.header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        return _refused("it is another kind of token than for access")
    if "kid" in token.header and token.key is None:
        return _refused("its header is malformed")
    if not token.plain:  # else one token would be several credentials
        return _refused("its signature is malformed")
    return None


def judge(claims: Claims, terms: Terms, resource: str, now: float, *, signed: bool = True) -> Proof | Refused:
    """Return whom a verified token, or the answer to a question about one, lets in.

    Of an answer (not `signed`) the issuer itself says that it counts: it may leave out `iss` and `exp`.
    """
    if claims.get("iss", None if signed else terms.issuer) != terms.issuer:
        return _refused("it is of another issuer")
    problem = _outside(claims, terms.leeway, now, ends=signed)
    if problem is not None:
        return _refused(problem)
    if not _is_for_access(claims):
        return _refused("it is another kind of token than for access")
    if not _is_for(claims.get("aud"), terms.audiences or (resource,)):
        return _refused("it is for another audience")
    if "cnf" in claims:
        return _refused("it is bound to a key, and nothing here proves who holds that")
    subject = claims.get(terms.subject)
    if not isinstance(subject, str) or not 0 < len(subject) <= _LONGEST_SUBJECT or not subject.isprintable():
        return _refused("it does not say whose it is")
    ends = _number(claims.get("exp"))
    return Proof(subject, scopes_of(claims), now + STANDING if ends is None else ends + terms.leeway, claims)


def issued(claims: Claims) -> float:
    """Return when a token was made, as it says; where it does not, that may be at any time."""
    made = _number(claims.get("iat"))
    return math.inf if made is None else made


def scopes_of(claims: Claims) -> frozenset[str]:
    """Return what a token grants, however its issuer spells that."""
    found: set[str] = set()
    for name in ("scope", "scp", "scopes"):
        said = claims.get(name)
        if isinstance(said, str):
            found.update(said.split())
        elif isinstance(said, list):
            found.update(one for one in said if isinstance(one, str))
    return frozenset(found)


def _outside(claims: Claims, leeway: float, now: float, *, ends: bool) -> str | None:
    """Return why now is not within the time in which a token counts."""
    for name in ("exp", "nbf", "iat"):
        if name in claims and _number(claims[name]) is None:
            return "a time in it is malformed"
    exp, nbf, iat = (_number(claims.get(name)) for name in ("exp", "nbf", "iat"))
    if exp is None and ends:
        return "it does not say when it ends"
    if exp is not None and now >= exp + leeway:
        return "it has expired"
    if max(nbf or 0.0, iat or 0.0) > now + leeway:
        return "it does not count yet"
    return None


def _is_for_access(claims: Claims) -> bool:
    """Whether a token is for access, by its claims: where its audience is a client, ID tokens have the same.

    A nonce is in ID tokens, but older Keycloaks have it in access tokens as well, and say what those are.
    """
    kind, use = claims.get("typ"), claims.get("token_use")
    named = kind.lower() if isinstance(kind, str) else ""
    if use == "id" or named in _KINDS_OF_OTHERS or not _OF_OTHERS.isdisjoint(claims):
        return False
    return "nonce" not in claims or use == "access" or named == "bearer"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _is_for(audience: object, wanted: Iterable[str]) -> bool:
    named = audience if isinstance(audience, list) else [audience]
    accepted = set(map(_spelled, wanted))
    return any(isinstance(one, str) and _spelled(one) in accepted for one in named)


def _spelled(audience: str) -> str:
    """Return a URL in its one spelling (Z-06), and a name as it is."""
    try:
        return canonical(audience) if "://" in audience else audience
    except ValueError:
        return audience


def _refused(reason: str) -> Refused:
    return Refused("invalid_token", f"The token does not count: {reason}")


def _object(part: str) -> Claims:
    found = json.loads(_decode(part), object_pairs_hook=_each_once, parse_constant=_no_number)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")  # which of them counts is anybody's guess (RFC 7519, 4)
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


def _decode(part: str) -> bytes:
    try:
        return urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error as error:
        raise ValueError(str(error)) from None
