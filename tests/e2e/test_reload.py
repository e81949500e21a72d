"""A gateway process that is told by a signal to go on by its configuration as that is now."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.kin import MARK, mark, marked
from tests.support.processes import Program, free_port, start, text_of, wait_for

SERVER = Path(__file__).parents[1] / "support" / "programs" / "server.py"


class Reloaded:
    """A gateway of one configuration file, whose status is asked for."""

    def __init__(self, file: Path, program: Program, admin: str) -> None:
        self.file = file
        self.program = program
        self.admin = admin

    def status(self) -> dict[str, Any]:
        return dict(json.loads(text_of(f"http://{self.admin}/status.json")))

    def hang_up(self) -> None:
        """Send SIGHUP."""
        self.program.process.send_signal(signal.SIGHUP)

    def until(self, so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the status once it is so."""
        give_up = time.monotonic() + 30
        while not so(status := self.status()):
            assert time.monotonic() < give_up, f"{status}\n{self.program.written()}"
            time.sleep(0.05)
        return status

    def metric(self, name: str) -> float:
        lines = text_of(f"http://{self.admin}/metrics").splitlines()
        return next(float(line.split(" ")[1]) for line in lines if line.startswith(f"mcp_gateway_{name} "))


def upstream(name: str, text: str, **members: Any) -> dict[str, Any]:
    """Return the settings of a program that is found by what stands in its environment."""
    return {name: {"command": sys.executable, "args": [str(SERVER)], "env": {MARK: text}, **members}}


def written(file: Path, upstreams: dict[str, Any], **members: Any) -> None:
    """Write a configuration; YAML holds JSON."""
    file.write_text(json.dumps({"upstreams": upstreams, **members}))


@contextmanager
def serving(folder: Path, upstreams: dict[str, Any], **members: Any) -> Iterator[Reloaded]:
    """Run the gateway of a file; `members` stay for what else is written there."""
    file, admin = folder / "gateway.yaml", f"127.0.0.1:{free_port()}"
    written(file, upstreams, **members)
    listen = f"127.0.0.1:{free_port()}"
    program = start("gateway", "serve", "--config", str(file), "--listen", listen, "--admin", admin)
    try:
        wait_for(f"http://{admin}/readyz", program)
        yield Reloaded(file, program, admin)
    finally:
        program.close()


def test_sighup_applies_the_file_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    """The program that is configured as before is the same process; the other's is another one."""
    kept, changed = mark(), mark()
    with serving(tmp_path, upstream("kept", kept) | upstream("changed", changed)) as gateway:
        before, other = marked(kept), marked(changed)
        first = gateway.metric("config_last_reload_success_timestamp_seconds")
        written(
            gateway.file, upstream("kept", kept, prefix="k") | upstream("changed", changed, timeout="20s")
        )
        gateway.hang_up()
        gateway.until(
            lambda status: (
                status["config"]["generation"] == 2 and status["upstreams"]["changed"]["state"] == "up"
            )
        )
        assert marked(kept) == before
        gateway.until(lambda _: not set(marked(changed)) & set(other))
        assert gateway.metric("config_generation") == 2
        assert gateway.metric("config_last_reload_successful") == 1
        assert gateway.metric("config_last_reload_success_timestamp_seconds") > first
        gateway.program.process.send_signal(signal.SIGTERM)
        assert gateway.program.wait(15) == 0


def test_a_broken_file_keeps_what_there_is_and_says_where_it_is_broken(tmp_path: Path) -> None:
    """In the log with file, line and path, in the status, and for an alert; a mended one counts."""
    kept = mark()
    with serving(tmp_path, upstream("kept", kept)) as gateway:
        before = marked(kept)
        gateway.file.write_text("upstreams:\n  kept: {comand: x}\n")
        gateway.hang_up()
        problem = gateway.until(lambda status: status["config"]["problem"] is not None)["config"]["problem"]
        assert "gateway.yaml:2: upstreams.kept" in problem
        assert gateway.status()["config"]["generation"] == 1
        assert gateway.metric("config_last_reload_successful") == 0
        assert marked(kept) == before
        assert "gateway.yaml:2: upstreams.kept" in gateway.program.written()
        written(gateway.file, upstream("kept", kept), listen="127.0.0.1:9", log={"level": "debug"})
        gateway.hang_up()
        status = gateway.until(lambda status: status["config"]["problem"] is None)
        assert status["config"]["generation"] == 2
        assert status["config"]["needs_restart"] == []  # the command line says where it listens
        assert marked(kept) == before


def test_a_secret_that_is_new_is_in_no_log(tmp_path: Path) -> None:
    """As it was for the ones before, from the moment it was read (B42)."""
    kept, secret = mark(), "S3CRET-canary-of-a-later-file"
    port = free_port()
    with serving(tmp_path, upstream("kept", kept), log={"level": "debug"}) as gateway:
        url = f"http://127.0.0.1:{port}/mcp?{secret}"
        later = {"later": {"url": url, "auth": {"bearer": secret}}}
        written(gateway.file, upstream("kept", kept) | later, log={"level": "debug"})
        gateway.hang_up()
        gateway.until(lambda status: "later" in status["upstreams"])
        gateway.until(lambda status: status["upstreams"]["later"]["state"] == "down")
        assert secret not in gateway.program.written()


def test_a_file_that_changes_is_applied(tmp_path: Path) -> None:
    """Without a signal; so is a secret that it names, for which its upstream is another one by then."""
    kept, secret = mark(), tmp_path / "secret"
    secret.write_text("first-secret-value")
    url = f"http://127.0.0.1:{free_port()}/mcp"
    others = {"other": {"url": url, "auth": {"bearer": {"file": "secret"}}}}
    with serving(tmp_path, upstream("kept", kept)) as gateway:
        before = marked(kept)
        written(gateway.file, upstream("kept", kept) | others)
        gateway.until(lambda status: "other" in status["upstreams"])
        secret.write_text("other-secret-value")
        gateway.until(lambda status: status["config"]["generation"] == 3)
        assert marked(kept) == before
        gateway.file.write_text("{")
        gateway.until(lambda status: status["config"]["problem"] is not None)
        written(gateway.file, upstream("kept", kept), watch=False)
        gateway.until(lambda status: status["config"]["generation"] == 4)
        assert gateway.status()["config"]["problem"] is None
        assert gateway.program.written().count("configuration 3 is in force: changed other") == 1
