"""Keeps several workers running: starts them, replaces those that crash, and all one by one when asked to.

The listening sockets belong to the supervisor, a set to each place. Its worker inherits them, and so does the
next, so that no connection is lost between the two; while a place has no worker another serves it as well.
"""

import asyncio
import errno
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

from gateway import status
from gateway.config import Config, ConfigError, Log, Problem, parse_address
from gateway.supervisor.line import BEAT, Adopt, Order, Release, Retire
from gateway.supervisor.pace import Pauses, stand_ins
from gateway.supervisor.places import Places
from gateway.supervisor.station import LINGER
from gateway.supervisor.worker import STARTING, Worker, start
from gateway.support.ledger import Snapshot, read_ledger
from gateway.support.metrics import Counted, Metrics, folded, forgotten
from gateway.support.tasks import Background, happens
from gateway.watching import EVERY, Watch, content, look, note

log = logging.getLogger(__name__)

_CLOSING = 10.0
"""Seconds that a worker may need beyond what its clients are given."""
_MOST_SHOWN = 5
"""Problems that the status names; the log has all of them."""
_LONGEST_PATH = 80
"""Characters of a folder in which unix sockets can be: 107 is the most for one of these."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the configuration comes from."""

    command: Sequence[str]
    """What serves this configuration in one process."""
    load: Callable[[Callable[[Path], None]], tuple[Config, str]]
    """Returns the configuration and its text; names every file before it is read; raises ConfigError."""


