"""Asks one upstream of a running pool, bounded, and says in words what came of it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.core.audit import Given, Outcome, Refused, Silent
from gateway.core.lists import Page, parse_page
from gateway.protocol.call import Challenge, Principal, Reason, Request, UpstreamName, UpstreamUnavailable
from gateway.protocol.jsonrpc import Json, Malformed, McpError, encode
from gateway.protocol.methods import METHODS
from gateway.protocol.subscriptions import Wanted
from gateway.runtime import Runtime

FORBIDDEN = "HTTP 403"
NO_TOKEN = "no access token: "


@dataclass(frozen=True, slots=True)
class Token:
    """A caller to ask as: what a report calls it, and the header, which no report holds."""

    name: str
    authorization: str | None

    def __repr__(self) -> str:
        return f"<Token {self.name}>"


NOBODY = Token("a caller without a token", None)


class Asker:
    """Asks on behalf of callers; a token goes where `auth` says so, and nowhere else (Z-09)."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __repr__(self) -> str:
        return f"<Asker {self._runtime.pool!r}>"

    def forwards(self, name: UpstreamName) -> bool:
        """Whether an upstream is shown who calls."""
        return self._runtime.config.upstreams[name].auth.personal

    async def ask(
        self, name: UpstreamName, method: str, token: Token, params: Mapping[str, Json] | None = None
    ) -> Outcome:
        """Return what one upstream answers, within the time that a client's request would have."""
        upstream = self._runtime.config.upstreams[name]
        limit = upstream.list_timeout if METHODS[method].kind in ("list", "discover") else upstream.timeout
        principal = Principal(authorization=token.authorization)
        request = Request(
            method, params or {}, authorization=self._runtime.catalogue.forwarded(name, principal)
        )
        try:
            async with asyncio.timeout(limit):
                reply = await self._runtime.pool.call(name, request)
        except TimeoutError:
            which = "list_timeout" if limit == upstream.list_timeout else "timeout"
            return Silent(f"no answer in time, its {which} is {limit:g}s")
        except Challenge as error:
            return Refused(f"HTTP {error.status}")
        except McpError as error:
            return Refused(f"error {error.code}")
        except UpstreamUnavailable as error:
            if error.reason is Reason.TOKEN:
                return Refused(f"{NO_TOKEN}{error.detail}")
            if error.reason is Reason.CREDENTIALS:
                return Refused(error.detail or error.reason.value)
            return Silent(f"{error.reason.value}{f' ({error.detail})' if error.detail else ''}")
        return Given((bytes(reply.result),))

    @asynccontextmanager
    async def listen(self, name: UpstreamName, wanted: Wanted, token: Token) -> AsyncIterator[Wanted]:
        """Hold a subscription open, and give what of it was granted; raises as the pool does."""
        forwarded = self._runtime.catalogue.forwarded(name, Principal(authorization=token.authorization))
        async with self._runtime.pool.listen(name, wanted, authorization=forwarded) as listening:
            yield listening.honoured

    async def whole(self, name: UpstreamName, method: str, token: Token) -> tuple[Outcome, list[Page]]:
        """Return all pages of a list and what is in them, within the time that a joined list waits for it."""
        limit = self._runtime.config.upstreams[name].list_timeout
        try:
            async with asyncio.timeout(limit):
                return await self._whole(name, method, token)
        except TimeoutError:
            return Silent(f"no answer in time, its list_timeout is {limit:g}s"), []

    async def _whole(self, name: UpstreamName, method: str, token: Token) -> tuple[Outcome, list[Page]]:
        limits = self._runtime.config.limits
        results: list[bytes] = []
        pages: list[Page] = []
        seen: set[str | None] = set()
        cursor: str | None = None
        while cursor not in seen and len(pages) < limits.list_pages:
            seen.add(cursor)
            params: dict[str, Json] = {} if cursor is None else {"cursor": encode(cursor)}
            outcome = await self.ask(name, method, token, params)
            if not isinstance(outcome, Given):
                return outcome, pages
            results += outcome.pages
            try:
                pages.append(parse_page(method, outcome.pages[0], limits.list_items))
            except Malformed as error:
                return Silent(f"invalid result ({error})"), pages
            cursor = pages[-1].next_cursor
            if cursor is None or sum(len(page.items) for page in pages) >= limits.list_items:
                break
        return Given(tuple(results)), pages
