"""Who speaks in the measurement of fan-outs: an upstream that says what it is told to, and a bare broadcast.

Both take `POST /say` and answer with the clock's time just before the first byte; the clock is the same in
every process of the machine.
"""

import asyncio
import json
import time

from aiohttp import web

PREFIX = b"event: message\ndata: "
META = "io.modelcontextprotocol/subscriptionId"
STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform"}


def event(method: str, params: dict[str, object]) -> bytes:
    """Return a notification as an event of a stream."""
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return PREFIX + json.dumps(message, separators=(",", ":")).encode() + b"\n\n"


def acknowledgement(id: object, wanted: object) -> bytes:
    params = {"_meta": {META: id}, "notifications": wanted}
    return event("notifications/subscriptions/acknowledged", params)


class Talker:
    """An MCP server whose list and resources change when it is told so. A GET returns how many listen."""

    def __init__(self) -> None:
        self._streams: dict[web.StreamResponse, object] = {}
        self._opened = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"streams": len(self._streams), "opened": self._opened})
        message = json.loads(await request.read())
        if request.path == "/say":
            return web.json_response(await self._say(**message))
        match message["method"]:
            case "server/discover":
                changes = {"listChanged": True}
                result: dict[str, object] = {
                    "supportedVersions": ["2026-07-28"],
                    "capabilities": {"tools": changes, "resources": {**changes, "subscribe": True}},
                }
            case "subscriptions/listen":
                return await self._listen(request, message)
            case "tools/list":
                result = {"tools": []}
            case "resources/list":
                result = {"resources": []}
            case "resources/templates/list":
                result = {"resourceTemplates": []}
            case _:
                error = {"code": -32601, "message": "Method not found"}
                return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error}, status=404)
        result |= {"resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "public"}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async def _listen(self, request: web.BaseRequest, message: dict[str, object]) -> web.StreamResponse:
        response = web.StreamResponse(headers=STREAM)
        await response.prepare(request)
        params = message["params"]
        assert isinstance(params, dict)
        await response.write(acknowledgement(message["id"], params["notifications"]))
        self._streams[response] = message["id"]
        self._opened += 1
        try:
            await asyncio.Event().wait()
        finally:
            del self._streams[response]
        return response

    async def _say(self, method: str, uris: list[str], times: int) -> dict[str, object]:
        """Say it `times` in all, of the URIs in turn; return when it began, and when it last said what."""
        last: dict[str, float] = {}
        began = time.perf_counter()
        for number in range(times):
            uri = uris[number % len(uris)] if uris else ""
            last[uri] = time.perf_counter()
            for response, id in self._streams.items():
                meta: dict[str, object] = {"_meta": {META: id}}
                await response.write(event(method, meta | {"uri": uri} if uri else meta))
        return {"at": began, "last": last}


class Broadcast:
    """What any server of event streams must do at least: keep the responses, write the same bytes to each."""

    def __init__(self) -> None:
        self._streams: dict[web.StreamResponse, None] = {}
        self._over = asyncio.Event()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        message = json.loads(await request.read())
        if request.path == "/say":
            return web.json_response(await self._say(message["method"]))
        response = web.StreamResponse(headers=STREAM)
        await response.prepare(request)
        await response.write(acknowledgement(message["id"], message["params"]["notifications"]))
        self._streams[response] = None
        try:
            await self._over.wait()
        finally:
            del self._streams[response]
        return response

    async def _say(self, method: str) -> dict[str, object]:
        began = time.perf_counter()
        frame = event(method, {"_meta": {META: 10_000}})
        for response in list(self._streams):
            await response.write(frame)
        return {"at": began}