class _Post:
    """One place and whose it is."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: Worker | None = None
        self.successor: Worker | None = None
        self.pauses = Pauses()
        self.restarts = 0
        """How often it was replaced, asked for or not."""

    @property
    def told(self) -> status.Worker:
        """What the status says of it."""
        worker = self.worker
        if worker is None:
            return status.Worker(number=self.number + 1, state="away", restarts=self.restarts)
        state = "ready" if worker.is_ready else "starting"
        return status.Worker(
            number=worker.number, state=state, pid=worker.pid, started=worker.started, restarts=self.restarts
        )


class Crew:
    """The workers of one gateway."""

    def __init__(
        self,
        workers: int,
        config: Config,
        text: str,
        source: Source,
        background: Background,
        guard: Callable[[Config, Log], None],
    ) -> None:
        """Bind the sockets; raises OSError for an address that cannot be had."""
        self.config = config
        self.posts = tuple(_Post(number) for number in range(workers))
        self.tried = False
        """Whether every worker was started once."""
        self.settled = asyncio.Event()
        """Set once every worker has tried every upstream, or given up waiting."""
        self.stopping = asyncio.Event()
        self.started = round(time.time(), 3)
        self.generation = 1
        """How many configurations were right by now."""
        self.problem: str | None = None
        """What is wrong with the file as it was read last."""
        self._text = text
        self._source = source
        self._guard = guard
        self._background = background
        self._places = Places(parse_address(config.listen), workers)
        self._folder = _folder()
        self._serial = count(1)
        self._running: set[Worker] = set()
        self._rolling: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()
        self._hung_up = False
        self._rereading: asyncio.Task[None] | None = None
        self._files = Watch({})
        self._metrics = Metrics()
        self.loaded = time.time()
        """When the last of these was read."""
        self._metrics.config_loaded(self.generation, self.loaded)
        self._ended: Snapshot = {}
        """What those counted that are no more."""
        self._gone: frozenset[tuple[Counted, str]] = frozenset()
        """What was configured once, and is not now."""

    def __repr__(self) -> str:
        return f"<Crew {[post.worker for post in self.posts]} on {self._places!r}>"

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where clients are served."""
        return self._places.addresses

    @property
    def serving(self) -> list[Worker]:
        """The workers that clients are served by."""
        return [post.worker for post in self.posts if post.worker is not None and post.worker.serves]

    @property
    def ready(self) -> list[Worker]:
        """Those that have tried every upstream, too."""
        return [worker for worker in self.serving if worker.is_ready]

    @property
    def told(self) -> list[status.Worker]:
        """What the status says of them."""
        return [post.told for post in self.posts]

    def counted(self) -> tuple[list[Snapshot], list[Snapshot]]:
        """Return what is counted by all processes, and what was by those that ended.

        At one moment: a process that is neither here nor there would make counters fall.
        """
        self._metrics.workers(len(self.serving), len(self.posts))
        live = [read_ledger(Path(worker.order.ledger)) for worker in self._running]
        return [self._metrics.snapshot(), *live], [self._ended]

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run, by their numbers."""
        return {str(each.number): each.pid for each in self.told if each.pid is not None}

    async def up(self) -> int | None:
        """Start all workers; return the exit code of one that does not come up, None when they serve.

        The first starts alone, so that what keeps all of them from it is said once.
        """
        self._background.start(self._oversee(), name="oversee")
        for posts in (self.posts[:1], self.posts[1:]):
            workers = [await self._start(post) for post in posts]
            for worker in workers:
                await happens(worker.listening, STARTING)
                if not worker.serves:
                    late = f"did not come up within {STARTING:g}s"
                    log.error("worker %d %s", worker.number, worker.end if worker.ended.is_set() else late)
                    return worker.code
        self.tried = True
        for post in self.posts:
            if post.worker is not None and post.worker.ended.is_set():
                self._background.start(self._replace(post, post.worker), name=f"place {post.number + 1}")
        self._background.start(self._settle(), name="settle")
        return None

    def hang_up(self) -> None:
        """Read the configuration again, and have every worker do so if it is right."""
        if self.stopping.is_set():
            return
        self._hung_up = True
        if self._rereading is None or self._rereading.done():
            self._rereading = self._background.start(self._reread(), name="reload")

    def roll(self) -> None:
        """Replace every worker, one after the other, by a new process with the configuration as it is now."""
        if self.stopping.is_set():
            return
        if self._rolling is not None and not self._rolling.done():
            log.warning("a rolling restart is under way already")
            return
        self._rolling = self._background.start(self._roll(), name="rolling restart")

    async def down(self) -> None:
        """Let every worker finish what is running, and end."""
        self.stopping.set()
        if self._rolling is not None:
            self._rolling.cancel()
        self._places.close()
        for worker in self._running:
            worker.signal(signal.SIGTERM)
        within = self.config.shutdown_grace + LINGER + _CLOSING
        while self._running:  # one that was just starting may come to it
            await asyncio.gather(*(worker.finish(within) for worker in list(self._running)))
            self._running = {worker for worker in self._running if not worker.ended.is_set()}
        await asyncio.to_thread(self.forget)

    def kill(self) -> None:
        """End all workers at once."""
        for worker in self._running:
            worker.signal(signal.SIGKILL)
        self.forget()

    def forget(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _start(self, post: _Post, *, succeeds: bool = False) -> Worker:
        serial = next(self._serial)
        order = Order(
            post.number,
            self._places.descriptors,
            str(self._folder),
            None if self.config.admin == "off" else str(self._folder / f"{serial}.sock"),
            str(self._folder / f"{serial}.ledger"),
            self.generation,
            self._text,
        )
        worker = await start(self._source.command, order, self._background)
        self._running.add(worker)
        if self.stopping.is_set():
            worker.signal(signal.SIGTERM)
        if succeeds:
            post.successor = worker
        else:
            post.worker = worker
        self._background.start(self._watch(post, worker), name=f"place {worker.number}")
        return worker

    async def _settle(self) -> None:
        for post in self.posts:
            if post.worker is not None:
                await post.worker.ready.wait()
        self.settled.set()

    async def watch(self) -> None:
        """Read the configuration again whenever its files change, for ever."""
        await self._reload(unless=self.config)
        while True:
            await asyncio.sleep(EVERY)
            files = self._files
            if not self.config.watch or not files.looked(await asyncio.to_thread(look, files.files)):
                continue
            if files.differs(await asyncio.to_thread(content, files.files)) and files is self._files:
                await self._reload()

    async def _watch(self, post: _Post, worker: Worker) -> None:
        """Follow a worker through its life, and replace it when it ends unasked."""
        while not worker.ended.is_set():
            worker.changed.clear()
            if worker.serves:
                self._share_out()
                self._refresh(worker)  # what was read while it started
            await worker.changed.wait()
        self._running.discard(worker)
        self._keep(worker)
        cause: Literal["stopping", "replaced", "crashed"]
        cause = "stopping" if self.stopping.is_set() else "replaced" if worker.retired else "crashed"
        self._metrics.worker_ended(cause)
        if self.tried and post.worker is worker:
            await self._replace(post, worker)

    async def _oversee(self) -> None:
        """Kill those who do nothing any more, for the system goes on sending them clients."""
        while not await happens(self.stopping, BEAT):
            for worker in self._running:
                silent = worker.silence.looked(BEAT)
                if silent <= worker.patience or worker.retired:  # who retires is waited for anyway
                    continue
                log.error(
                    "worker %d, pid %d, hangs and is killed: it has said nothing for %gs",
                    worker.number,
                    worker.pid,
                    silent,
                )
                worker.signal(signal.SIGKILL)

    def _keep(self, worker: Worker) -> None:
        """Take over what a worker counted, and remove what it leaves."""
        self._ended = self._known(folded([self._ended, read_ledger(Path(worker.order.ledger))]))
        for left in (worker.order.ledger, worker.order.admin):
            if left is not None:
                Path(left).unlink(missing_ok=True)

    def _known(self, snapshot: Snapshot) -> Snapshot:
        """Return what was counted, but for what is no longer configured (B52).

        A worker that ends may have counted that until then.
        """
        for label, name in self._gone:
            snapshot = forgotten(snapshot, name, label)
        return snapshot

    async def _replace(self, post: _Post, worker: Worker) -> None:
        """Start the next worker of a place whose last one crashed, after a pause that grows."""
        if self.stopping.is_set():
            return
        pause = post.pauses.crashed(worker.lived)
        post.worker, post.successor = post.successor, None
        post.restarts += 1
        self._share_out()
        log.error("worker %d %s", worker.number, worker.end)
        while post.worker is None and not await happens(self.stopping, pause):
            try:
                await self._start(post)
            except OSError as error:
                pause = post.pauses.crashed(0.0)
                log.error("worker %d cannot be started: %s", worker.number, error.strerror)

    def _refresh(self, worker: Worker) -> None:
        """Have a worker read the configuration, if it has another one."""
        if worker.text is not self._text:
            worker.text = self._text
            worker.signal(signal.SIGHUP)

    def _share_out(self) -> None:
        """Have those that serve stand in for those that do not."""
        workers = [post.worker for post in self.posts]
        wanted = stand_ins([one is not None and one.serves for one in workers])
        for worker, places in zip(workers, wanted, strict=True):
            if worker is None or not worker.serves:
                continue
            for place in places - worker.stands_in:
                worker.tell(Adopt(place))
            for place in worker.stands_in - places:
                worker.tell(Release(place))
            worker.stands_in = places

    async def _reread(self) -> None:
        """Read it once more at most than is under way, however often that is asked."""
        while self._hung_up:
            self._hung_up = False
            await self._reload()

    async def _reload(self, unless: Config | None = None) -> None:
        if await self._read(unless):
            for worker in self._running:
                if worker.serves:
                    self._refresh(worker)

    async def _read(self, unless: Config | None = None) -> bool:
        """Take the configuration as it is now, if it is right, and not this one; whether it was taken."""
        read: dict[Path, bytes | None] = {}
        async with self._reading:
            try:
                config, text = await asyncio.to_thread(self._source.load, partial(note, read))
            except ConfigError as error:
                self._refuse(error.problems)
                return False
            finally:
                self._files = Watch(read)
        if config == unless:
            return False
        before, now = _series_of(self.config), _series_of(config)
        self._gone = (self._gone | before) - now
        self._ended = self._known(self._ended)
        self.config, self._text = config, text
        self.generation += 1
        self.problem = None
        self.loaded = time.time()
        self._metrics.config_loaded(self.generation, self.loaded)
        self._guard(config, config.log)
        return True

    def _refuse(self, problems: Sequence[Problem]) -> None:
        for problem in problems:
            log.error("configuration: %s", problem)
        log.error("%d problem(s): the configuration before is still in force", len(problems))
        self.problem = "; ".join(str(problem) for problem in problems[:_MOST_SHOWN])
        self._metrics.config_refused()

    async def _roll(self) -> None:
        if not await self._read():
            return
        log.info("rolling restart of %d workers", len(self.posts))
        replaced = 0
        for post in self.posts:
            old = post.worker
            if old is not None and not old.serves and old.text is not self._text:
                await happens(old.listening, STARTING)  # it began with what was before
            if old is None or not old.serves:
                continue  # the next one is on its way, with what was read now
            new = await self._start(post, succeeds=True)
            await happens(new.ready, STARTING + self.config.startup_wait)
            if not new.is_ready:
                log.error("the rolling restart ends: the new worker %d %s", new.number, new.end)
                post.successor = None
                new.signal(signal.SIGKILL)
                return
            old.retired = True
            post.worker, post.successor = new, None
            post.restarts += 1
            self._share_out()
            old.tell(Retire())
            await old.finish(self.config.shutdown_grace + LINGER + _CLOSING)
            replaced += 1
        log.info("rolling restart done: %d of %d workers were replaced", replaced, len(self.posts))


def _series_of(config: Config) -> frozenset[tuple[Counted, str]]:
    """Return what has series of its own while it is configured."""
    named: Mapping[Counted, Iterable[str]] = {
        "upstream": config.upstreams,
        "endpoint": config.endpoints,
        "issuer": config.authentication.tokens,
    }
    return frozenset((label, name) for label, names in named.items() for name in names)


def _folder() -> Path:
    """Make a folder that nobody else may look into; raises OSError where there is room for none.

    A root file system that cannot be written to has one left that lies in memory.
    """
    refused: OSError | None = None
    given = (os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0], os.environ.get("TMPDIR"))
    for above in (*given, "/tmp", "/dev/shm"):
        if not above or len(above) > _LONGEST_PATH:
            continue
        try:
            return Path(tempfile.mkdtemp(prefix="mcp-gateway-", dir=above))
        except OSError as error:
            refused = error
    raise refused or FileNotFoundError(errno.ENOENT, "no such folder", "/tmp")
