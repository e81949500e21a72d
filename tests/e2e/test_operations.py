"""The commands that talk to a running gateway, as processes of their own: ask, explain, purge, explain."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client

from tests.support.processes import ROOT, RunningGateway

pytestmark = pytest.mark.timeout(60)  # eight processes, a second or two each

VERSION = "2026-07-28"


def command(config: Path, *arguments: str, **env: str) -> tuple[int, str, str]:
    """Run one command to its end; return exit code, stdout and stderr."""
    name, *rest = arguments
    done = subprocess.run(
        [sys.executable, "-m", "gateway", name, "--config", str(config), *rest],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


async def list_prompts(running: RunningGateway) -> None:
    async with Client(running.endpoint, mode=VERSION, cache=None) as client:
        await client.list_prompts()


async def test_one_round_of_asking_why_and_forgetting(
    demo: RunningGateway, demo_upstreams: str, tmp_path: Path
) -> None:
    """Absent, then a hit, then forgotten; for the token that is in the environment as for nobody.

    Of prompts, whose lists live for minutes: so many processes may take longer than a list of tools lives.
    """
    config = tmp_path / "gateway.yaml"
    config.write_text(f"admin: {demo.admin.removeprefix('http://')}\nupstreams: {demo_upstreams}\n")

    def explained(*options: str, **env: str) -> tuple[str, str]:
        code, out, err = command(config, "explain", "--json", *options, "prompts/list", **env)
        assert code == 0, err
        said = json.loads(out)
        return said["verdict"], said["reason"]

    assert explained() == ("MISS", "absent")
    await list_prompts(demo)
    assert explained() == ("HIT", "fresh")
    assert explained("--token-env", "TOK", TOK="a-token-of-a-test") == ("HIT", "fresh")
    code, out, _ = command(config, "explain", "prompts/list")
    assert (code, out.splitlines()[0]) == (0, "/mcp prompts/list for anonymous: HIT fresh")
    code, out, _ = command(config, "purge", "notes", "--method", "prompts/list")
    assert (code, out.split()) == (0, ["forgotten:", "notes", "prompts/list"])
    assert explained() == ("MISS", "generation")
    assert command(config, "explain", "tools/nope")[0] == 2


def test_the_doctor_finds_the_demo_healthy(demo_upstreams: str, tmp_path: Path) -> None:
    """As a process: a table, what is public compared, and nothing to be mended."""
    config = tmp_path / "gateway.yaml"
    config.write_text(f"upstreams: {demo_upstreams}\n")
    code, out, err = command(config, "doctor", "--audit")
    assert code == 0, out + err
    assert "notes  ok       up     modern  2026-07-28  none: none needed" in out
    assert "resources/read note://guide  ttlMs 3600000, public  shared" in out
    assert "Traceback" not in err
    config.write_text("upstreams: {gone: 'http://127.0.0.1:9/mcp'}\n")
    code, out, err = command(config, "doctor", "--json")
    (found,) = json.loads(out)["findings"]
    assert (code, found["level"], found["kind"], found["upstream"]) == (1, "problem", "refused", "gone")
    assert "next: " in err


def test_a_gateway_that_is_not_there_is_said_plainly(tmp_path: Path) -> None:
    """Exit code 1, what to do next, and no traceback."""
    config = tmp_path / "gateway.yaml"
    config.write_text("admin: 127.0.0.1:1\nupstreams: {a: 'http://127.0.0.1:1/mcp'}\n")
    code, out, err = command(config, "purge")
    assert (code, out) == (1, "")
    assert "no gateway answers at 127.0.0.1:1" in err
    assert "next: " in err
    assert "Traceback" not in err
