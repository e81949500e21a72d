"""Gives single resources a cache hint of their own; the SDK knows one hint per method."""

from collections.abc import Mapping
from typing import Any

from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext


def resource_hints(hints: Mapping[str, CacheHint]) -> ServerMiddleware[Any]:
    """Return a middleware that writes `hints[uri]` on the answers of resources/read."""

    async def stamp(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        hint = hints.get(str((ctx.params or {}).get("uri"))) if ctx.method == "resources/read" else None
        if hint is not None and isinstance(result, dict) and "contents" in result:
            result |= {"ttlMs": hint.ttl_ms, "cacheScope": hint.scope}
        return result

    return stamp
