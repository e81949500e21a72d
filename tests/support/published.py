"""Published MCP servers, as `make published` installs them from PyPI and npm under .published.

They have a virtual environment of their own: what they ask for is not what the gateway's tests ask for.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import ROOT, free_port, launch, wait_for_port

FOLDER = ROOT / ".published"


class NotInstalled(Exception):
    """A server is not there; the message says how it comes there."""


def _there(path: Path) -> str:
    if not path.exists():
        raise NotInstalled(f"{path} is missing: make published installs it, from PyPI and npm")
    return str(path)


def python_server(module: str, *arguments: str) -> list[str]:
    """Return the command of a server from PyPI."""
    _there(FOLDER / "venv" / "bin" / module.replace("_", "-"))
    return [_there(FOLDER / "venv" / "bin" / "python"), "-m", module, *arguments]


def node_server(package: str, *arguments: str) -> list[str]:
    """Return the command of a server from npm, with the Node that was installed for it, if one was."""
    script = _there(FOLDER / "node_modules" / "@modelcontextprotocol" / package / "dist" / "index.js")
    own = FOLDER / "node_modules" / ".bin" / "node"
    return [str(own) if own.exists() else (shutil.which("node") or "node"), script, *arguments]


@contextmanager
def everything_over(transport: str) -> Iterator[str]:
    """Run server-everything over `streamableHttp` or `sse` and yield its URL."""
    port = free_port()
    program = launch(*node_server("server-everything", transport), env={**os.environ, "PORT": str(port)})
    try:
        wait_for_port(port, program, timeout=30)
        yield f"http://127.0.0.1:{port}/{'sse' if transport == 'sse' else 'mcp'}"
    finally:
        program.close()
