"""Hears the signals that end a process: the first asks it to, the second does not wait."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from gateway.support import logs

log = logging.getLogger(__name__)


def asked_to_stop(at_last: Callable[[], None] = lambda: None, *, patient: bool = False) -> asyncio.Event:
    """Return what is set by the first SIGTERM or SIGINT; the second one ends the process at once with 1.

    `at_last` is done before that. One that is `patient` is told by others: a service manager sends its signal
    to all processes, and so does the supervisor.
    """
    asked = asyncio.Event()

    def stop() -> None:
        if asked.is_set() and not patient:
            log.warning("second signal: ending now")
            at_last()
            logs.finish()
            os._exit(1)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return asked
