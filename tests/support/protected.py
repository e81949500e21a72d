"""A ScriptedUpstream, or an older server, that lets in who shows a token of an AuthorizationServer for it.

    guard = Guard(corp, alpha)
    alpha.on("*", guard)
    guard.scopes["tools/call"] = {"write"}                      # what a method takes
    guard.tokens                                                # every token it was shown, in order
    guard.turned_away                                           # how many requests it refused
    guard.reject(token)                                         # counts no longer, whatever it says

It serves its metadata at the well-known place and names that in its challenges; `named` and `published`
change either. What follows the check is `then`, by default what the server does anyway.
"""

import json
from typing import Any

from tests.support.authorization_server import AuthorizationServer
from tests.support.scripted import Behaviour, Exchange, ScriptedUpstream, default, status

WELL_KNOWN = "/.well-known/oauth-protected-resource"


class Guard:
    """The check before everything else."""

    def __init__(
        self, corp: AuthorizationServer, upstream: ScriptedUpstream, *, then: Behaviour = default
    ) -> None:
        self.corp = corp
        self.upstream = upstream
        self.then = then
        self.published: dict[str, Any] | None = {}
        """What its metadata says besides; None = it serves none."""
        self.named: str | None = ""
        """Where its challenges say that the metadata is; "" = where it is, None = they do not say."""
        self.scope: str | None = None
        """The scope that its challenges to nobody in particular name."""
        self.scopes: dict[str, set[str]] = {}
        self.tokens: list[str | None] = []
        self.turned_away = 0
        self.documents = 0
        self._rejected: set[str] = set()

    @property
    def origin(self) -> str:
        return self.upstream.url.partition("/mcp")[0]

    @property
    def metadata(self) -> str:
        return f"{self.origin}{WELL_KNOWN}/mcp"

    def reject(self, token: str) -> None:
        """Let nobody in with it any more."""
        self._rejected.add(token)

    def subject(self, token: str) -> str:
        """Return whom a token is for."""
        claims = self.corp.look(token)
        assert claims is not None
        return str(claims["sub"])

    async def __call__(self, exchange: Exchange) -> None:
        """Serve the metadata, refuse, or let in."""
        if exchange.received.path.startswith("/.well-known/"):
            await self._document(exchange)
            return
        token = (exchange.received.header("authorization") or "").removeprefix("Bearer ") or None
        self.tokens.append(token)
        claims = None if token is None or token in self._rejected else self.corp.look(token)
        if claims is None or claims.get("aud") != self.upstream.url:
            await self._refuse(exchange, 401, None if token is None else "invalid_token", self.scope)
            return
        needed = self.scopes.get(exchange.received.method, set())
        if not needed <= set(str(claims.get("scope", "")).split()):
            await self._refuse(exchange, 403, "insufficient_scope", " ".join(sorted(needed)))
            return
        await self.then(exchange)

    async def _refuse(self, exchange: Exchange, code: int, error: str | None, scope: str | None) -> None:
        self.turned_away += 1
        named = self.metadata if self.named == "" else self.named
        said = {"error": error, "scope": scope, "resource_metadata": named}
        params = ", ".join(f'{key}="{value}"' for key, value in said.items() if value)
        await status(code, WWW_Authenticate=f"Bearer {params}".strip())(exchange)

    async def _document(self, exchange: Exchange) -> None:
        self.documents += 1
        if self.published is None or exchange.received.path != f"{WELL_KNOWN}/mcp":
            await status(404)(exchange)
            return
        said = {
            "resource": self.upstream.url,
            "authorization_servers": [self.corp.issuer],
            **self.published,
        }
        await status(200, json.dumps(said).encode(), "application/json")(exchange)
