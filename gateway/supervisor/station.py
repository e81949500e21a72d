"""A worker's end of the line to its supervisor: takes the order, says how far it is, does as it is told."""

import asyncio
import logging
import os
import shutil
import socket
import threading
import time
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Protocol

from gateway.config import VERSION
from gateway.server import Handed
from gateway.supervisor.line import (
    BEAT,
    LONGEST,
    Adopt,
    Alive,
    Heard,
    Listening,
    Order,
    Ready,
    Release,
    Retire,
    Told,
    line,
    told,
)
from gateway.support import access
from gateway.support.ledger import Ledger
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

LINGER = 3.0
"""Seconds in which clients are told with their next answer to connect anew, where there is a successor."""
_MARGIN = 5.0


class Served(Protocol):
    """What a worker runs."""

    async def accept_from(self, at: socket.socket) -> asyncio.Server: ...

    def release(self, listener: asyncio.Server) -> None: ...

    async def settled(self) -> None: ...


class Station:
    """Where a worker stands: its order, and the line over which it hears more."""

    def __init__(self, descriptor: int) -> None:
        """Wait for the order; raises ValueError if none comes."""
        self._line = socket.socket(fileno=descriptor)
        self._reader = self._line.makefile("rb")
        order = told(self._reader.readline(LONGEST))
        if not isinstance(order, Order):
            raise ValueError("the first message is no order")
        for inherited in (descriptor, *chain.from_iterable(order.sockets)):
            os.set_inheritable(inherited, False)  # else the programs of this worker would have them, too
        self.order = order
        self._linger = 0.0
        self._adopted: dict[int, list[asyncio.Server]] = {}
        self._attending: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Station {self.order.place}, adopted {sorted(self._adopted)}>"

    @cached_property
    def metrics(self) -> Metrics:
        """What this worker counts in, where its supervisor reads it."""
        return Metrics(version=VERSION, ledger=Ledger.create(Path(self.order.ledger)))

    def sockets(self, place: int) -> list[socket.socket]:
        """Return listening sockets of a place that the caller may close."""
        return [socket.socket(fileno=os.dup(each)) for each in self.order.sockets[place]]

    def mark_log(self) -> None:
        """Have every record of the log say which worker wrote it."""
        make, number = logging.getLogRecordFactory(), self.order.place + 1
        access.mark(number)

        def marked(*given: object, **named: object) -> logging.LogRecord:
            record = make(*given, **named)
            record.worker = number
            return record

        logging.setLogRecordFactory(marked)

    @property
    def handed(self) -> Handed:
        """What this worker listens on."""
        return Handed(tuple(self.sockets(self.order.place)), self.order.admin)

    def begin(self, served: Served, background: Background, asked: asyncio.Event, grace: float) -> None:
        """Do what the supervisor says from now on; without one, or when it says so, set `asked`."""
        messages: asyncio.Queue[Told | None] = asyncio.Queue()
        self._attending = background.start(self._attend(served, messages, asked), name="supervisor")
        background.start(self._report(served), name="report")
        background.start(self._live(), name="alive")
        self._hear(messages, grace + LINGER + _MARGIN)

    def leave(self) -> float:
        """Leave the sockets to others, and return for how long clients may take to go to them."""
        if self._attending is not None:
            self._attending.cancel()
        for each in self.order.sockets:
            for descriptor in each:
                with suppress(OSError):
                    os.close(descriptor)
        return self._linger

    async def _attend(
        self, served: Served, messages: "asyncio.Queue[Told | None]", asked: asyncio.Event
    ) -> None:
        while True:
            match await messages.get():
                case Adopt(place):
                    self._adopted[place] = [await served.accept_from(at) for at in self.sockets(place)]
                case Release(place):
                    for listener in self._adopted.pop(place, ()):
                        served.release(listener)
                case Retire():
                    self._linger = LINGER
                    asked.set()
                case None:
                    log.warning("the supervisor is gone")
                    shutil.rmtree(self.order.folder, ignore_errors=True)
                    asked.set()

    async def _report(self, served: Served) -> None:
        self._say(Listening())
        await served.settled()
        self._say(Ready())

    async def _live(self) -> None:
        message = line(Alive())
        while True:
            with suppress(OSError):  # a supervisor that reads nothing now is not waited for
                self._line.send(message, socket.MSG_DONTWAIT)
            await asyncio.sleep(BEAT)

    def _say(self, message: Heard) -> None:
        with suppress(OSError):  # there is nobody any more: `_hear` knows it, too
            self._line.sendall(line(message))

    def _hear(self, messages: asyncio.Queue[Told | None], patience: float) -> None:
        """Read in a thread, so that the process ends with its supervisor even if its loop does nothing."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            with suppress(RuntimeError):  # the loop is closed: the process is about to end
                try:
                    while text := self._reader.readline(LONGEST):
                        loop.call_soon_threadsafe(messages.put_nowait, told(text))
                except (OSError, ValueError):
                    log.error("the supervisor cannot be understood")
                loop.call_soon_threadsafe(messages.put_nowait, None)
            time.sleep(patience)
            os._exit(1)

        threading.Thread(target=read, name="supervisor", daemon=True).start()
