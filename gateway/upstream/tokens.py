"""Access tokens for one upstream: the gateway's own, or one for each caller in exchange for his (RFC 8693).

A token is replaced before its end, while the old one is still shown; whoever needs one waits for the same
request. A token that the upstream refuses is replaced once at once, then ever more seldom.
"""

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from cachetools import LRUCache

from gateway import config
from gateway.protocol.call import Challenge, Reason, UpstreamName, UpstreamUnavailable
from gateway.support.tasks import Background
from gateway.upstream.challenges import Bearer
from gateway.upstream.discovery import scopes_of
from gateway.upstream.failures import NoToken
from gateway.upstream.granted import Token, ends_of
from gateway.upstream.issuing import AuthorizationServer, Rest
from gateway.upstream.retrying import Pace
from gateway.upstream.slots import turn

_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_TYPE = "urn:ietf:params:oauth:token-type:"
_UNSAID = 300.0
"""How long a caller's token is used that says no lifetime, in seconds."""
_REPLACING = Pace(first=1.0, longest=60.0)
_LASTED = 60.0
"""A token that was taken for so long was none of those that are refused at once."""
_MOST_SCOPES = 64
_NARROW = 60.0
"""How long nothing wider is asked for after that was refused, in seconds."""

Ask: TypeAlias = Callable[[Sequence[str] | None], Awaitable[Token]]
"""Gets a token, with these scopes."""


class Tokens(Protocol):
    """Where the token comes from that one request is sent with."""

    async def shown(self, authorization: str | None) -> str | None:
        """Return the token for the caller with this Authorization, None to show none.

        Raises NoToken, or Challenge where the caller has to do something about it.
        """
        ...

    async def instead(self, authorization: str | None, refused: str | None, bearer: Bearer) -> str | None:
        """Return the token to try after this one was refused so, None where no other would do better."""
        ...

    def current(self, authorization: str | None) -> str | None:
        """Return the token that is shown now, if there is one."""
        ...

    async def close(self) -> None: ...


