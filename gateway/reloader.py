"""Has a running gateway go on by its configuration file as that is now, when it is told to."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway import config
from gateway.config import Config, ConfigError
from gateway.server import Gateway

log = logging.getLogger(__name__)

_MOST_SHOWN = 5
"""Problems that the status names; the log has all of them."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a configuration came from, so that it can be read again."""

    file: str
    instead: Mapping[str, str] = field(default_factory=dict)
    """What the command line says in the place of the file."""

    def read(self, warn: Callable[[str], None], named: Callable[[Path], None] = lambda _: None) -> Config:
        """Return the configuration as it is now, and name every file it is in; raises ConfigError."""
        named(Path(self.file).absolute())
        return config.load_file(self.file, instead=self.instead, warn=warn, named=named)


class Reloader:
    """Reads the configuration again whenever that is asked, one time after the other."""

    def __init__(
        self,
        gateway: Gateway,
        origin: Origin,
        *,
        adapt: Callable[[Config], Config],
        guard: Callable[[Config, config.Log], None],
    ) -> None:
        """`adapt` makes of a file's configuration what this process serves by.

        `guard` keeps the secrets of a configuration out of the log, which is written as another part says.
        """
        self._gateway = gateway
        self._origin = origin
        self._adapt = adapt
        self._guard = guard
        self._asked = asyncio.Event()
        self.files: frozenset[Path] = frozenset()
        """What the configuration was read from last, the files it names among them."""
        self.read = asyncio.Event()
        """Set and replaced whenever it was read."""

    def __repr__(self) -> str:
        return f"<Reloader of {self._origin.file}>"

    def ask(self) -> None:
        """Have the configuration read again soon."""
        self._asked.set()

    async def run(self) -> None:
        """Do what is asked, for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self._reload()

    async def _reload(self) -> None:
        gateway, before = self._gateway, self._gateway.runtime.config
        warnings: list[str] = []
        files: set[Path] = set()
        try:
            wanted = await asyncio.to_thread(self._origin.read, warnings.append, files.add)
            self._guard(wanted, before.log)
            await gateway.reload(self._adapt(wanted))
            self._guard(wanted, wanted.log)
            for warning in warnings:
                log.warning("configuration: %s", warning)
        except ConfigError as error:
            self._refuse([str(problem) for problem in error.problems])
        except ValueError as error:
            self._refuse([str(error)])
        except Exception:
            log.exception("the configuration could not be applied; the one before is still in force")
            gateway.not_reloaded("a bug in the gateway; the log tells more")
        finally:
            self.files = frozenset(files) | (self.files if gateway.reload_problem else frozenset())
            self.read.set()
            self.read = asyncio.Event()

    def _refuse(self, problems: list[str]) -> None:
        for problem in problems:
            log.error("configuration: %s", problem)
        log.error("%d problem(s): the configuration before is still in force", len(problems))
        more = len(problems) - _MOST_SHOWN
        told = [*problems[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        self._gateway.not_reloaded("; ".join(told))
