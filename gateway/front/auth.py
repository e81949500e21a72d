"""Tells who calls from the headers alone; the credential is hashed here and compared nowhere else.

Nothing is verified yet: a token names a partition of the cache and no more (Z-18). Only the Authorization
header counts (Z-01).
"""

import re
from collections.abc import Sequence
from typing import Protocol

from aiohttp import hdrs

from gateway.protocol.call import Principal
from gateway.protocol.jsonrpc import INVALID_REQUEST, McpError
from gateway.protocol.modern import Rejection
from gateway.support.seal import Seal

ANONYMOUS = Principal()

_VISIBLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class Headers(Protocol):
    """What is needed of a header block."""

    def getall(self, key: str, default: Sequence[str]) -> Sequence[str]: ...


def identify(headers: Headers, seal: Seal) -> Principal | Rejection:
    """Return the caller, or why the credential is no credential at all (Z-04: a malformed one is a 400).

    Two Authorization lines are refused: which of them an upstream would believe is anybody's guess.
    """
    lines = headers.getall(hdrs.AUTHORIZATION, ())
    if not lines:
        return ANONYMOUS
    credential = lines[0].strip(" \t")
    if len(lines) > 1:
        return _malformed("there is more than one Authorization header")
    if not credential:
        return ANONYMOUS
    if not _VISIBLE.fullmatch(credential):
        return _malformed("the Authorization header holds a character that has no place there")
    return Principal(seal.partition(credential), credential)


def _malformed(reason: str) -> Rejection:
    return Rejection(400, McpError(INVALID_REQUEST, reason))
