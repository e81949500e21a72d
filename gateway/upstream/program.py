"""One running server program: lines to its stdin, lines from its stdout, its stderr to the log, and its end.

On POSIX a keeper stands between, whose socket to us is the program's lifeline: however this process ends, the
program and all it started end with it (B27). Should the keeper itself be killed, the program and its process
group still end; only what left that group is out of reach then. The keeper also closes whatever else is open
here, so that the program has its three streams alone. On Windows the program is started directly.
"""

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gateway import config
from gateway.protocol.call import Reason, UpstreamName
from gateway.protocol.lines import LineCutter, TooLong
from gateway.support import exchange
from gateway.support.logs import redact
from gateway.support.tasks import Background, happens
from gateway.upstream.failures import Failed, ProgramEnded

log = logging.getLogger(__name__)

STEP = 2.0
"""How long a program may take to end: once its stdin is closed, and again after SIGTERM (U-31)."""

_KEEPER = Path(__file__).with_name("keeper.py")
_WINDOWS = sys.platform == "win32"
_BESIDE = os.path.dirname(sys.executable or "")
"""Where the gateway's own interpreter lies, and in a virtual environment the servers installed with it."""
_LAST_WORDS = 1.0
"""How long its pipes may stay open after it ended: what it wrote at the end is read."""
_KILLED = 6.0
"""How long killing all a program started may take before its keeper is killed, too."""
_DEAD = 5.0
"""How long it may take to hear of the end of what was killed."""
_CHUNK = 2**18
_STDERR_LINE = 4096
_SHOWN = 1000
"""Characters of one line of stderr, or of junk on stdout, in the log."""

_INHERITED = (
    "HOME",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
)
_INHERITED_ON_WINDOWS = (
    "APPDATA",
    "COMSPEC",
    "HOMEDRIVE",
    "HOMEPATH",
    "LOCALAPPDATA",
    "NUMBER_OF_PROCESSORS",
    "OS",
    "PATH",
    "PATHEXT",
    "PROCESSOR_ARCHITECTURE",
    "PROGRAMDATA",
    "PROGRAMFILES",
    "PROGRAMFILES(X86)",
    "PROGRAMW6432",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "TEMP",
    "TMP",
    "USERDOMAIN",
    "USERNAME",
    "USERPROFILE",
    "WINDIR",
)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a program is started, with its whole environment."""

    name: UpstreamName
    command: str
    args: Sequence[str] = field(repr=False, default=())
    env: Mapping[str, str] = field(repr=False, default_factory=dict)
    cwd: str | None = None
    secrets: Sequence[str] = field(repr=False, default=())
    """Values that no log may show."""

    @classmethod
    def of(cls, name: UpstreamName, settings: config.Upstream, environ: Mapping[str, str]) -> "Launch":
        """Return how the settings want it started by a gateway with this environment."""
        given = {key: secret.get_secret_value() for key, secret in settings.env.items()}
        return cls(
            name,
            settings.command or "",
            settings.args,
            environment(environ, given, beside=_BESIDE, windows=_WINDOWS),
            settings.cwd,
            [text for text in given.values() if len(text) >= config.MASKED_FROM],
        )

    def resolved(self) -> str:
        """Return the path of the program, on Windows that of its .exe or .cmd; raises Failed.

        It is looked for on the PATH that the program itself will have.
        """
        command = self.command
        if os.path.dirname(command) and self.cwd is not None:
            command = os.path.join(self.cwd, command)
        path = next((text for key, text in self.env.items() if key.upper() == "PATH"), None)
        found = shutil.which(command, path=path)
        if found is None:
            raise Failed(self.name, Reason.CONNECT, f"no program {self.command[:200]}", lost=True)
        return os.path.abspath(found)


def environment(
    environ: Mapping[str, str], given: Mapping[str, str], *, beside: str = "", windows: bool = False
) -> Mapping[str, str]:
    """Return what a program is given: what any program needs, and what is configured, nothing else (B28).

    Its PATH ends with the folder `beside`, which is on nobody's own where a client starts the gateway from a
    virtual environment; a configured PATH is taken as it is.
    """
    if windows:  # names are the same there in any case
        upper = {key.upper(): text for key, text in environ.items()}
        given = {key.upper(): text for key, text in given.items()}
        base = {key: upper[key] for key in _INHERITED_ON_WINDOWS if key in upper}
    else:
        # A value that begins like a function is run by old shells.
        base = {key: environ[key] for key in _INHERITED if not environ.get(key, "()").startswith("()")}
    if beside:
        between = ";" if windows else ":"
        folders = base.get("PATH", os.defpath).split(between)
        base["PATH"] = between.join([*folders, *([] if beside in folders else [beside])])
    return base | dict(given)


class Allowance:
    """Lets a few through at once and then so many a second, and counts the others."""

    def __init__(self, burst: int, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._rate = rate
        self._clock = clock
        self._left = float(burst)
        self._at = clock()
        self._refused = 0

    def passes(self) -> int | None:
        """Return how many were refused since the last that passed, None when this one is refused, too."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            self._refused += 1
            return None
        self._left -= 1
        refused, self._refused = self._refused, 0
        return refused


