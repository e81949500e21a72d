"""A program of its own: starts one server, and ends it with all its kin once the gateway is gone or says so.

`python -I -S keeper.py LIFELINE STDOUT STDERR STEP COMMAND ARGUMENT…` imports nothing of the gateway. The
LIFELINE is a socket whose other end is the gateway's alone. Whether the gateway closes it or is killed, its
end is seen here, so that one way of ending serves both. Over it goes one word, the process group of the
command, for the gateway to kill should the keeper be killed before it. The command runs in a process group
of its own, its stdin being the keeper's, its stdout and stderr the pipes that are named. It is given no other
descriptor: whatever else came along from the gateway, or from who started that, is closed first.

Why not in the gateway itself: what has threads must not run code between fork and exec, as prctl would
need, and that would end the child only, not what it started. A keeper has one thread. On Linux orphans
become its children, whatever group or session they moved to, so that it can end them too; elsewhere it
ends the process group. It exits as the command did, with 128 + N where signal N ended that.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127
_LOOK = 0.02
"""How often it is looked whether a group whose leader ended is empty: nobody tells."""
_MOST_FILES = 2**16
"""Descriptors that are closed where the system does not say which there are."""
_LAST = 5.0
"""How long killed processes may take to be gone, before the keeper leaves them to init."""


def main(arguments: Sequence[str]) -> int:
    """Return the exit status of the command."""
    lifeline, stdout, stderr = map(int, arguments[:3])
    step, command = float(arguments[3]), arguments[4:]
    os.set_inheritable(lifeline, False)
    _close_all_but((0, 1, 2, lifeline, stdout, stderr))
    for pipe, stream in ((stdout, 1), (stderr, 2)):
        os.dup2(pipe, stream)
        os.close(pipe)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    asked: list[int] = []
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))
    prctl = _prctl()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        _become(command, prctl)
    with suppress(OSError):  # it did so itself, and runs another program already
        os.setpgid(child, child)
    with suppress(OSError):  # the gateway may be gone already
        os.write(lifeline, str(child).encode())
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # the ends of the pipes are the command's alone
        os.dup2(nothing, stream)
    keeper = Keeper(child, step, wake)
    keeper.watch(lifeline, asked)
    return keeper.sweep()


class Keeper:
    """The command and whatever it started."""

    def __init__(self, child: int, step: float, wake: int) -> None:
        self._child = child
        self._step = step
        self._wake = wake
        self._status: int | None = None

    def watch(self, lifeline: int, asked: Sequence[int]) -> None:
        """Return when the command ended by itself, or when the time of those who were asked to end is over.

        The gateway has closed their stdin by then. They have one step to end, then SIGTERM, then another.
        """
        while not asked:
            ready = self._sleep(None, lifeline)
            if self._reap():
                return
            if lifeline in ready:
                break
        if not asked and self._gone_within(self._step):
            return
        self._signal(signal.SIGTERM)
        self._gone_within(self._step)

    def sweep(self) -> int:
        """Kill what is left, and return the command's exit status once nothing is."""
        give_up = time.monotonic() + _LAST
        while time.monotonic() < give_up:
            self._signal(signal.SIGKILL)
            for pid in _children():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if self._reap() and not self._has_children():
                break
            self._sleep(_LOOK)
        status = signal.SIGKILL if self._status is None else self._status
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)

    def _gone_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._reap() and not self._signal(0):
                return True
            self._sleep(left if self._status is None else min(left, _LOOK))
        return False

    def _sleep(self, seconds: float | None, *others: int) -> list[int]:
        """Wait for a signal, for one of these to be readable, or for so many seconds."""
        ready, _, _ = select.select([self._wake, *others], [], [], seconds)
        if self._wake in ready:
            with suppress(BlockingIOError):
                os.read(self._wake, 4096)
        return ready

    def _reap(self) -> bool:
        """Collect whoever ended, orphans included; whether the command did."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._child:
                    self._status = status
        return self._status is not None

    def _has_children(self) -> bool:
        try:
            return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def _signal(self, number: int) -> bool:
        """Send the group a signal; whether anybody is in it."""
        try:
            os.killpg(self._child, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # somebody there became another user, or, on macOS, is a zombie
            return self._status is None
        return True


def _close_all_but(kept: Sequence[int]) -> None:
    """Close every other descriptor: libuv passes on what is inheritable, and ends of its own."""
    for descriptor in _open_descriptors():
        if descriptor not in kept:
            with suppress(OSError):  # the one that the folder was read with
                os.close(descriptor)


def _open_descriptors() -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return range(3, min(max(os.sysconf("SC_OPEN_MAX"), 0) or _MOST_FILES, _MOST_FILES))


def _become(command: Sequence[str], prctl: Callable[[int, int], None]) -> None:
    """Turn this child into the command; never returns."""
    keeper = os.getppid()
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # should the keeper itself be killed
        if os.getppid() != keeper:
            os._exit(_NOT_EXECUTABLE)
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


def _prctl() -> Callable[[int, int], None]:
    """Return Linux's prctl, elsewhere a function that does nothing."""
    if not sys.platform.startswith("linux"):
        return lambda option, value: None
    try:
        import ctypes

        library = ctypes.CDLL(None)
        return lambda option, value: library.prctl(option, value, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return lambda option, value: None


def _children() -> list[int]:
    """Return the children of this process, orphans it was given included, where the system tells."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    status = main(sys.argv[1:])
    os._exit(status)  # nothing here is worth the time of an orderly end
