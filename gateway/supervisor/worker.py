"""One worker process, as its supervisor sees it."""

import asyncio
import logging
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from contextlib import suppress

from gateway.supervisor.line import LONGEST, Alive, Listening, Order, Ready, Told, heard, line
from gateway.supervisor.pace import Silence
from gateway.support.tasks import Background, happens

log = logging.getLogger(__name__)

STARTING = 60.0
"""Seconds until a process that says nothing counts as one that does not come up."""
SILENT = 30.0
"""Seconds until one that came up and says nothing any more counts as one that hangs."""


class Worker:
    """A process that was started, from its order to its end."""

    def __init__(self, order: Order, process: Process, writer: asyncio.StreamWriter) -> None:
        self.order = order
        self.listening = asyncio.Event()
        self.ready = asyncio.Event()
        """Both are set by its end, too, lest somebody wait for ever."""
        self.ended = asyncio.Event()
        self.changed = asyncio.Event()
        """Set with each of the three."""
        self.text = order.text
        """The configuration it has read, or was told to."""
        self.stands_in: set[int] = set()
        """The other places it has been told to serve."""
        self.retired = False
        self.silence = Silence()
        self._process = process
        self._writer = writer
        self.started = round(time.time(), 3)
        self._began = time.monotonic()

    def __repr__(self) -> str:
        state = "ended" if self.ended.is_set() else "ready" if self.ready.is_set() else "running"
        return f"<Worker {self.number}, {self.pid}: {state}>"

    @property
    def number(self) -> int:
        """How people call it."""
        return self.order.place + 1

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lived(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._began

    @property
    def serves(self) -> bool:
        """Whether it takes clients."""
        return self.listening.is_set() and not self.ended.is_set() and not self.retired

    @property
    def is_ready(self) -> bool:
        """Whether every upstream was tried by it."""
        return self.serves and self.ready.is_set()

    @property
    def patience(self) -> float:
        """Seconds for which it may say nothing."""
        return SILENT if self.listening.is_set() else STARTING

    @property
    def code(self) -> int:
        """What it ended with; 1 where a signal ended it."""
        code = self._process.returncode
        return 1 if code is None or code < 0 else code

    @property
    def end(self) -> str:
        """How it ended, in words."""
        code = self._process.returncode
        if code is None:
            return "is running"
        with suppress(ValueError):
            if code < 0:
                return f"was ended by {signal.Signals(-code).name}"
        return f"ended with {code}"

    def tell(self, message: Told) -> None:
        """Send a message; one that has ended hears nothing."""
        self._writer.write(line(message))

    def signal(self, number: int) -> None:
        """Send a signal, if there is still somebody to get it."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def finish(self, within: float) -> None:
        """Wait for its end, and bring it about when it does not come."""
        if not await happens(self.ended, within):
            log.warning("worker %d did not end within %gs and is killed", self.number, within)
            self.signal(signal.SIGKILL)
            await self.ended.wait()

    async def attend(self, reader: asyncio.StreamReader) -> None:
        """Follow it to its end."""
        try:
            with suppress(OSError, ValueError):
                while text := await reader.readline():
                    self._heard(text)
            await self._process.wait()
        finally:
            for event in (self.ended, self.listening, self.ready, self.changed):
                event.set()
            self._writer.close()

    def _heard(self, text: bytes) -> None:
        message = heard(text)
        self.silence.heard()
        match message:
            case Alive():
                return
            case Listening():
                self.listening.set()
            case Ready():
                self.ready.set()
        self.changed.set()


async def start(command: Sequence[str], order: Order, background: Background) -> Worker:
    """Start a process and give it its order; it prints nothing but to stderr.

    In a process group of its own it does not get the Ctrl-C that is meant for the supervisor.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            inherited = [theirs.fileno(), *(each for place in order.sockets for each in place)]
            process = await asyncio.create_subprocess_exec(
                *command,
                "--worker",
                str(theirs.fileno()),
                stdin=DEVNULL,
                stdout=sys.stderr.fileno(),
                pass_fds=inherited,
                process_group=0,
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST)
    except BaseException:
        ours.close()
        raise
    worker = Worker(order, process, writer)
    worker.tell(order)
    background.start(worker.attend(reader), name=f"worker {worker.number}")
    return worker