class Program:
    """A program that was started; whoever starts it also stops it."""

    def __init__(
        self,
        launch: Launch,
        process: "Spawned",
        lifeline: socket.socket | None,
        *,
        limit: int,
        step: float,
        vital: bool,
        background: Background,
    ) -> None:
        self._launch = launch
        self._vital = vital
        self._name = launch.name
        self._process = process
        self._lifeline = lifeline
        self._step = step
        self._background = background
        self._cutter = LineCutter(limit)
        self._limit = limit
        self._errors = Allowance(50, 10.0)
        self._junk = Allowance(10, 1.0)
        self._writing = asyncio.Lock()
        self._exited = asyncio.Event()
        self._silences: set[asyncio.Timeout] = set()
        """What is waited for, to be heard in a while or not at all once it ended."""
        self._silent_at: float | None = None
        self._stopped = False
        self._told = background.start(self._tell_stderr(), name=f"stderr of {self._name}")
        self._awaited = background.start(self._await_exit(), name=f"exit of {self._name}")
        self._ending: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "running" if self.running else self.end
        return f"<Program {self._name}: {state}, pid {self._process.pid}>"

    @classmethod
    async def start(
        cls,
        launch: Launch,
        *,
        limit: int,
        background: Background,
        step: float = STEP,
        vital: bool = True,
    ) -> "Program":
        """Return the program running; raises Failed when there is none such.

        `limit` bounds a line of it; one that is not `vital` may end without its upstream being lost.
        """
        command = await asyncio.to_thread(launch.resolved)
        lifeline: socket.socket | None = None
        kept: socket.socket | None = None
        arguments = [command, *launch.args]
        try:
            if not _WINDOWS:
                kept, lifeline = socket.socketpair()
            process = await Spawned.start(
                arguments, kept=kept, step=step, env=dict(launch.env), cwd=launch.cwd
            )
        except BaseException as error:
            if lifeline is not None:
                lifeline.close()
            if isinstance(error, OSError):
                detail = f"{launch.command[:200]} cannot be started: {error.strerror}"
                raise Failed(launch.name, Reason.CONNECT, detail, lost=True) from error
            raise
        finally:
            if kept is not None:
                kept.close()
        log.info("upstream %s: started %s, pid %d", launch.name, launch.command, process.pid)
        return cls(launch, process, lifeline, limit=limit, step=step, vital=vital, background=background)

    @property
    def pid(self) -> int:
        """The process that was started, which is that of the keeper where there is one."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it neither ended nor was told to."""
        return not self._exited.is_set() and not self._stopped

    @property
    def end(self) -> str:
        """How it ended, for people."""
        code = self._process.returncode
        if code is None:
            return "it closed its stdout" if not self._stopped else "it was stopped"
        return ending(code)

    # What is said to it

    async def send(self, line: bytes, within: float) -> None:
        """Write one message; raises Failed when the program ended, or does not read for so long.

        Cancelling it before the message was begun leaves nothing behind; `unsent` in the failure says so.
        """
        try:
            async with asyncio.timeout(within), self._writing:
                # What others wrote goes first, so that no more than one message waits beside the pipe.
                await self._drained()
        except TimeoutError:
            raise self._deaf(within, unsent=True) from None
        self._write(line)

    def post(self, line: bytes) -> bool:
        """Write a short message at once, unless a whole one waits already; whether it was written."""
        stdin = self._process.stdin
        if not self.running or stdin.transport.get_write_buffer_size() > self._limit:
            return False
        self._write(line)
        return True

    def _write(self, line: bytes) -> None:
        stdin = self._process.stdin
        if not self.running:
            raise self.lost(unsent=True)
        stdin.write(line + b"\n")

    async def _drained(self) -> None:
        stdin = self._process.stdin
        if not self.running:
            raise self.lost(unsent=True)
        try:
            await stdin.drain()
        except OSError:
            raise self.lost(unsent=True) from None

    def _deaf(self, within: float, *, unsent: bool) -> Failed:
        return Failed(
            self._name, Reason.TIMEOUT, f"it reads nothing of its stdin for {within:g}s", unsent=unsent
        )

    # What it says

    async def receive(self) -> Sequence[bytes | TooLong]:
        """Return the lines that came, which may be none of ours; raises Failed once it said its last.

        For one reader; cancelling it loses nothing.
        """
        while True:
            chunk = await self._some(self._process.stdout)
            if chunk:
                lines = self._cutter.feed(chunk)
            else:
                lines = self._cutter.end()
                if not lines:
                    await happens(self._exited, _LAST_WORDS)  # for its exit code
                    raise self.lost()
            if lines:
                return lines

    async def _some(self, stream: asyncio.StreamReader) -> bytes:
        """Return what comes next, nothing once that was all.

        After its end that is so soon in any case: what it left behind may hold its pipes for ever.
        """
        try:
            async with asyncio.timeout_at(self._silent_at) as silence:
                self._silences.add(silence)
                try:
                    return await stream.read(_CHUNK)
                finally:
                    self._silences.discard(silence)
        except (OSError, TimeoutError):
            return b""

    def lost(self, *, unsent: bool = False) -> Failed:
        """Return the failure of whatever the program still owed."""
        if self._stopped:
            return Failed(self._name, Reason.STOPPING, unsent=unsent)
        return ProgramEnded(self._name, self.end, unsent=unsent, lost=self._vital)

    def skip(self, line: bytes | TooLong, why: str) -> None:
        """Log a line that is no message, a few of them."""
        before = self._junk.passes()
        if before is None:
            return
        size = line.size if isinstance(line, TooLong) else len(line)
        text = line.head if isinstance(line, TooLong) else line
        log.warning(
            "upstream %s: %d bytes on stdout skipped, %s: %s%s",
            self._name,
            size,
            why,
            self._shown(text),
            f" ({before} more not shown)" if before else "",
        )

    async def _tell_stderr(self) -> None:
        exchange.detach()
        cutter = LineCutter(_STDERR_LINE)
        while chunk := await self._some(self._process.stderr):
            self._tell(cutter.feed(chunk))
        self._tell(cutter.end())

    def _tell(self, lines: Iterable[bytes | TooLong]) -> None:
        for line in lines:
            text = line.head if isinstance(line, TooLong) else line
            before = self._errors.passes() if text.strip() else None
            if before is not None:
                more = f" ({before} more lines not shown)" if before else ""
                log.info("upstream %s: stderr: %s%s", self._name, self._shown(text), more)

    def _shown(self, text: bytes) -> str:
        return redact(text.decode("utf-8", "replace").strip(), self._launch.secrets)[:_SHOWN]

    # Its end

    async def exited(self) -> str:
        """Return how it ended, once it has."""
        await self._exited.wait()
        return self.end

    async def stop(self) -> None:
        """End it and all it started, and return once they are gone; stopping twice is no harm."""
        if self._ending is None:
            self._stopped = not self._exited.is_set()
            self._hang_up()
            self._ending = self._background.start(self._end(), name=f"stop {self._name}")
        await asyncio.wait([self._ending])

    async def _end(self) -> None:
        try:
            if _WINDOWS:
                await self._farewell()
            elif not await happens(self._exited, 2 * self._step + _KILLED):
                self._kill()  # its keeper does not even keep the time
            if not await happens(self._exited, _DEAD):
                log.error("upstream %s: pid %d does not end", self._name, self._process.pid)
            await asyncio.wait([self._told], timeout=_LAST_WORDS)
        finally:
            self._told.cancel()
            self._process.close()

    def _hang_up(self) -> None:
        self._process.stdin.close()
        if self._lifeline is not None:
            with suppress(OSError):
                self._lifeline.shutdown(socket.SHUT_WR)

    def _bury(self) -> None:
        """Kill what the program started if its keeper cannot: it was killed itself."""
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is None:
            return
        with lifeline, suppress(OSError, ValueError):
            lifeline.setblocking(False)
            group = int(lifeline.recv(32))
            if (self._process.returncode or 0) < 0:  # it passes on how the program ended as 128 + N
                os.killpg(group, signal.SIGKILL)

    async def _farewell(self) -> None:
        """End a program without a keeper: stdin is closed, then it is terminated, which Windows does hard."""
        if not await happens(self._exited, self._step):
            self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _await_exit(self) -> None:
        try:
            await self._process.exited.wait()
            self._bury()
        finally:
            self._exited.set()
            self._silent_at = asyncio.get_running_loop().time() + _LAST_WORDS
            for silence in self._silences:
                silence.reschedule(self._silent_at)
        log.log(
            logging.DEBUG if self._stopped else logging.WARNING,
            "upstream %s: its program, pid %d, ended: %s",
            self._name,
            self._process.pid,
            self.end,
        )


