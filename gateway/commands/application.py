"""What the commands need of gateway.app, which only those import that run something."""

import errno
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from gateway.commands.printing import PROBLEMS, complain
from gateway.config import Config

if TYPE_CHECKING:
    from gateway.app import ToolListing
    from gateway.reloader import Origin
    from gateway.server import Addresses
    from gateway.supervisor.crew import Source
    from gateway.supervisor.station import Station


class App(Protocol):
    """What this module needs of gateway.app, which is only imported by the commands that run something."""

    def serve(
        self,
        config: Config,
        *,
        ready: "Callable[[Addresses], None] | None" = None,
        warnings: Sequence[str] = (),
        origin: "Origin | None" = None,
        station: "Station | None" = None,
    ) -> int: ...

    def supervise(
        self,
        config: Config,
        workers: int,
        text: str,
        source: "Source",
        *,
        ready: "Callable[[Addresses], None]",
        warnings: Sequence[str] = (),
    ) -> int: ...

    def serve_stdio(
        self,
        config: Config,
        endpoint: str,
        *,
        authorization: str | None = None,
        warnings: Sequence[str] = (),
        origin: "Origin | None" = None,
    ) -> int: ...

    def list_tools(
        self,
        config: Config,
        endpoint: str,
        *,
        caller: str | None = None,
        scopes: Sequence[str] = (),
        claims: Mapping[str, object] | None = None,
    ) -> "Coroutine[None, None, ToolListing]": ...


def the_app() -> App:
    """Return gateway.app, imported now."""
    from gateway import app

    return app


def cannot_start(settings: Config, error: OSError) -> int:
    """Say why the gateway cannot start and what would help."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        advice = "check that the file is there and that this user may read it"
        return complain(f"cannot read {error.filename}: {reason}", advice, code=PROBLEMS)
    match error.errno:
        case errno.EADDRINUSE:
            advice = "stop the program that listens there, or choose another port; port 0 takes a free one"
        case errno.EACCES | errno.EPERM:
            advice = "choose a port above 1023, or give this user the right to bind lower ones"
        case errno.EADDRNOTAVAIL:
            advice = "choose an address of this machine: 127.0.0.1, or 0.0.0.0 for all of them"
        case _:
            advice = "choose an address of this machine and a free port for `listen` and `admin`"
    where = f"listen: {settings.listen}, admin: {settings.admin}"
    return complain(f"cannot listen ({where}): {reason}", advice, code=PROBLEMS)
