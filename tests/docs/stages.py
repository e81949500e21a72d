"""The stages on which the commands of a page are run: a folder, programs on PATH, servers that answer.

All blocks of a page on one stage are one story: they run in their order, in one folder, and what is exported
or goes on running in one is there in the next. Ports are not those of the page but free ones, in commands,
files and outputs alike, so that many stories can be played at once.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.pages import Block
from tests.support.processes import ROOT, free_port
from tests.support.published import FOLDER

LONGEST = 300.0
"""Seconds that one block may take, and that `until` may wait."""
_PORTS = re.compile(r"(?:127\.0\.0\.1|localhost|0\.0\.0\.0|\[::1?\]|--port|--admin-port)[: ](\d{4,5})\b")
_ALWAYS = (8080, 9090)

# The real command, but for the ports that a configuration may leave out.
_GATEWAY = """\
#!{python}
import sys
sys.path.insert(0, {root!r})
from gateway.settings.models import Config
for key, port in {ports!r}.items():
    Config.model_fields[key].default = f"127.0.0.1:{{port}}"
Config.model_rebuild(force=True)
from gateway.cli import main
sys.exit(main())
"""

# Each block is a script of its own; what it exports and where it goes is kept for the next.
_BLOCK = """\
set -euo pipefail
cd "$(cat "$STAGE/cwd")"
. "$STAGE/env"
trap 'export -p | grep -v "^declare -x \\(STAGE\\|_\\)=" >"$STAGE/env"; pwd >"$STAGE/cwd"' EXIT
"""


class Failed(Exception):
    """A block did not do what the page says; the message says which and what happened."""


@dataclass
class Running:
    """A block's process, and the file that holds what it printed."""

    block: Block
    process: subprocess.Popen[bytes]
    output: Path

    def printed(self) -> str:
        return self.output.read_text("utf-8", "replace")


