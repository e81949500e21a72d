"""Keeps the keys that an authorization server signs with: fetched once for all who wait, and renewed in time.

A token that names a key nobody knows is reason to look again, but not for every such token. While the server
is out of reach its old keys go on for a while; a key that it takes back counts no longer than `ttl`.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import get_default_algorithms
from jwt.exceptions import PyJWTError

from gateway.front.admission import Places, no_bound
from gateway.front.issuers import IssuerDown
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

LOOK_AGAIN = 3.0
"""The least seconds between two looks for keys that nobody knows."""
GRACE = 3600.0
"""How long keys go on after their time while they cannot be fetched."""
_RESTS = (0.5, 1.0, 2.0, 5.0)
"""Seconds in which a server that failed is not asked for its keys again."""
_EARLY = 0.75
"""The part of their time after which keys are renewed while they still count."""
_MOST = 100
"""Keys of one server that are looked at."""
_TRIED = 8
"""Keys that one signature is held against."""
_RSA_BITS = range(2048, 8193)

_FAMILIES: Mapping[str, tuple[str, str | None]] = {
    **{f"{kind}{bits}": ("RSA", None) for kind in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", None),
}
"""What sort of key an algorithm takes: a key is never used for another (RFC 8725, 3.1)."""
_ALGORITHMS = get_default_algorithms()


@dataclass(frozen=True, slots=True)
class Key:
    """One published key; `fits` are the algorithms it may be used with."""

    kid: str | None
    fits: frozenset[str]
    public: Any = field(repr=False, compare=False)
    numbers: tuple[object, ...] = field(repr=False)
    """What makes it another key than one of the same name."""

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Whether this key's owner signed that."""
        return algorithm in self.fits and bool(_ALGORITHMS[algorithm].verify(signed, self.public, signature))


def read_keys(document: object) -> tuple[Key, ...]:
    """Return the keys of a JWKS that signatures can be verified with; raises ValueError for what is none."""
    listed = document.get("keys") if isinstance(document, Mapping) else None
    if not isinstance(listed, list):
        raise ValueError("it has no list of keys")
    return tuple(key for key in map(_read_key, listed[:_MOST]) if key is not None)


def fitting(keys: Sequence[Key], kid: str | None, algorithm: str) -> tuple[Key, ...]:
    """Return the keys that may have made a signature: those of that name, or any where none is named."""
    found = (key for key in keys if algorithm in key.fits and (kid is None or key.kid == kid))
    return tuple(found)[:_TRIED]


def _read_key(said: object) -> Key | None:
    """Return a key, None for one that signs no tokens or that is not fit to."""
    if not isinstance(said, Mapping) or said.get("use", "sig") != "sig":
        return None
    uses = said.get("key_ops", ["verify"])
    if not isinstance(uses, list) or "verify" not in uses or "d" in said:
        return None  # a private key that is published proves nothing
    kid, alg = said.get("kid"), said.get("alg")
    fits = frozenset(
        name
        for name, (kind, curve) in _FAMILIES.items()
        if said.get("kty") == kind and curve in (None, said.get("crv")) and alg in (None, name)
    )
    if not fits or not (kid is None or isinstance(kid, str)):
        return None
    try:
        public = _ALGORITHMS[min(fits)].from_jwk(dict(said))
    except (PyJWTError, ValueError, TypeError, KeyError, AttributeError, UnsupportedAlgorithm):
        return None
    if isinstance(public, rsa.RSAPublicKey) and public.key_size not in _RSA_BITS:
        return None
    return Key(kid, fits, public, tuple(said.get(name) for name in ("kty", "crv", "x", "y", "n", "e")))