class Slot:
    """One token at a time, and one request for it."""

    def __init__(
        self,
        name: UpstreamName,
        background: Background,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._name = name
        self._background = background
        self._clock = clock
        self._rest = Rest(clock, random)
        self._token: Token | None = None
        self._got_at = 0.0
        self._refusals = 0
        self._scopes: tuple[str, ...] | None = None
        """What is asked for since less was too little."""
        self._narrow_until = 0.0
        self._getting: asyncio.Task[UpstreamUnavailable | Challenge | None] | None = None

    def __repr__(self) -> str:
        use = "empty" if self._token is None else self._token.use(self._clock())
        return f"<Slot of {self._name}: {use}{', asking' if self._getting else ''}>"

    @property
    def text(self) -> str | None:
        """The token, whatever it is still worth."""
        return None if self._token is None else self._token.text

    async def get(self, ask: Ask) -> str:
        """Return the token, which is got if there is none that is good."""
        token, use = self._token, "over" if self._token is None else self._token.use(self._clock())
        if token is not None and use != "over":
            if use == "renew":
                self._start(ask)  # nobody waits for it: the old one still counts
            return token.text
        return await self._new(ask)

    async def another(self, ask: Ask, refused: str | None) -> str | None:
        """Return what to show instead of a token that was refused, None where that would be too soon."""
        token = self._token
        if token is not None and token.text != refused:
            return token.text  # somebody else was refused before, and got it
        now = self._clock()
        if token is not None and refused is not None:
            lasted = now - self._got_at
            if lasted >= _LASTED:
                self._refusals = 0
            elif self._refusals and lasted < _REPLACING.pause(self._refusals, 0.0):
                return None
            self._refusals += 1
            self._token = None
        text = await self._new(ask)
        return None if text == refused else text  # some servers give out the same one again

    async def wider(self, ask: Ask, refused: str | None, scopes: Sequence[str]) -> str | None:
        """Return a token with these scopes as well, None where it has them, or they are not to be had."""
        while self._getting is not None:
            await asyncio.shield(self._getting)
        token = self._token
        if token is not None and token.text != refused and set(scopes) <= set(token.scopes):
            return token.text
        asked = () if token is None else token.scopes
        wanted = tuple(dict.fromkeys((*asked, *scopes)))[:_MOST_SCOPES]
        if wanted == asked or self._clock() < self._narrow_until:
            return None
        failure = await asyncio.shield(self._run(ask, wanted))
        if failure is not None or self._token is None:
            self._narrow_until = self._clock() + _NARROW  # and what is there is used on
            return None
        self._scopes = wanted
        return self._token.text

    async def _new(self, ask: Ask) -> str:
        failure = await asyncio.shield(self._start(ask))
        if failure is not None:
            raise failure.again() if isinstance(failure, NoToken) else failure
        assert self._token is not None
        return self._token.text

    def _start(self, ask: Ask) -> "asyncio.Task[UpstreamUnavailable | Challenge | None]":
        return self._getting or self._run(ask, self._scopes)

    def _run(
        self, ask: Ask, scopes: Sequence[str] | None
    ) -> "asyncio.Task[UpstreamUnavailable | Challenge | None]":
        # Whoever leaves, leaves it to the others.
        self._getting = self._background.start(
            self._got(ask, scopes), name=f"get an access token for {self._name}"
        )
        return self._getting

    async def _got(self, ask: Ask, scopes: Sequence[str] | None) -> UpstreamUnavailable | Challenge | None:
        """Get a token, and return why there is none, for whoever waits for it."""
        try:
            if scopes == self._scopes and (failure := self._rest.standing()) is not None:
                return failure
            self._token = await ask(scopes)
            self._got_at = self._clock()
            self._rest.over()
            return None
        except NoToken as failure:
            if not failure.general and scopes == self._scopes:
                self._rest.failed(failure)
            return failure
        except (UpstreamUnavailable, Challenge) as failure:
            return failure
        except asyncio.CancelledError:  # as the gateway stops: nobody else has this task
            return UpstreamUnavailable(self._name, Reason.STOPPING)
        finally:
            self._getting = None


class OwnTokens:
    """The token that the gateway is given for itself, for every caller alike."""

    def __init__(
        self,
        name: UpstreamName,
        client: config.TokenClient,
        server: AuthorizationServer,
        *,
        background: Background,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._fixed = bool(client.scopes)
        self._server = server
        self._slot = Slot(name, background, clock, random)

    def __repr__(self) -> str:
        return f"<OwnTokens {self._slot!r} {self._server!r}>"

    async def shown(self, authorization: str | None) -> str | None:
        """Return the token; None as long as nobody says who gives it out, which a refusal may yet do."""
        try:
            return await self._slot.get(self._ask)
        except NoToken as failure:
            if failure.nowhere:
                return None
            raise

    async def instead(self, authorization: str | None, refused: str | None, bearer: Bearer) -> str | None:
        """Return another token: a new one, or one with more scopes where the operator named none."""
        return await instead(self._slot, self._ask, self._server, refused, bearer, fixed=self._fixed)

    def current(self, authorization: str | None) -> str | None:
        """Return the token that is shown now, if there is one."""
        return self._slot.text

    async def close(self) -> None:
        """Close every connection."""
        await self._server.close()

    async def _ask(self, scopes: Sequence[str] | None) -> Token:
        return await self._server.token({"grant_type": "client_credentials"}, scopes)


class CallersTokens:
    """A token for each caller; the callers' own are not kept, and go to the authorization server alone."""

    def __init__(
        self,
        name: UpstreamName,
        exchange: config.TokenExchange,
        server: AuthorizationServer,
        *,
        background: Background,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._name = name
        self._server = server
        self._background = background
        self._clock = clock
        self._wall_clock = wall_clock
        self._random = random
        self._fixed = bool(exchange.scopes)
        self._grant = {
            "grant_type": _EXCHANGE,
            "subject_token_type": _TYPE + exchange.subject_token_type,
            "requested_token_type": f"{_TYPE}access_token",
        }
        if exchange.audience is not None:
            self._grant["audience"] = exchange.audience
        self._secret = os.urandom(32)
        self._slots: LRUCache[bytes, Slot] = LRUCache(exchange.remembered)

    def __repr__(self) -> str:
        return f"<CallersTokens {self._name}: {len(self._slots)} callers, {self._server!r}>"

    async def shown(self, authorization: str | None) -> str | None:
        """Return what is shown for this caller, None for one without a token."""
        token = bearer_of(authorization)
        return None if token is None else await self._slot(token).get(self._asking(token))

    async def instead(self, authorization: str | None, refused: str | None, bearer: Bearer) -> str | None:
        """Return another token for the same caller."""
        token = bearer_of(authorization)
        if token is None:
            return None
        slot, ask = self._slot(token), self._asking(token)
        return await instead(slot, ask, self._server, refused, bearer, fixed=self._fixed)

    def current(self, authorization: str | None) -> str | None:
        """Return the token that is shown for this caller now, if there is one."""
        token = bearer_of(authorization)
        slot = None if token is None else self._slots.get(self._key(token))
        return None if slot is None else slot.text

    async def close(self) -> None:
        """Close every connection."""
        await self._server.close()

    def _key(self, token: str) -> bytes:
        return hashlib.blake2b(token.encode(), key=self._secret, digest_size=16).digest()

    def _slot(self, token: str) -> Slot:
        key = self._key(token)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = Slot(self._name, self._background, self._clock, self._random)
        return slot

    def _asking(self, token: str) -> Ask:
        async def ask(scopes: Sequence[str] | None) -> Token:
            ends, expires = None, ends_of(token)
            if expires is not None:
                left = expires - self._wall_clock()
                if left <= 0:
                    raise Challenge(self._name, 401, "invalid_token", None)
                ends = self._clock() + left
            grant = {**self._grant, "subject_token": token}
            call = turn.get()
            # A caller may have many tokens; where nobody verified one, it tells callers apart itself.
            whose = call.caller if call is not None and call.caller else self._key(token).hex()
            return await self._server.token(grant, scopes, ends=ends, unsaid=_UNSAID, whose=whose)

        return ask


async def instead(
    slot: Slot, ask: Ask, server: AuthorizationServer, refused: str | None, bearer: Bearer, *, fixed: bool
) -> str | None:
    """Return what to show after a refusal; `fixed` where nothing may be asked for beyond what is written."""
    scopes = scopes_of(bearer.scope)
    if bearer.error == "insufficient_scope":
        return None if fixed or not scopes else await slot.wider(ask, refused, scopes)
    server.hear(bearer.metadata, scopes)
    return await slot.another(ask, refused)


def bearer_of(authorization: str | None) -> str | None:
    """Return the token in an Authorization header, None where it holds none."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
