"""Repeats in HTTP headers what an answer's ttlMs and cacheScope say, and how the cache came by it. No I/O.

Nobody may answer one POST with what another one got: the body decides, and the id of the request stands in
the answer. HTTP lets a stored answer to a POST serve a later GET only, and only if the answer carries a
Content-Location (RFC 9110, 9.3.3), which ours never does. So Cache-Control tells people and intermediaries
that know MCP what the hints say, everything without a lifetime is no-store, and `cache.headers: false`
makes that of all, for an intermediary that keeps answers to POSTs against the rules.
"""

from functools import lru_cache

from gateway.protocol.call import Reuse

NO_STORE = b"Cache-Control: no-store\r\n"

_REMEMBERED = 4096
"""Header blocks; of one kind of answer there are as many as it has seconds to live."""


@lru_cache(_REMEMBERED)
def lines(reuse: Reuse, *, guarded: bool = False) -> bytes:
    """Return the header lines of an answer to a method whose results may be cached.

    HTTP counts max-age from the beginning of a life and Age into it, so that what is left is the difference.
    With `guarded`, where callers have to prove who they are, it is private whatever the hints say: a cache on
    the way knows neither keys in headers of their own nor certificates, and asks nobody whether a token still
    counts.
    """
    scope = "private" if guarded else reuse.scope
    kept = b"Cache-Control: %s, max-age=%d\r\n" % (scope.encode(), reuse.age + reuse.ttl)
    served = reuse.source in ("hit", "stale") or reuse.age > 0
    return b"".join(
        (
            kept if reuse.ttl > 0 else NO_STORE,
            b"Age: %d\r\n" % reuse.age if served else b"",
            b"Vary: Authorization\r\n",
            f"Mcp-Gateway-Cache: {reuse.source}; reason={reuse.reason}\r\n".encode(),
        )
    )
