"""Reads what an operator asks of the cache over HTTP, and refuses a purge that a web page asks for."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol, TypeAlias

from aiohttp import hdrs, web
from multidict import MultiMapping

from gateway.core.explain import Question, Report, Unanswerable
from gateway.core.purge import NothingToPurge, Wish
from gateway.front.auth import ANONYMOUS
from gateway.front.challenges import Denied
from gateway.protocol.call import Principal
from gateway.protocol.jsonrpc import Malformed, split, text_of, value

Identify: TypeAlias = Callable[[MultiMapping[str], str | None], Awaitable[Principal | Denied]]
"""Says whom an endpoint would take the sender of some headers for; without an endpoint any of them."""

_ASKED = ("endpoint", "method", "name", "uri", "capabilities", "arguments", "caller", "scopes")
_NAMED = ("upstream", "method", "uri")
_WISHED = ("all", "caller", *_NAMED)
_LARGEST = 64 * 1024
_PATIENCE = 5.0


class Operations(Protocol):
    """What an operator may ask of a running gateway."""

    async def explain(self, endpoint: str | None, question: Question, principal: Principal) -> Report: ...

    async def purge(self, wish: Wish) -> Report: ...


class Refused(Exception):
    """The operator's request cannot be served."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def explain(request: web.BaseRequest, operations: Operations, identify: Identify) -> Report:
    """Answer what the cache would do; raises Refused.

    An Authorization header says on whose behalf. It is judged as that of any caller, and goes no further.
    """
    query = request.query
    _check_known(query.keys(), _ASKED)
    caller = await _caller(request, identify, query.get("endpoint"))
    if "method" not in query:
        raise Refused(400, "say which method: ?method=tools/list")
    question = Question(
        query["method"],
        query.get("name"),
        query.get("uri"),
        query.get("capabilities", "{}").encode(),
        query["arguments"].encode() if "arguments" in query else None,
        query.get("caller"),
        tuple(query.get("scopes", "").split()),
    )
    try:
        return await operations.explain(query.get("endpoint"), question, caller)
    except Unanswerable as error:
        raise Refused(400, str(error)) from None


async def purge(request: web.BaseRequest, operations: Operations, identify: Identify) -> Report:
    """Forget what the operator names; raises Refused, also for whatever a browser sends for another page.

    The Authorization header counts where the body says `"caller": true`, and is judged like any caller's: a
    proxy that adds one of its own must not turn a purge of everything into one of a single caller.
    """
    _check_origin(request.headers)
    if request.content_type != "application/json":
        raise Refused(415, 'post a JSON object as application/json, such as {"upstream": "github"}')
    try:
        wish, of_caller = _wish(await whole_body(request))
        if of_caller:
            caller = await _caller(request, identify, None)
            if caller.partition is None:
                raise Refused(400, '"caller" needs the caller\'s token in an Authorization header')
            wish = replace(wish, partition=caller.partition, subject=caller.subject)
        return await operations.purge(wish)
    except NothingToPurge as error:
        raise Refused(400, str(error)) from None


async def _caller(request: web.BaseRequest, identify: Identify, endpoint: str | None) -> Principal:
    """Return who an Authorization header stands for, without the header itself."""
    caller = await identify(request.headers, endpoint)
    if isinstance(caller, Principal):
        return replace(caller, authorization=None)
    if caller.word == "unauthenticated":
        return ANONYMOUS
    raise Refused(503 if caller.status == 503 else 400, caller.message)


def _check_origin(headers: Mapping[str, str]) -> None:
    """Refuse what comes from a web page: none is served here, so any that asks is a foreign one.

    Not even an Origin equal to the Host is let in: under a name that was rebound to this address a foreign
    page has just that.
    """
    if hdrs.ORIGIN in headers or headers.get("Sec-Fetch-Site", "none") != "none":
        raise Refused(403, "web pages may not purge; use `mcp-gateway purge`, or curl")


async def whole_body(request: web.BaseRequest) -> bytes:
    """Return what an operator sends, in however many pieces; raises Refused if it is long, or late."""
    if (request.content_length or 0) > _LARGEST:
        raise Refused(413, "that is too much to ask for at once")
    try:
        async with asyncio.timeout(_PATIENCE):
            body = await request.content.read(_LARGEST + 1)
            while len(body) <= _LARGEST and (more := await request.content.read(_LARGEST)):
                body += more
    except TimeoutError:
        raise Refused(408, "the body did not arrive in time") from None
    if len(body) > _LARGEST:
        raise Refused(413, "that is too much to ask for at once")
    return body


def _wish(body: bytes) -> tuple[Wish, bool]:
    """Return what to forget, and whether only of the caller whose credential comes with it."""
    try:
        members = split(body)
        _check_known(members, _WISHED)
        upstream, method, uri = (text_of(members.get(key)) for key in _NAMED)
        named = sum(text is not None for text in (upstream, method, uri))
        said = {key: value(raw) for key, raw in members.items()}
    except Malformed:
        raise Refused(400, "the body must be a JSON object") from None
    if named != sum(said.get(key) is not None for key in _NAMED):
        raise Refused(400, "upstream, method and uri are texts")
    if said.get("caller") not in (None, False, True):
        raise Refused(400, '"caller" is true or false')
    of_caller = said.get("caller") is True
    named += of_caller
    if not named and said.get("all") is not True:
        raise Refused(400, 'say what: upstream, method, uri or caller, or "all": true')
    if named and said.get("all") not in (None, False):
        raise Refused(400, '"all" goes with nothing else')
    return Wish(upstream, method, uri), of_caller


def _check_known(keys: Iterable[str], known: tuple[str, ...]) -> None:
    for key in keys:
        if key not in known:
            raise Refused(400, f"{key[:64]!r} is none of {', '.join(known)}")