@dataclass
class Stage:
    """A folder in which blocks are run, and all that was started there."""

    folder: Path
    ports: dict[int, int] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def _own(self) -> Path:
        return self.folder / ".stage"

    def set(self) -> None:
        """Put the programs on PATH that every stage has."""
        programs = self._own / "bin"
        programs.mkdir(parents=True)
        (self.folder / "work").mkdir()
        (self._own / "cwd").write_text(str(self.folder / "work"))
        (self._own / "env").write_text("")
        ports = {"listen": self.ports[8080], "admin": self.ports[9090]}
        gateway = programs / "mcp-gateway"
        gateway.write_text(_GATEWAY.format(python=sys.executable, root=str(ROOT), ports=ports))
        gateway.chmod(0o755)
        for name in ("mcp-server-time", "mcp-server-git"):
            if (FOLDER / "venv" / "bin" / name).exists():
                (programs / name).symlink_to((FOLDER / "venv" / "bin" / name).resolve())

    def moved(self, text: str) -> str:
        """Return a text with the ports of this stage in the place of the page's."""
        return _numbers(text, self.ports)

    def back(self, text: str) -> str:
        """Return what was printed as the page has it."""
        return _numbers(text, {ours: theirs for theirs, ours in self.ports.items()})

    def write(self, block: Block) -> None:
        """Write a block to its file."""
        file = Path((self._own / "cwd").read_text().strip()) / block.marks["file"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.moved(block.text), "utf-8")

    def run(self, block: Block) -> str:
        """Run a block's commands and return what they printed; raises Failed."""
        if (text := block.marks.get("stop")) is not None:
            self.stop(text, block)
        running = self._start(block)
        if (text := block.marks.get("until")) is not None:
            self._wait(running, lambda: text in self.back(running.printed()), f"printed {text!r}")
            if running.process.poll() is not None:
                raise Failed(f"{block}: it has ended\n{running.printed()}")
            return self.back(running.printed())
        self._wait(running, lambda: running.process.poll() is not None, "ended")
        code, wanted = running.process.returncode, int(block.marks.get("exit", "0"))
        printed = self.back(running.printed())
        if code != wanted:
            raise Failed(
                f"{block}: exit code {code}, not {wanted}\n{block.text}\n{printed}{self._others(running)}"
            )
        return printed

    def stop(self, text: str, block: Block) -> None:
        """Stop a command of an earlier block as Ctrl-C does, and wait for its end."""
        for one in reversed(self.running):
            if text in one.block.text and one.process.poll() is None:
                os.killpg(one.process.pid, signal.SIGINT)
                self._wait(one, lambda one=one: one.process.poll() is not None, "ended after Ctrl-C")
                return
        raise Failed(f"{block}: nothing that holds {text!r} is running")

    def clear(self) -> None:
        """End everything that was started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for one in self.running:
                if _group_lives(one.process.pid):
                    os.killpg(one.process.pid, number)
            give_up = time.monotonic() + 15
            while time.monotonic() < give_up and any(_group_lives(one.process.pid) for one in self.running):
                for one in self.running:
                    one.process.poll()
                time.sleep(0.05)

    def _start(self, block: Block) -> Running:
        output = self._own / f"output-{len(self.running)}"
        path = f"{self._own / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        clean = {name: text for name, text in os.environ.items() if not name.startswith(("MCP", "GATEWAY"))}
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", _BLOCK + self.moved(block.text)],
                env={**clean, "PATH": path, "STAGE": str(self._own), "NO_COLOR": "1", **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(Running(block, process, output))
        return self.running[-1]

    def _wait(self, running: Running, done: Callable[[], bool], what: str) -> None:
        # Whatever runs here sends no event to wait for: asking again is all there is.
        give_up = time.monotonic() + LONGEST
        while not done():
            ended = running.process.poll() is not None
            if (ended and not done()) or time.monotonic() > give_up:
                printed = self.back(running.printed()) + self._others(running)
                raise Failed(f"{running.block}: it has not {what}\n{running.block.text}\n{printed}")
            time.sleep(0.02)

    def _others(self, failed: Running) -> str:
        """Return what the commands that go on running printed, which may say why another failed."""
        others = [one for one in self.running if one is not failed and "until" in one.block.marks]
        return "".join(f"\n--- {one.block} printed\n{self.back(one.printed())[-4000:]}" for one in others)


def _numbers(text: str, instead: dict[int, int]) -> str:
    if not instead:
        return text
    known = "|".join(map(str, instead))
    return re.sub(rf"(?<![\d.])({known})(?!\d)", lambda found: str(instead[int(found[1])]), text)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _nothing(stage: Stage) -> None:
    """The command mcp-gateway, and servers from PyPI as programs."""


def _demo(stage: Stage) -> None:
    """The servers of deploy/demo: notes at 9101 and clock at 9102."""
    for name, port in (("notes", 9101), ("clock", 9102)):
        command = f"cd {ROOT} && exec {sys.executable} -m deploy.demo.{name} --port {port}\n"
        stage.run(Block("stage demo", port, "sh", command, marks={"until": "listens on"}))


def _redis(stage: Stage) -> None:
    """Redis at 6379."""
    command = "exec redis-server --port 6379 --save '' --appendonly no\n"
    stage.run(Block("stage redis", 6379, "sh", command, marks={"until": "eady to accept connections"}))


def _checkout(stage: Stage) -> None:
    """A copy of this repository, in which nothing is installed yet."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            target = stage.folder / "work" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


STAGES: dict[str, tuple[Callable[[Stage], None], Sequence[int]]] = {
    "bare": (_nothing, ()),
    "demo": (_demo, (9101, 9102)),
    "redis": (_redis, (6379,)),
    "checkout": (_checkout, ()),
}
"""Name -> what sets it, and the ports that it serves."""


@contextmanager
def stage(name: str, story: Sequence[Block]) -> Iterator[Stage]:
    """Set a stage for some blocks, and clear it."""
    make, served = STAGES[name]
    named = {int(port) for block in story for port in _PORTS.findall(block.text)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="docs-")))
        ports = {port: free_port() for port in sorted({*named, *served, *_ALWAYS})}
        made = Stage(folder, ports)
        made.set()
        stack.callback(made.clear)
        make(made)
        yield made


def mismatch(shown: str, printed: str) -> str | None:
    """Return what is different between an output as a page shows it and the real one, None if nothing is."""
    lines = [re.sub(r"\s+", " ", line).strip() for line in shown.strip().splitlines()]
    real = "\n".join(re.sub(r"\s+", " ", line).strip() for line in printed.strip().splitlines()) + "\n"
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"\n"
        for line in lines
    )
    if re.fullmatch(pattern, real):
        return None
    lost = [
        line
        for line in lines
        if line != "…" and not re.search("^" + ".*?".join(map(re.escape, line.split("…"))) + "$", real, re.M)
    ]
    return f"shown, and not printed: {lost or 'in this order, with nothing between'}\nprinted was:\n{printed}"
