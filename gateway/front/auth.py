"""Finds out who calls, from the headers and the connection alone, before anything of the body is read.

Only where `authentication` says how, anything is verified. Otherwise a token names a partition of the cache
and no more (Z-18): it is hashed here and compared nowhere else.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import TypeAlias

from aiohttp import hdrs
from msgspec import Struct
from multidict import MultiMapping

from gateway import config
from gateway.front.admission import Places, no_bound
from gateway.front.certificates import Named, Unknown, certificate_name
from gateway.front.challenges import Denied
from gateway.front.tokens import Refused
from gateway.front.verify import Verdict, Verifier
from gateway.protocol.call import Principal
from gateway.protocol.modern import Rejection
from gateway.support.seal import Seal

log = logging.getLogger(__name__)

ANONYMOUS = Principal()

_NAMELESS = Principal(id="anonymous")
_VISIBLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_AT_LEAST = 1.0

_STRANGER = Denied(401, "unauthenticated", "This takes a credential")
_OTHER_NAME = Denied(401, "certificate", "The certificate does not count: its name is none of those let in")
_NAMES_NOBODY = Denied(401, "certificate", "The certificate does not count: it names nobody")
_SEVERAL = Denied(400, "authorization", "there is more than one credential", error="invalid_request")
_LATE = Denied(
    503, "issuer", "Whether the credential counts cannot be said now, try again later", retry_after=_AT_LEAST
)

Came: TypeAlias = Principal | Denied


class Knock(Struct, frozen=True):
    """What is looked at of a request, to say who sent it to which endpoint."""

    headers: MultiMapping[str]
    resource: str
    """The endpoint's canonical URL."""
    trusted: bool = False
    """Whether it came over one of the trusted proxies."""
    shown: Callable[[], bytes | None] = lambda: None
    """Returns the certificate that was shown in the handshake, in DER."""


class Authenticator:
    """Knows all the ways in which callers of one configuration prove who they are."""

    def __init__(self, settings: config.Config, seal: Seal, verifier: Verifier | None) -> None:
        """Without a `verifier` everybody is let in."""
        self._settings = settings.authentication
        self._seal = seal
        self._verifier = verifier
        self._needed = frozenset(self._settings.scopes)
        timeouts = [issuer.timeout for issuer in self._settings.tokens.values()]
        self._patience = 2 * max(timeouts, default=_AT_LEAST)
        """What it may take to find out where an issuer's keys are, and to fetch them."""

    def __repr__(self) -> str:
        return f"<Authenticator {self._verifier or 'off'}>"

    def known(self, knock: Knock) -> Came | None:
        """Return who knocks, if that can be said without asking anybody; None where `identify` may."""
        if self._verifier is None:
            return identify(knock.headers, self._seal)
        credential = credential_of(knock.headers)
        if isinstance(credential, Denied):
            return credential
        if self._settings.key_header is not None:
            key = self._key(self._settings.key_header, knock, credential)
            if key is not None:
                return key
        if credential is None:
            return self._certified(knock)
        verdict = self._verifier.known(credential, knock.resource)
        return None if verdict is None else self._judged(verdict)

    async def identify(self, knock: Knock, places: Places = no_bound) -> Came:
        """Return who knocks, and why he may not come in otherwise; raises Crowded."""
        known = self.known(knock)
        if known is not None:
            return known
        assert self._verifier is not None  # or all would be known
        credential = credential_of(knock.headers)
        assert isinstance(credential, str)  # as above
        try:
            async with asyncio.timeout(self._patience):
                verdict = await self._verifier.verify(credential, knock.resource, places)
        except TimeoutError:
            return _LATE
        return self._judged(verdict)

    def _key(self, header: str, knock: Knock, credential: str | None) -> Came | None:
        """Return whose key comes in the header that is for them, None where there is none."""
        assert self._verifier is not None
        keys = [key for line in knock.headers.getall(header, ()) if (key := line.strip(" \t"))]
        if not keys:
            return None
        # Which of two credentials another server would believe is anybody's guess (RFC 6750, 2).
        return (
            _SEVERAL if len(keys) > 1 or credential is not None else self._judged(self._verifier.key(keys[0]))
        )

    def _certified(self, knock: Knock) -> Came:
        """Return whose certificate was shown; without one it is nobody."""
        assert self._verifier is not None
        settings = self._settings.certificates
        if settings.source is not None:
            shown = knock.shown() if settings.source == "tls" else None
            named = certificate_name(settings, knock.headers, trusted=knock.trusted, shown=shown)
            if isinstance(named, Rejection):
                return _malformed("" if named.error is None else named.error.message)
            if isinstance(named, Named):
                return self._judged(self._verifier.certificate(named.name, named.expires))
            if named is not None:
                log.debug("A certificate lets nobody in: %s", _reason(named))
                if not self._settings.anonymous:
                    return _NAMES_NOBODY if named.name is None else _OTHER_NAME
        return _NAMELESS if self._settings.anonymous else _STRANGER

    def _judged(self, verdict: Verdict) -> Came:
        match verdict:
            case Principal():
                pass
            case Refused("unavailable", reason, retry_after):
                return Denied(503, "issuer", reason, retry_after=max(_AT_LEAST, retry_after))
            case Refused("invalid_request", reason):
                return Denied(400, "authorization", reason, error="invalid_request")
            case Refused(_, reason):
                return Denied(401, "token", reason, error="invalid_token")
        if self._needed and not self._needed <= verdict.scopes and self._is_of_token(verdict):
            return Denied(
                403, "scope", "The token lacks a scope that every request takes", "insufficient_scope"
            )
        return verdict

    def _is_of_token(self, principal: Principal) -> bool:
        return principal.id.partition(":")[0] in self._settings.tokens


def identify(headers: MultiMapping[str], seal: Seal) -> Came:
    """Return the caller where nothing is verified, or why the credential is no credential at all (Z-04)."""
    credential = credential_of(headers)
    if isinstance(credential, Denied):
        return credential
    return ANONYMOUS if credential is None else Principal(seal.partition(credential), credential)


def credential_of(headers: MultiMapping[str]) -> str | Denied | None:
    """Return what stands in the Authorization header, None where there is none, or an empty one.

    Two of them are refused: which of them an upstream would believe is anybody's guess.
    """
    lines = headers.getall(hdrs.AUTHORIZATION, ())
    if not lines:
        return None
    credential = lines[0].strip(" \t")
    if len(lines) > 1:
        return _malformed("there is more than one Authorization header")
    if not credential:
        return None
    if not _VISIBLE.fullmatch(credential):
        return _malformed("the Authorization header holds a character that has no place there")
    return credential


def _reason(unknown: Unknown) -> str:
    """Return why, for the operator, who may see whose it is."""
    if unknown.name is None:
        return "it says no name"
    return f"{unknown.name} matches none of authentication.certificates.names"


def _malformed(reason: str) -> Denied:
    return Denied(400, "authorization", reason, error="invalid_request")
