"""Asks an authorization server: for its metadata, its keys, or what a token is worth (RFC 8414, 7517, 7662).

Each answer is bounded in time and size and comes from just the address that was asked: no redirect is
followed, no proxy of the environment is used, no cookie is kept. What goes wrong is told without the query of
an address, and without anything of a token.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias
from urllib.parse import quote_plus, urlsplit

import aiohttp
from aiohttp import hdrs

from gateway import config
from gateway.protocol.well_known import issuer_places
from gateway.support.metrics import Metrics
from gateway.support.trust import failed_check, trust

Question: TypeAlias = Literal["metadata", "keys", "introspection"]

LARGEST = 2**20
"""The most bytes of an answer."""
_CONNECTIONS = 64
"""What one address may ask at once (`limits.verifications_per_address`) leaves others half of them."""
WAITING = 256
"""The most questions about tokens that are under way or wait for a connection."""
_METADATA_TTL = 3600.0
_USER_AGENT = f"mcp-gateway/{config.VERSION}"


class IssuerDown(Exception):
    """An authorization server did not answer as it should; the text is for logs and holds no secret.

    `unasked` says that it was not even asked, and is not to blame.
    """

    def __init__(self, reason: str, *, retry_after: float = 1.0, unasked: bool = False) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.unasked = unasked


class _Absent(Exception):
    """There is nothing at this address."""


class Issuer:
    """One authorization server, as its settings have it."""

    def __init__(
        self, name: str, settings: config.TokenIssuer, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self.name = name
        self.settings = settings
        self._metrics = metrics
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        # Reading the system's certificates takes 50 ms, which plain http can do without.
        self._trust = trust(f"authentication.tokens.{name}.tls", settings.tls) if self._secure() else None
        self._jwks_url: tuple[str, float] | None = None
        self._turns = asyncio.Semaphore(_CONNECTIONS)
        self._waiting = 0

    def __repr__(self) -> str:
        return f"<Issuer {self.name}: {config.shown_url(self.settings.issuer)}>"

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()

    async def keys(self) -> object:
        """Return its JWKS, from where its metadata says unless that is set; raises IssuerDown."""
        async with _within(self.settings.timeout):
            try:
                return await self._ask("GET", self.settings.jwks_url or await self._found(), "keys")
            except BaseException as error:
                self._jwks_url = None
                if isinstance(error, _Absent):
                    raise IssuerDown("its keys are not where they should be") from None
                raise

    async def introspect(self, token: str) -> Mapping[str, object]:
        """Return what it says of a token; raises IssuerDown."""
        crowded = IssuerDown("too many questions wait for it", unasked=True)
        if self._waiting >= WAITING:
            raise crowded
        self._waiting += 1
        sent = False
        try:
            async with _within(self.settings.timeout), self._turns:
                sent = True
                return await self._asked(token)
        except IssuerDown as error:
            raise error if sent else crowded from None
        finally:
            self._waiting -= 1

    async def _asked(self, token: str) -> Mapping[str, object]:
        url = self.settings.introspection_url or ""
        headers = {}
        if self.settings.client_id is not None and self.settings.client_secret is not None:
            # RFC 6749, 2.3.1: both are form-encoded first.
            id, secret = self.settings.client_id, self.settings.client_secret.get_secret_value()
            headers[hdrs.AUTHORIZATION] = aiohttp.encode_basic_auth(quote_plus(id), quote_plus(secret))
        form = {"token": token, "token_type_hint": "access_token"}
        said = await self._ask("POST", url, "introspection", data=form, headers=headers)
        if not isinstance(said.get("active"), bool):
            raise IssuerDown("it does not say whether the token is active")
        return said

    async def _found(self) -> str:
        """Return where its keys are as its metadata says, which has to be about this very issuer."""
        if self._jwks_url is not None and self._jwks_url[1] > self._clock():
            return self._jwks_url[0]
        for url in issuer_places(self.settings.issuer):
            try:
                said = await self._ask("GET", url, "metadata")
            except _Absent:
                continue
            if said.get("issuer") != self.settings.issuer:
                raise IssuerDown("its metadata is about another issuer")
            jwks_url = said.get("jwks_uri")
            if not isinstance(jwks_url, str) or not self._may_be(jwks_url):
                raise IssuerDown("its metadata names no https address of its keys")
            self._jwks_url = jwks_url, self._clock() + _METADATA_TTL
            return jwks_url
        raise IssuerDown("it has no metadata; set jwks_url, or check issuer")

    def _may_be(self, url: str) -> bool:
        """Whether keys may come from there: in the clear only on this machine, with its issuer."""
        try:
            parts = urlsplit(url)
            if "@" in parts.netloc or not parts.hostname:
                return False
        except ValueError:
            return False
        if parts.scheme == "https":
            return True
        both_local = config.is_loopback(url) and config.is_loopback(self.settings.issuer)
        return parts.scheme == "http" and both_local

    async def _ask(self, verb: str, url: str, what: Question, **options: Any) -> Mapping[str, object]:
        """Return the JSON object that is answered; raises _Absent or IssuerDown, and counts."""
        outcome = "error"
        begun = self._clock()
        try:
            said = await self._exchange(verb, url, options)
            outcome = "ok"
            return said
        except _Absent:
            outcome = "absent"
            raise
        except asyncio.CancelledError:
            outcome = "timeout"
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise IssuerDown(f"{config.shown_url(url)}: {_said(error)}") from None
        finally:
            self._metrics.issuer_asked(self.name, what, outcome, self._clock() - begun)

    async def _exchange(self, verb: str, url: str, options: Mapping[str, Any]) -> Mapping[str, object]:
        session = self._opened()
        try:
            return await self._once(session, verb, url, options)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError):
            # It closed a connection that was kept open, just as it was used again.
            return await self._once(session, verb, url, options)

    async def _once(
        self, session: aiohttp.ClientSession, verb: str, url: str, options: Mapping[str, Any]
    ) -> Mapping[str, object]:
        async with session.request(verb, url, allow_redirects=False, **options) as answer:
            if answer.status in (404, 405, 410) and verb == "GET":
                raise _Absent
            if answer.status != 200:
                raise IssuerDown(f"{config.shown_url(url)}: HTTP status {answer.status}")
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > LARGEST:
                    raise IssuerDown(f"{config.shown_url(url)}: the answer is too large")
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            raise IssuerDown(f"{config.shown_url(url)}: the answer is no JSON") from None
        if not isinstance(said, dict):
            raise IssuerDown(f"{config.shown_url(url)}: the answer is no JSON object")
        return said

    def _secure(self) -> bool:
        urls = (self.settings.issuer, self.settings.jwks_url, self.settings.introspection_url)
        return any(url is not None and url.lower().startswith("https:") for url in urls)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=_CONNECTIONS, ssl=True if self._trust is None else self._trust
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                headers={
                    hdrs.ACCEPT: "application/json",
                    hdrs.ACCEPT_ENCODING: "identity",
                    hdrs.USER_AGENT: _USER_AGENT,
                },
                timeout=aiohttp.ClientTimeout(total=None),  # each question has its deadline
            )
        return self._session


@asynccontextmanager
async def _within(seconds: float) -> AsyncIterator[None]:
    """End what takes longer, as IssuerDown."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise IssuerDown(f"no answer within {seconds:g}s") from None


def _said(error: BaseException) -> str:
    """Return what went wrong on the way, without the address, which may hold a secret."""
    if (check := failed_check(error)) is not None:
        return f"no connection (TLS: {check})"
    match error:
        case aiohttp.ClientConnectorError():
            return f"no connection ({error.os_error.strerror or type(error.os_error).__name__})"
        case TimeoutError():
            return "no answer in time"
        case _:
            return f"no answer ({type(error).__name__})"
