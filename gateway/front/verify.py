"""Says whom a credential proves: a signed token, one that its issuer is asked about, or an API key.

What was verified is remembered under a keyed hash for as long as it may count, so that most requests wait for
nothing: `known` answers those, `verify` all others.
"""

import asyncio
import hmac
import math
import re
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from gateway import config
from gateway.front.admission import Places, no_bound
from gateway.front.issuers import Issuer
from gateway.front.proving import Asked, Examined, Signed
from gateway.front.tokens import LONGEST, Proof, Refused, Token, read
from gateway.protocol.call import Partition, Principal
from gateway.support.metrics import Metrics
from gateway.support.seal import Seal
from gateway.support.tasks import Background

Verdict: TypeAlias = Principal | Refused

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What RFC 6750 lets a bearer token be made of."""
_NO_BEARER = Refused("invalid_token", "The credential does not count: expected Authorization: Bearer")
_NO_TOKEN = Refused("invalid_request", "The Authorization header holds no token behind Bearer")
_TOO_LONG = Refused("invalid_request", "The token is too long")
_NO_KEY = Refused("invalid_token", "The key does not count: nobody has it")
_KEY_IS_OVER = Refused("invalid_token", "The key does not count: it has expired")
_CERTIFICATE_IS_OVER = Refused("invalid_token", "The certificate does not count: it has expired")
_UNSIGNED = Refused("invalid_token", "The token does not count: it is no signed token")
_UNKNOWN_ISSUER = Refused("invalid_token", "The token does not count: it is of another issuer")


class _Remembered(NamedTuple):
    verdict: Verdict
    until: float


def subject_of(seal: Seal, id: str) -> Partition:
    """Return the keyed hash that stands for a caller, whatever proves who it is.

    No header holds a NUL: the hash of no credential is one.
    """
    return seal.partition(f"\0id {id}")


class Verifier:
    """Verifies credentials as one configuration wants it."""

    def __init__(
        self,
        settings: config.Authentication,
        seal: Seal,
        background: Background,
        metrics: Metrics,
        now: Callable[[], float] = time.time,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._seal = seal
        self._background = background
        self._metrics = metrics
        self._now = now
        self._clock = clock
        self._keys = [(name, key, bytes.fromhex(key.hash[7:])) for name, key in settings.keys.items()]
        self._issuers: dict[str, Asked | Signed] = {}
        """By what stands in `iss`, as it stands there."""
        for name, one in settings.tokens.items():
            issuer = Issuer(name, one, metrics, clock)
            if one.introspection_url is None:
                self._issuers[one.issuer] = Signed(issuer, background, clock, self._forget)
            else:
                self._issuers[one.issuer] = Asked(issuer, background, clock)
        self._known: dict[tuple[Partition, str], _Remembered] = {}
        self._refused: dict[tuple[Partition, str], _Remembered] = {}

    def __repr__(self) -> str:
        known = f"{len(self._known)} known, {len(self._refused)} refused"
        return f"<Verifier {len(self._keys)} keys, {list(self._issuers.values())}, {known}>"

    def adopt(self, other: "Verifier") -> None:
        """Go on with the keys that another verifier has fetched from the same issuers."""
        for url, issuer in self._issuers.items():
            match issuer, other._issuers.get(url):
                case Signed(), Signed() as before if before.issuer.settings == issuer.issuer.settings:
                    issuer.keys.adopt(before.keys)

    def warm(self) -> None:
        """Fetch the keys of all issuers, so that the first request finds them."""
        for issuer in self._issuers.values():
            if isinstance(issuer, Signed):
                issuer.keys.warm()

    @property
    def status(self) -> Mapping[str, object]:
        """What operators see of the issuers, and how many credentials are remembered."""
        issuers = {issuer.name: issuer.status for issuer in self._issuers.values()}
        most = self._settings.remembered
        return {"issuers": issuers, "known": len(self._known), "refused": len(self._refused), "most": most}

    async def examine(self) -> list[Examined]:
        """Ask every issuer what a verification would, and return what an operator should know."""
        return list(await asyncio.gather(*(issuer.examine() for issuer in self._issuers.values())))

    async def close(self) -> None:
        """Close the connections to all issuers."""
        for issuer in self._issuers.values():
            await issuer.issuer.close()

    def known(self, credential: str, resource: str) -> Verdict | None:
        """Return what is remembered of an Authorization header, None when it has to be verified."""
        name = self._seal.partition(credential), resource
        found = self._known.get(name) or self._refused.get(name)
        if found is None or found.until <= self._clock():
            return None
        verdict = found.verdict
        if isinstance(verdict, Principal) and verdict.expires is not None and verdict.expires <= self._now():
            return None
        return verdict

    async def verify(self, credential: str, resource: str, places: Places = no_bound) -> Verdict:
        """Return who shows an Authorization header, for one of our endpoints by its canonical URL.

        What has to wait for an issuer takes a place; raises Crowded where there is none.
        """
        scheme, _, value = credential.partition(" ")
        value = value.strip(" ")
        if scheme.lower() != "bearer":
            return self._counted("none", _NO_BEARER)
        if len(value) > LONGEST:
            return self._counted("none", _TOO_LONG)
        holder = self._holder(value)
        if holder is not None:
            return self._key(credential, resource, *holder)
        if not _TOKEN.fullmatch(value):
            return self._counted("none", _NO_TOKEN)
        # A key that is not known here may be one elsewhere: no issuer is asked about it.
        if not self._issuers or value.startswith(config.KEY_PREFIX):
            return self._counted("none", _NO_KEY)
        return await self._token(credential, value, resource, places)

    def key(self, value: str) -> Verdict:
        """Return who holds an API key that came in a header of its own."""
        holder = self._holder(value)
        if holder is None:
            return self._counted("key", _NO_KEY)
        verdict = self._of_key(f"Bearer {value}", *holder)
        return self._counted("key", verdict)

    def certificate(self, name: str, expires: float | None = None) -> Verdict:
        """Return who shows a certificate of this name, which somebody else has verified.

        It was good then: a connection, or what a proxy kept of one, may have outlived it.
        """
        if expires is not None and expires <= self._now():
            return self._counted("cert", _CERTIFICATE_IS_OVER)
        id = f"cert:{name}"
        subject = subject_of(self._seal, id)
        return Principal(
            subject,
            id=id,
            subject=subject,
            expires=expires,
            scopes=self._settings.granted(self._settings.certificates.scopes),
        )

    # API keys

    def _holder(self, value: str) -> tuple[str, config.ApiKey] | None:
        """Return whose key that is; all are compared, so that the time it takes tells nothing."""
        shown = sha256(value.encode("utf-8", "surrogatepass")).digest()
        found = None
        for name, key, digest in self._keys:
            if hmac.compare_digest(shown, digest):
                found = name, key
        return found

    def _key(self, credential: str, resource: str, name: str, key: config.ApiKey) -> Verdict:
        # It proves who somebody is to us alone: no upstream is shown it, whatever it is told of its callers.
        verdict = self._of_key(credential, name, key)
        if isinstance(verdict, Principal):
            self._remember(self._known, credential, resource, verdict, math.inf)
        return self._counted("key", verdict)

    def _of_key(self, hashed: str, name: str, key: config.ApiKey) -> Verdict:
        if key.expires is not None and key.expires <= self._now():
            return _KEY_IS_OVER
        return self._principal(
            f"key:{name}", hashed, None, key.expires, self._settings.granted(key.scopes), {}
        )

    # Tokens

    async def _token(self, credential: str, value: str, resource: str, places: Places) -> Verdict:
        token = read(value)
        candidates = self._candidates(token)
        if isinstance(candidates, Refused):
            return self._counted("none", candidates)
        refusals: list[Refused] = []
        for issuer in candidates:
            hashed = self._seal.partition(credential)
            found = await issuer.prove(value, token, hashed, resource, self._now, places)
            if isinstance(found, Proof):
                verdict = self._of_proof(credential, issuer.name, found)
                self._remember(self._known, credential, resource, verdict, issuer.remember)
                return self._counted(issuer.name, verdict)
            refusals.append(found)
        # Where one could not tell, the word of the others is not the last.
        refused = max(refusals, key=lambda one: one.error == "unavailable")
        if refused.error == "invalid_token" and candidates[0].asks:
            # A question costs the issuer something; a signature costs only us, and keys may come.
            least = min(issuer.remember for issuer in candidates)
            self._remember(self._refused, credential, resource, refused, least)
        return self._counted(candidates[0].name if len(candidates) == 1 else "none", refused)

    def _of_proof(self, credential: str, issuer: str, proof: Proof) -> Principal:
        id, scopes = f"{issuer}:{proof.subject}", self._settings.granted(proof.scopes)
        return self._principal(id, credential, credential, proof.expires, scopes, proof.claims)

    def _candidates(self, token: Token | None) -> "list[Asked | Signed] | Refused":
        """Return the issuers that may know a token; what it says of itself only leads to who can tell.

        A token that names its issuer is shown to nobody else.
        """
        named = None if token is None else token.claims.get("iss")
        if named is not None:
            issuer = self._issuers.get(named) if isinstance(named, str) else None
            return _UNKNOWN_ISSUER if issuer is None else [issuer]
        return [issuer for issuer in self._issuers.values() if issuer.asks] or _UNSIGNED

    def _principal(
        self,
        id: str,
        hashed: str,
        authorization: str | None,
        expires: float | None,
        scopes: frozenset[str],
        claims: Mapping[str, object],
    ) -> Principal:
        return Principal(
            self._seal.partition(hashed),
            authorization,
            expires,
            id=id,
            subject=subject_of(self._seal, id),
            scopes=scopes,
            claims=claims,
        )

    def _remember(
        self,
        memory: dict[tuple[Partition, str], _Remembered],
        credential: str,
        resource: str,
        verdict: Verdict,
        seconds: float,
    ) -> None:
        """Keep a verdict; the oldest one makes room."""
        if seconds <= 0:
            return
        name = self._seal.partition(credential), resource
        self._known.pop(name, None)
        self._refused.pop(name, None)
        if len(memory) >= self._settings.remembered:
            del memory[next(iter(memory))]
        memory[name] = _Remembered(verdict, self._clock() + seconds)

    def _forget(self) -> None:
        """Verify everybody anew: an issuer has taken a key back."""
        self._known.clear()

    def _counted(self, source: str, verdict: Verdict) -> Verdict:
        match verdict:
            case Principal():
                outcome = "ok"
            case Refused("unavailable"):
                outcome = "unavailable"
            case _:
                outcome = "refused"
        self._metrics.verified(source, outcome)
        return verdict
