"""The file that people have works as it is, and the configuration made of it does the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT, reference_server

pytestmark = pytest.mark.timeout(60)  # five processes, each with the servers it asks

PROGRAM = ROOT / "tests" / "support" / "programs" / "server.py"
FILE = """// The servers of this project.
{
  "inputs": [{"type": "promptString", "id": "api-key", "password": true}],
  "servers": {
    "Old Program": {
      "type": "stdio",
      "command": %(python)s,
      "args": [%(program)s, "--era", "legacy"],
      "env": {"API_KEY": "${input:api-key}", "PASSWORD": "hunter2"}, // both are secrets
    },
    "all": {"type": "http", "url": %(url)s, "gallery": true},
    "off": {"command": "no-such-program", "disabled": true},
  },
}
"""


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_an_editors_file_is_served_and_made_a_configuration_of(tmp_path: Path) -> None:
    """A program of an older era beside a server on the network; no secret is copied."""
    with reference_server() as url:
        servers, made = tmp_path / ".vscode" / "mcp.json", tmp_path / "gateway.yaml"
        servers.parent.mkdir()
        values = {"python": sys.executable, "program": str(PROGRAM), "url": url}
        servers.write_text(FILE % {key: json.dumps(value) for key, value in values.items()})
        missing = command("check", str(servers))
        assert missing.returncode == 2
        assert "the variable API_KEY: set it" in missing.stderr
        listed = command("tools", str(servers), "--json", API_KEY="a-long-key")
        assert listed.returncode == 0, listed.stderr
        names = {tool["name"] for tool in json.loads(listed.stdout)["tools"]}
        assert {"old-program__echo", "all__test_simple_text"} <= names
        written = command("init", "--from", str(servers), str(made))
        assert written.returncode == 0, written.stderr
        assert "set API_KEY, PASSWORD, and then try" in written.stderr
        assert "hunter2" not in made.read_text()
        secrets = {"API_KEY": "a-long-key", "PASSWORD": "hunter2"}
        again = command("tools", "--config", str(made), "--json", **secrets)
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["tools"] == json.loads(listed.stdout)["tools"]
        checked = command("check", str(made), "--json", **secrets)
        assert json.loads(checked.stdout) == {"ok": True, "problems": [], "warnings": []}
