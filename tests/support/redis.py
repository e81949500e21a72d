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
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from redis.asyncio import Redis

from gateway.support.redis import Script


class RedisServer:
    """One redis-server process; `folder` holds its socket and its snapshots."""

    def __init__(self, folder: Path, *options: str, config: bool = False) -> None:
        self.folder = folder
        self._options = options
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{folder}/redis.sock"

    async def begin(self) -> None:
        """Start it, and return once it answers."""
        await asyncio.to_thread(self.start)

    def start(self) -> None:
        """Do the same where there is no event loop."""
        written_by_itself = [str(self.folder / "redis.conf")] if self._config else []
        for file in written_by_itself:
            Path(file).touch()
        self._process = subprocess.Popen(
            [
                "redis-server",
                *written_by_itself,
                *("--port", "0", "--unixsocket", f"{self.folder}/redis.sock", "--dir", str(self.folder)),
                *("--save", "", "--appendonly", "no", "--daemonize", "no", *self._options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        written: list[bytes] = []
        while line := self._process.stdout.readline():
            written.append(line)
            if b"eady to accept connections" in line or b"Sentinel ID is" in line:
                return
        raise AssertionError(b"".join(written).decode())

    async def kill(self) -> None:
        """End it at once; what it held is gone unless it was saved."""
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """Do the same where there is no event loop."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        if process is not None:
            process.communicate()

    async def clear(self) -> None:
        """Make it as new for the next test."""
        await self.ask("FLUSHALL")
        await self.ask("SCRIPT", "FLUSH")

    def freeze(self) -> None:
        """Let it accept and answer nothing, as a host without processor time does."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on with whatever was sent to it meanwhile."""
        self._signal(signal.SIGCONT)

    async def ask(self, *command: Any) -> Any:
        """Return what it answers to one command, on a connection of its own."""
        client = Redis(unix_socket_path=f"{self.folder}/redis.sock", protocol=2)
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


Step: TypeAlias = Callable[[], Awaitable[None]]


class RedisProxy:
    """Stands between one replica and the server, and runs a test's step once where the test put it."""

    def __init__(self, server: RedisServer, scripts: Sequence[Script], folder: Path) -> None:
        self._target = f"{server.folder}/redis.sock"
        self._names = {script.sha.encode(): script.name for script in scripts}
        self._names |= {script.text.encode(): script.name for script in scripts}
        self.path = f"{folder}/proxy.sock"
        self.url = f"unix://{self.path}"
        self.before: dict[str, Step] = {}
        self.after: dict[str, Step] = {}
        self.delivers = asyncio.Event()
        """Cleared, what others publish is held back."""
        self.delivers.set()
        self.deaf = False
        """Set, what others publish is lost, though the subscriptions stand."""
        self.holds = asyncio.Event()
        """Set when something is held back."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass questions and answers on, one after the other; what a subscriber hears, as it comes."""
        there, thither = await asyncio.open_unix_connection(self._target)
        listening: asyncio.Task[None] | None = None
        try:
            while asked := await reader.read(2**20):
                if b"SUBSCRIBE" in asked and listening is None:
                    listening = asyncio.create_task(self._deliver(there, writer))
                if listening is not None:
                    thither.write(asked)
                    continue
                name = next((name for text, name in self._names.items() if text in asked), "")
                await _run(self.before, name)
                thither.write(asked)
                answer = await there.read(2**20)
                if not answer.startswith(b"-NOSCRIPT"):
                    await _run(self.after, name)
                writer.write(answer)
        finally:
            if listening is not None:
                listening.cancel()
            thither.close()
            writer.close()

    async def _deliver(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while heard := await reader.read(2**20):
            if not self.delivers.is_set():
                self.holds.set()
            await self.delivers.wait()
            if not (self.deaf and b"$7\r\nmessage\r\n" in heard):
                writer.write(heard)
        writer.close()


async def _run(steps: dict[str, Step], name: str) -> None:
    if (step := steps.pop(name, None)) is not None:
        await step()


@asynccontextmanager
async def redis_proxy(server: RedisServer, scripts: Sequence[Script]) -> AsyncIterator[RedisProxy]:
    """Run a proxy that knows these scripts by their names."""
    with tempfile.TemporaryDirectory(prefix="redis-proxy-") as folder:
        proxy = RedisProxy(server, scripts, Path(folder))
        running = set[asyncio.Task[None]]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            running.add(task)
            with suppress(ConnectionError, asyncio.CancelledError):
                await proxy.serve(reader, writer)
            running.discard(task)

        listener = await asyncio.start_unix_server(serve, proxy.path)
        try:
            yield proxy
        finally:
            listener.close()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


@contextmanager
def redis_for_many() -> Iterator[RedisServer]:
    """Run one server for many tests, each of which clears it first."""
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@asynccontextmanager
async def redis_server(*options: str, config: bool = False) -> AsyncIterator[RedisServer]:
    """Run a server; `options` are those of its command line. A Sentinel needs a `config` to write to."""
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        server = RedisServer(Path(folder), *options, config=config)
        await server.begin()
        try:
            yield server
        finally:
            await server.kill()