class KeySet:
    """The keys of one authorization server; `fetch` returns its JWKS or raises IssuerDown."""

    def __init__(
        self,
        name: str,
        fetch: Callable[[], Awaitable[object]],
        *,
        ttl: float,
        background: Background,
        clock: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._fetch = fetch
        self._ttl = ttl
        self._background = background
        self._clock = clock
        self._changed = changed
        self._keys: tuple[Key, ...] = ()
        self._fetched: float | None = None
        self._looked = -math.inf
        self._failures = 0
        self._rests_until = 0.0
        self._under_way: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<KeySet {self._name}: {len(self._keys)} keys, {self._failures} failures>"

    @property
    def status(self) -> Mapping[str, object]:
        """How many keys there are, and whether they could be fetched when that was last tried."""
        return {"keys": len(self._keys), "answers": not self._failures}

    def adopt(self, other: "KeySet") -> None:
        """Begin with the keys that another one has fetched from the same server."""
        self._keys, self._fetched = other._keys, other._fetched

    def warm(self) -> None:
        """Fetch the keys before anybody waits for them."""
        if self._fetched is None:
            self._begin()

    async def keys(self, kid: str | None, algorithm: str, places: Places = no_bound) -> tuple[Key, ...]:
        """Return the keys that may have made a signature; raises IssuerDown when that cannot be said.

        Whoever has to wait takes a place, here and below; raises Crowded where there is none.
        """
        await self._renewed(places)
        return fitting(self._keys, kid, algorithm)

    async def look_again(
        self, kid: str | None, algorithm: str, places: Places = no_bound
    ) -> tuple[tuple[Key, ...], bool]:
        """Return the keys because what is known does not do, and whether they are what they are by now.

        Keys that were looked for a moment ago are not looked for again: whoever makes up names would keep
        the server busy. Raises IssuerDown when nobody can say.
        """
        now = self._clock()
        begins = self._under_way is None and now - self._looked >= LOOK_AGAIN
        if begins:
            self._looked = now
        if begins or self._under_way is not None:
            await self._refreshed(places)
        return fitting(self._keys, kid, algorithm), begins

    @property
    def age(self) -> float:
        """How long ago the keys were fetched."""
        return math.inf if self._fetched is None else self._clock() - self._fetched

    @property
    def rest(self) -> float:
        """In how many seconds they may be looked for again."""
        return max(0.0, self._looked + LOOK_AGAIN - self._clock())

    async def _renewed(self, places: Places) -> None:
        """Make sure that there are keys, and that their time is not over."""
        age = self.age
        if age < self._ttl * _EARLY:
            return
        if age < self._ttl or (self._failures and age < self._ttl + GRACE):
            if self._clock() >= self._rests_until:
                self._begin()
            return
        try:
            await self._refreshed(places)
        except IssuerDown:
            if age >= self._ttl + GRACE:
                raise

    async def _refreshed(self, places: Places) -> None:
        """Fetch the keys, or wait for whoever does; raises IssuerDown."""
        if self._under_way is None and self._clock() < self._rests_until:
            raise IssuerDown("it failed a moment ago", retry_after=self._rests_until - self._clock())
        leave = places()
        task = self._begin()
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            raise IssuerDown("the gateway is stopping") from None
        finally:
            leave()
        if self._failures:
            raise IssuerDown("its keys cannot be fetched", retry_after=_RESTS[0])

    def _begin(self) -> asyncio.Task[None]:
        if self._under_way is None:
            self._under_way = self._background.start(self._take(), name=f"keys of {self._name}")
        return self._under_way

    async def _take(self) -> None:
        """Fetch once, and keep what came; a failure is counted and waited out."""
        try:
            keys = read_keys(await self._fetch())
            if not keys:
                raise ValueError("none of its keys is fit to verify a token")
        except (IssuerDown, ValueError) as error:
            if not self._failures:
                log.warning("issuer %s: its keys cannot be fetched: %s", self._name, error)
            self._rests_until = self._clock() + _RESTS[min(self._failures, len(_RESTS) - 1)]
            self._failures += 1
        else:
            if self._failures:
                log.info("issuer %s: its keys can be fetched again", self._name)
            self._failures, self._rests_until = 0, 0.0
            gone = set(self._keys) - set(keys)
            self._keys, self._fetched = keys, self._clock()
            if gone:
                self._changed()
        finally:
            self._under_way = None
