"""Has a running gateway go on by its configuration file as that is now, when told to or when that changed."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from gateway import config
from gateway.config import Config, ConfigError
from gateway.server import Gateway
from gateway.support.tasks import happens
from gateway.watching import EVERY, Watch, content, look, note, passes_once

log = logging.getLogger(__name__)

_MOST_SHOWN = 5
"""Problems that the status names; the log has all of them."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a configuration came from, so that it can be read again."""

    file: str
    instead: Mapping[str, str] = field(default_factory=dict)
    """What the command line says in the place of the file."""
    watched: bool = True
    """Whether this process looks at it; a supervisor tells its workers."""

    @property
    def place(self) -> Path:
        """Return where the file is."""
        return Path(self.file).absolute()

    def read(self, warn: Callable[[str], None], named: Callable[[Path], None] = lambda _: None) -> Config:
        """Return the configuration as it is now, and name every file it is in; raises ConfigError."""
        named(self.place)
        return config.load_file(self.file, instead=self.instead, warn=warn, named=named)


class Reloader:
    """Reads the configuration again whenever that is asked, or its files change, one time after the other."""

    def __init__(
        self,
        gateway: Gateway,
        origin: Origin,
        *,
        adapt: Callable[[Config], Config],
        guard: Callable[[Config, config.Log], None],
        every: float = EVERY,
    ) -> None:
        """`adapt` makes of a file's configuration what this process serves by.

        `guard` keeps the secrets of a configuration out of the log, which is written as another part says.
        Files are looked at `every` so many seconds.
        """
        self._gateway = gateway
        self._origin = origin
        self._adapt = adapt
        self._guard = guard
        self._every = every
        self._asked = asyncio.Event()
        self._applied: Config | None = None
        self._named: Mapping[Path, bytes | None] | None = None
        """What the files held that the configuration in force names."""

    def __repr__(self) -> str:
        return f"<Reloader of {self._origin.file}>"

    def ask(self) -> None:
        """Have the configuration read again soon."""
        self._asked.set()

    async def run(self, started_by: Config) -> None:
        """Do what is asked, and look at the files, for ever; `started_by` is what they said at the start."""
        if await asyncio.to_thread(passes_once, self._origin.place):
            await self._decline()
        self._applied = started_by
        watch = await self._reload(first=True) if self._origin.watched else Watch({})
        while True:
            pause = self._every if self._watches else None
            asked = await happens(self._asked, pause)
            if asked or await self._changed(watch):
                self._asked.clear()
                watch = await self._reload(asked=asked)

    async def _decline(self) -> NoReturn:
        """Say at each request that there is nothing to be read again, for ever."""
        if self._watches:
            log.info("%s is no file that could be read again: it is not watched", self._origin.file)
        while True:
            await self._asked.wait()
            self._asked.clear()
            log.warning("%s is no file that could be read again: nothing is reloaded", self._origin.file)

    @property
    def _watches(self) -> bool:
        return self._origin.watched and self._gateway.runtime.config.watch

    async def _changed(self, watch: Watch) -> bool:
        """Whether the files hold something else than when they were read, and nobody is writing."""
        if not watch.looked(await asyncio.to_thread(look, watch.files)):
            return False
        return watch.differs(await asyncio.to_thread(content, watch.files))

    async def _reload(self, *, first: bool = False, asked: bool = False) -> Watch:
        """Apply what the files say, if that is something else or was `asked` for, and return a watch of them.

        At `first` what the configuration names is what it was when that was read.
        """
        gateway = self._gateway
        warnings: list[str] = []
        read: dict[Path, bytes | None] = {}
        try:
            wanted = await asyncio.to_thread(self._origin.read, warnings.append, partial(note, read))
            named = {file: held for file, held in read.items() if file != self._origin.place}
            if not asked and wanted == self._applied and (first or self._named == named):
                gateway.confirm()  # another program's servers file changes for reasons of its own
            else:
                self._guard(wanted, gateway.runtime.config.log)
                await gateway.reload(self._adapt(wanted))
                self._guard(wanted, wanted.log)
                for warning in warnings:
                    log.warning("configuration: %s", warning)
            self._applied, self._named = wanted, named
        except ConfigError as error:
            self._refuse([str(problem) for problem in error.problems])
        except ValueError as error:
            self._refuse([str(error)])
        except Exception:
            log.exception("the configuration could not be applied; the one before is still in force")
            gateway.not_reloaded("a bug in the gateway; the log tells more")
        return Watch(read)

    def _refuse(self, problems: list[str]) -> None:
        for problem in problems:
            log.error("configuration: %s", problem)
        log.error("%d problem(s): the configuration before is still in force", len(problems))
        more = len(problems) - _MOST_SHOWN
        told = [*problems[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        self._gateway.not_reloaded("; ".join(told))
