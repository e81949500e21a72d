"""Serves one of the demo's MCP servers on a port of loopback, and prints a line once the port is its own."""

import socket
import sys
from contextlib import suppress

import uvicorn
from mcp.server import MCPServer

HOST = "127.0.0.1"


def serve(server: MCPServer, port: int) -> None:
    """Run until a signal ends it; exits with 1 when the port cannot be had."""
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        sys.exit(f"{server.name}: cannot listen on port {port}: {error.strerror}")
    with listener:
        print(f"{server.name} listens on http://{HOST}:{listener.getsockname()[1]}/mcp", flush=True)
        config = uvicorn.Config(server.streamable_http_app(host=HOST), log_level="warning")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
