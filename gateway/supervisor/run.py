"""Runs a crew of workers and the operators' listener for them, from the first signal to the last."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from gateway.config import Config, Log, parse_address
from gateway.server import Addresses, url_of
from gateway.supervisor.admin import CrewAdmin
from gateway.supervisor.crew import Crew, Source
from gateway.support.stopping import asked_to_stop
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

_CLOSING = 2.0


async def supervised(
    config: Config,
    workers: int,
    text: str,
    source: Source,
    ready: Callable[[Addresses], None],
    guard: Callable[[Config, Log], None],
) -> int:
    """Run workers until a signal ends them; return the exit code of what kept them from starting, or 0."""
    background = Background()
    crew = Crew(workers, config, text, source, background, guard)
    admin = CrewAdmin(crew, background)
    asked = asked_to_stop(crew.kill)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, crew.hang_up)
    loop.add_signal_handler(signal.SIGUSR2, crew.roll)
    try:
        bound = None
        if config.admin != "off":
            at = parse_address(config.admin)
            bound = url_of(await admin.start(at.host, at.port))
        coming = background.start(crew.up(), name="start")
        stop = background.start(asked.wait(), name="stop")
        await asyncio.wait((coming, stop), return_when=asyncio.FIRST_COMPLETED)
        if coming.done() and (code := coming.result()) is not None:
            crew.kill()
            return code
        if coming.done():
            base = url_of(crew.addresses, "http" if config.tls.cert_file is None else "https")
            ready(Addresses(tuple(base + path for path in config.endpoints), bound))
            background.start(crew.watch(), name="watch")
            log.info("%d workers are running, supervised by process %d", workers, os.getpid())
        await stop
        coming.cancel()
        log.info("stopping: up to %gs for what is running", crew.config.shutdown_grace)
        await crew.down()
        return 0
    finally:
        crew.forget()
        await admin.close()
        await background.close(_CLOSING)
