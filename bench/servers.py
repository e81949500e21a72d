"""What the gateway is measured beside: an upstream, a bare handler, a bare forwarder, each its own process.

Handler and forwarder are an aiohttp Application with one route, as anybody would write them; `lowest` is the
handler on aiohttp's low-level server, the least that aiohttp allows, and so is the upstream. All run on the
event loop that the gateway uses, without access log. For fan-outs there are a talker, an upstream that speaks
when told to, and a bare broadcast, an Application as well.
`python -m bench.servers KIND` prints its port on the first line.
"""

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from aiohttp import ClientSession, TCPConnector, web

from bench.talkers import Broadcast, Talker

SLOW_SECONDS = 0.1
"""How long a list takes of an upstream called slow: longer than it takes 200 clients to have asked for it."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What to look for, in the words of the person who asks"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 10},
        "order": {"type": "string", "enum": ["newest", "oldest", "relevance"]},
    },
    "required": ["query"],
    "additionalProperties": False,
}
ANSWER = {
    "content": [{"type": "text", "text": "The answer of a tool, about as long as a tool's answer is. " * 4}],
    "isError": False,
    "resultType": "complete",
}


def tools(name: str, count: int) -> list[dict[str, object]]:
    """Return the tool list of one upstream, some 500 bytes a tool."""
    return [
        {
            "name": f"{name}_tool_{number:04}",
            "title": f"Tool {number}",
            "description": "Searches the records and returns those that fit best, newest first.",
            "inputSchema": SCHEMA,
            "annotations": {"readOnlyHint": True},
        }
        for number in range(count)
    ]


def resource(uri: str) -> dict[str, object]:
    """Return a text of some 5 kB, kept for an hour, or not at all when its URI begins with live:."""
    text = "A paragraph of a document, about as long as those of documents are, and one more. " * 60
    hints = {"ttlMs": 0 if uri.startswith("live:") else 3_600_000, "cacheScope": "public"}
    return {
        "resultType": "complete",
        **hints,
        "contents": [{"uri": uri, "mimeType": "text/plain", "text": text}],
    }


def upstream() -> Handler:
    """Return an MCP server per path: /NAME/COUNT/mcp has COUNT tools; one called slow takes its time.

    A GET returns how often each path was asked for what.
    """
    lists: dict[str, bytes] = {}
    reads: dict[str, bytes] = {}
    asked: Counter[str] = Counter()
    fresh = {"resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "public"}
    capabilities: dict[str, object] = {"tools": {}, "resources": {}}
    discover = json.dumps(
        {**fresh, "supportedVersions": ["2026-07-28"], "capabilities": capabilities}, separators=(",", ":")
    )
    answer = json.dumps(ANSWER, separators=(",", ":"))

    def listed(path: str) -> bytes:
        if path not in lists:
            _, name, count, _ = path.split("/")
            result = {**fresh, "tools": tools(name, int(count))}
            lists[path] = json.dumps(result, separators=(",", ":")).encode()
        return lists[path]

    def read(uri: str) -> bytes:
        if uri not in reads:
            reads[uri] = json.dumps(resource(uri), separators=(",", ":")).encode()
        return reads[uri]

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response(asked)
        message = json.loads(await request.read())
        asked[f"{request.path} {message['method']}"] += 1
        match message["method"]:
            case "server/discover":
                result = discover.encode()
            case "tools/call":
                result = answer.encode()
            case "resources/read":
                result = read(message["params"]["uri"])
            case "tools/list":
                result = listed(request.path)
                if request.path.startswith("/slow/"):
                    await asyncio.sleep(SLOW_SECONDS)
            case _:
                error = {"code": -32601, "message": "Method not found"}
                return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": error}, status=404)
        body = b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(message["id"]).encode(), result)
        return web.Response(body=body, content_type="application/json")

    return handle


def handler(body: bytes) -> Handler:
    """Return what any server must do at least: read the request, write the same bytes."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        return web.Response(body=body, content_type="application/json")

    return handle


def forwarder(target: str, session: ClientSession) -> Handler:
    """Return what any proxy must do at least: read the request, send it on, write the answer."""
    kept = ("content-type", "accept", "mcp-protocol-version", "mcp-method", "mcp-name")

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        async with session.post(target, data=body, headers=headers) as response:
            return web.Response(
                body=await response.read(), status=response.status, content_type=response.content_type
            )

    return handle


def routed(handle: Handler, *, streams: bool = False) -> web.AppRunner:
    """Return an Application that serves every path the benchmark posts to by one route.

    With `streams` it hears when a client leaves.
    """
    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    return web.AppRunner(app, access_log=None, handler_cancellation=streams)


def bare(handle: Handler, *, streams: bool = False) -> web.ServerRunner:
    """Return aiohttp's low-level server, which has no routes."""
    return web.ServerRunner(web.Server(handle, handler_cancellation=streams))


async def serve(options: argparse.Namespace) -> None:
    async with ClientSession(connector=TCPConnector(limit=0)) as session:
        match options.kind:
            case "upstream":
                handle = upstream()
            case "handler" | "lowest":
                handle = handler(options.body.read_bytes())
            case "talker":
                handle = Talker().handle
            case "broadcast":
                handle = Broadcast().handle
            case _:
                handle = forwarder(options.target, session)
        build = routed if options.kind in ("handler", "forwarder", "broadcast") else bare
        runner = build(handle, streams=options.kind in ("talker", "broadcast"))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = ("upstream", "handler", "lowest", "forwarder", "talker", "broadcast")
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--body", type=Path, help="handler: a file with the bytes to answer")
    parser.add_argument("--target", help="forwarder: the URL to send to")
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
