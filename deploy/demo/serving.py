"""Serves one of the demo's MCP servers, and prints a line once the port is its own."""

import argparse
import socket
import sys
from contextlib import suppress

import uvicorn
from mcp.server import MCPServer


def serve_as_asked(server: MCPServer, about: str | None, port: int) -> None:
    """Do it where the command line says, by default on this port of loopback."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=port)
    options = parser.parse_args()
    serve(server, options.host, options.port)


def serve(server: MCPServer, host: str, port: int) -> None:
    """Run until a signal ends it; exits with 1 when the port cannot be had."""
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        sys.exit(f"{server.name}: cannot listen on port {port} of {host}: {error.strerror}")
    with listener:
        print(f"{server.name} listens on http://{host}:{listener.getsockname()[1]}/mcp", flush=True)
        config = uvicorn.Config(server.streamable_http_app(host=host), log_level="warning")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
