"""A real redis-server on a socket of its own, that a test may freeze, kill, bring back, flush and fill.

async with redis_server() as redis:
    redis.freeze()
    redis.thaw()
    await redis.kill()
    await redis.begin()
    assert await redis.ask("KEYS", "*") == []
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from redis.asyncio import Redis


class RedisServer:
    """One redis-server process; `folder` holds its socket and its snapshots."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._process: asyncio.subprocess.Process | None = None
        self.url = f"unix://{folder}/redis.sock"

    async def begin(self) -> None:
        """Start it, and return once it answers."""
        self._process = await asyncio.create_subprocess_exec(
            "redis-server",
            *("--port", "0", "--unixsocket", f"{self._folder}/redis.sock", "--dir", str(self._folder)),
            *("--save", "", "--appendonly", "no", "--daemonize", "no", *self._options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        written: list[bytes] = []
        while line := await self._process.stdout.readline():
            written.append(line)
            if b"eady to accept connections" in line:
                return
        raise AssertionError(b"".join(written).decode())

    async def kill(self) -> None:
        """End it at once; what it held is gone unless it was saved."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            await process.communicate()

    def freeze(self) -> None:
        """Let it accept and answer nothing, as a host without processor time does."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on with whatever was sent to it meanwhile."""
        self._signal(signal.SIGCONT)

    async def ask(self, *command: Any) -> Any:
        """Return what it answers to one command, on a connection of its own."""
        client = Redis(unix_socket_path=f"{self._folder}/redis.sock", protocol=2)
        try:
            return await client.execute_command(*command)
        finally:
            await client.aclose()

    async def keys(self, pattern: str = "*") -> list[str]:
        """Return the names of its keys that match, in order."""
        return sorted(key.decode() for key in await self.ask("KEYS", pattern))

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


@asynccontextmanager
async def redis_server(*options: str) -> AsyncIterator[RedisServer]:
    """Run a server; `options` are those of its command line."""
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        server = RedisServer(Path(folder), *options)
        await server.begin()
        try:
            yield server
        finally:
            await server.kill()
