"""Asks workers over their unix sockets, and hands them what operators ask."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlencode

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict

from gateway.core.explain import Unanswerable
from gateway.core.inventory import Page, Search
from gateway.status import Status, read
from gateway.supervisor.worker import Worker

_PATIENCE = 2.0
"""Seconds for what a worker knows by heart."""
_LONGER = 30.0
_LARGEST = 64 * 2**20
_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "content-length",
        "date",
        "expect",
        "server",
    }
)


async def statuses(workers: Sequence[Worker]) -> list[Status]:
    """Return what workers say of themselves; who does not answer in time is left out."""
    answers = await asyncio.gather(*(_asked(worker, "/status.json") for worker in workers))
    return [said for answer in answers if answer is not None and (said := _status(answer)) is not None]


async def readiness(workers: Sequence[Worker]) -> list[Mapping[str, object]]:
    """Return what workers answer probes."""
    answers = await asyncio.gather(*(_asked(worker, "/readyz") for worker in workers))
    return [msgspec.json.decode(answer, type=dict[str, object]) for answer in answers if answer is not None]


async def catalogue(worker: Worker, endpoint: str | None, search: Search, *, read: bool) -> Page:
    """Return what a worker finds in what an endpoint lists; raises Unanswerable."""
    named = {"endpoint": endpoint, "q": search.words, "kind": search.kind, "upstream": search.upstream}
    query = {key: text for key, text in named.items() if text}
    query |= {"offset": str(search.offset), "limit": str(search.limit), "read": str(read).lower()}
    answer = await _asked(worker, f"/catalogue.json?{urlencode(query)}", _LONGER)
    if answer is None:
        raise Unanswerable("the worker that was asked does not answer")
    try:
        return msgspec.json.decode(answer, type=Page)
    except msgspec.ValidationError:
        refusal = msgspec.json.decode(answer, type=dict[str, str])
        raise Unanswerable(refusal.get("error", "the worker that was asked does not know")) from None


class NoAnswer(Exception):
    """A worker did not answer."""


async def hand_on(request: web.BaseRequest, body: bytes, worker: Worker) -> web.StreamResponse:
    """Have a worker answer a request, which may ask it twice for the same; raises NoAnswer.

    Nothing is answered before the whole is there, for a worker may end in the middle of it.
    """
    headers = _end_to_end(request.headers.items())
    method = "GET" if request.method == "HEAD" else request.method  # the length of the answer is told as well
    url = f"http://worker{request.raw_path}"
    async with _session(worker, _LONGER) as session:
        try:
            async with session.request(
                method, url, headers=headers, data=body, allow_redirects=False
            ) as answer:
                text = await _whole(answer)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NoAnswer from error
    return web.Response(status=answer.status, body=text, headers=_end_to_end(answer.headers.items()))


def _end_to_end(headers: Iterable[tuple[str, str]]) -> CIMultiDict[str]:
    return CIMultiDict((name, text) for name, text in headers if name.lower() not in _HOP)


def _session(worker: Worker, patience: float) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(worker.order.admin or ""),
        timeout=aiohttp.ClientTimeout(total=patience),
        auto_decompress=False,
    )


async def _asked(worker: Worker, path: str, patience: float = _PATIENCE) -> bytes | None:
    try:
        async with _session(worker, patience) as session, session.get(f"http://worker{path}") as answer:
            return await _whole(answer)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    """Return the body, which comes in pieces when it is long; raises ClientError for one without end."""
    text = bytearray()
    async for piece in answer.content.iter_any():
        text += piece
        if len(text) > _LARGEST:
            raise aiohttp.ClientPayloadError("the answer is too long")
    return bytes(text)


def _status(text: bytes) -> Status | None:
    try:
        return read(text)
    except msgspec.DecodeError:
        return None