def ending(code: int) -> str:
    """Return what an exit status says, for people."""
    number = -code if code < 0 else code - 128
    if code < 0 or number in set(signal.Signals):
        with suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
    return f"exit code {code}"


class Spawned:
    """A process that was spawned: its pipes, and its end, which waits for none of them.

    The event loops make such pipes as well, but uvloop keeps the far ends open here, even of what it is given
    for stdout, so that nobody notices that a program closed its own; and asyncio does not tell of an exit
    while anybody holds them.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        transport: asyncio.SubprocessTransport,
        exited: asyncio.Event,
        streams: "Sequence[tuple[asyncio.StreamReader, asyncio.ReadTransport]]",
    ) -> None:
        assert process.stdin is not None
        self._process = process
        self._transport = transport
        self._streams = streams
        self.exited = exited
        self.pid = process.pid
        self.stdin = process.stdin
        if streams:
            (self.stdout, _), (self.stderr, _) = streams
        else:
            assert process.stdout is not None
            assert process.stderr is not None
            self.stdout, self.stderr = process.stdout, process.stderr

    def __repr__(self) -> str:
        return f"<Spawned {self._process!r}>"

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        *,
        kept: socket.socket | None,
        step: float,
        env: Mapping[str, str],
        cwd: str | None,
    ) -> "Spawned":
        """Return it running, under a keeper with this end of its lifeline; raises OSError."""
        loop = asyncio.get_running_loop()
        streams: list[tuple[asyncio.StreamReader, asyncio.ReadTransport]] = []
        far: list[int] = []
        passed: list[int] = []
        try:
            if kept is not None:
                for _ in ("stdout", "stderr"):
                    near, end = os.pipe()
                    far.append(end)
                    streams.append(await _stream(near))
                passed = [kept.fileno(), *far]
                keeper = [str(_KEEPER), *map(str, passed), str(step)]
                arguments = [sys.executable, "-I", "-S", *keeper, *arguments]
            transport, protocol = await loop.subprocess_exec(
                lambda: _Watching(_CHUNK, loop),
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL if far else asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL if far else asyncio.subprocess.PIPE,
                env=env,
                cwd=cwd,
                start_new_session=kept is not None,
                pass_fds=passed,
            )
        except BaseException:
            for _, reading in streams:
                reading.close()
            raise
        finally:
            for end in far:
                os.close(end)
        process = asyncio.subprocess.Process(transport, protocol, loop)
        return cls(process, transport, protocol.exited, streams)

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def kill(self) -> None:
        """Kill it; raises ProcessLookupError when it is gone."""
        self._process.kill()

    def close(self) -> None:
        """Let go of its pipes."""
        self._transport.close()
        for _, reading in self._streams:
            reading.close()


class _Watching(asyncio.subprocess.SubprocessStreamProtocol):
    """Tells of the exit when it is heard of."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit, loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


async def _stream(fd: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """Return what is read from a pipe, and what closes it."""
    reader = asyncio.StreamReader(_CHUNK)
    pipe = os.fdopen(fd, "rb", 0)
    try:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
    except BaseException:
        pipe.close()
        raise
    return reader, transport
