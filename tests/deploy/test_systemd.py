"""The unit of systemd: checked by systemd itself, and the gateway run with what of it needs no systemd."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config import Config
from tests.support.processes import ROOT, free_port, launch, wait_for

pytestmark = pytest.mark.timeout(120)

UNIT = ROOT / "deploy" / "systemd" / "mcp-gateway.service"
MOST_EXPOSED = 1.5
"""Of 10, as systemd-analyze counts: "safe" is anything below 2."""

CONFINED = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
refuse_exec_gain = 1
assert libc.prctl(65, refuse_exec_gain, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())  # PR_SET_MDWE
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
os.execv({sys.executable!r}, [{sys.executable!r}, "-m", "gateway", *__import__("sys").argv[1:]])
"""

analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def values(key: str) -> list[str]:
    """Return what the unit says for a key."""
    pairs = (line.partition("=") for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#")
    return [value for name, _, value in pairs if name == key]


@analyze
def test_systemd_finds_no_mistake(tmp_path: Path) -> None:
    """Every key is known, every value fits, and what is started can be."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/mcp-gateway/bin/mcp-gateway", "/bin/true"))
    found = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")


@analyze
def test_the_service_is_little_exposed() -> None:
    """What is taken away from the unit is taken away for a reason that stands there."""
    threshold = f"--threshold={int(MOST_EXPOSED * 10)}"
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", threshold, str(UNIT)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout[-500:]


def test_it_has_the_time_and_the_files_that_the_defaults_need() -> None:
    """It is not killed while it drains, and every client may come."""
    settings = Config.model_validate({"upstreams": {"time": "http://127.0.0.1:9001/mcp"}})
    (stop,), (files,) = values("TimeoutStopSec"), values("LimitNOFILE")
    assert int(stop.removesuffix("s")) >= 2 * settings.shutdown_grace
    assert int(files) >= 2 * settings.limits.connections


def test_its_commands_are_those_of_the_program(tmp_path: Path) -> None:
    """Started as the unit says, with another file: it checks, serves, and outlives a reload."""
    ((_, *check),) = (line.split() for line in values("ExecStartPre"))
    ((_, *serve),) = (line.split() for line in values("ExecStart"))
    (reload,) = values("ExecReload")
    assert reload == "/bin/kill -HUP $MAINPID"
    admin = free_port()
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:{admin}\nupstreams: {{time: 'http://127.0.0.1:9/mcp'}}\n"
    )
    said = "/etc/mcp-gateway/gateway.yaml"
    check, serve = ([str(file) if word == said else word for word in words] for words in (check, serve))
    assert subprocess.run([sys.executable, "-m", "gateway", *check], cwd=ROOT, timeout=30).returncode == 0
    program = launch(sys.executable, "-c", CONFINED, *serve)
    try:
        wait_for(f"http://127.0.0.1:{admin}/readyz", program, timeout=30)
        subprocess.run(
            ["sh", "-c", reload], env={**os.environ, "MAINPID": str(program.process.pid)}, check=True
        )
        wait_for(f"http://127.0.0.1:{admin}/readyz", program)
    finally:
        program.close()
    assert program.process.returncode == 0
