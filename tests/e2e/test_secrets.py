"""Processes as people start them, at debug level, and no secret in anything they print (B42)."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.canaries import Canaries
from tests.support.processes import ROOT, free_port, reference_server, start, wait_for

SECRETS = Canaries()
ENV = {name: SECRETS[name] for name in ("BEARER", "HEADER", "QUERY", "RING", "PASSWORD", "GIVEN", "CALLER")}
CONFIG = """
listen: 127.0.0.1:{port}
admin: 127.0.0.1:{admin}
startup_wait: 1s
log: {{level: debug, format: {format}}}
secrets: {{keys: ["${{RING}}"]}}
cache: {{redis: "redis://:${{PASSWORD}}@127.0.0.1:1/0"}}
authentication: {{anonymous: true, keys: {{ci: {{hash: "sha256:{hash}"}}}}}}
upstreams:
  good: {{url: "{url}", auth: {{bearer: "${{BEARER}}"}}}}
  query: {{url: "{url}?api_key=${{QUERY}}", auth: {{headers: {{X-Key: "${{HEADER}}"}}}}}}
  gone: {{url: "http://user:${{PASSWORD}}@127.0.0.1:1/mcp?key=${{QUERY}}"}}
  program: {{command: "{python}", args: ["-c", "{code}", "--token=${{GIVEN}}"], env: {{KEY: "${{GIVEN}}"}}}}
"""
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
CODE = "import os,sys; sys.stderr.write(str(sys.argv) + str(dict(os.environ)) + chr(10)); sys.exit(3)"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with reference_server() as url:
        yield url


def written(folder: Path, url: str, form: str = "text") -> tuple[Path, str, str]:
    """Write a configuration with a secret at every place, and return where it listens."""
    port, admin = free_port(), free_port()
    text = CONFIG.format(
        port=port,
        admin=admin,
        format=form,
        url=url,
        python=sys.executable,
        code=CODE,
        hash=sha256(SECRETS["CALLER"].encode()).hexdigest(),
    )
    file = folder / "gateway.yaml"
    file.write_text(text.replace("user:${PASSWORD}@", ""))  # which check refuses; the others read on
    return file, f"http://127.0.0.1:{port}/mcp", f"http://127.0.0.1:{admin}"


@pytest.mark.parametrize(
    "command",
    [
        ["check"],
        ["tools", "--config"],
        ["tools", "--json", "--config"],
        ["doctor", "--config"],
        ["doctor", "--json", "--config"],
        ["doctor", "--json", "--audit", "--token-env", "CALLER", "--config"],
    ],
    ids=" ".join,
)
@pytest.mark.timeout(60)
def test_no_command_prints_a_secret(tmp_path: Path, url: str, command: list[str]) -> None:
    """Whatever it finds wrong: two servers and Redis are out of reach, a program says all it knows."""
    file, _, _ = written(tmp_path, url)
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *command, str(file)],
        cwd=ROOT,
        env={**os.environ, **ENV},
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout or done.stderr
    assert SECRETS.seen_in(done.stdout) == []
    assert SECRETS.seen_in(done.stderr) == []


def test_a_configuration_that_is_refused_is_not_quoted(tmp_path: Path, url: str) -> None:
    """A login in a URL is a mistake, told without the login; so is each mistake beside a secret."""
    file, _, _ = written(tmp_path, url)
    text = file.read_text()
    for wrong in (
        text.replace("127.0.0.1:1/mcp", "user:${PASSWORD}@127.0.0.1:1/mcp"),
        text.replace("X-Key:", "X Key:"),
        text.replace("upstreams:", "upstreams:\n  ${BEARER}: 1"),
        text.replace("listen:", "${QUERY}:"),
        text.replace("redis://:", "redis//:"),
        text.replace("level: debug", "level: ${HEADER}"),
    ):
        file.write_text(wrong)
        done = subprocess.run(
            [sys.executable, "-m", "gateway", "check", str(file)],
            cwd=ROOT,
            env={**os.environ, **ENV},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 2, wrong
        assert done.stderr
        assert SECRETS.seen_in(done.stdout + done.stderr) == []


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.timeout(60)
def test_a_gateway_at_debug_level_prints_no_secret(tmp_path: Path, url: str, form: str) -> None:
    """From its start to its end, with a caller, and with an operator who asks for everything."""
    file, endpoint, admin = written(tmp_path, url, form)
    program = start("gateway", "serve", "--config", str(file), env=ENV)
    try:
        wait_for(f"{admin}/readyz", program, timeout=30)
        said = b""
        for method in ("tools/list", "server/discover", "no/such"):
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META}}
            said += answered(
                endpoint,
                json.dumps(message).encode(),
                authorization=f"Bearer {SECRETS['CALLER']}",
                mcp_method=method,
            )
        for path in (
            "/status.json",
            "/metrics",
            "/readyz",
            "/explain?method=tools/list",
            "/catalogue.json?read=true",
        ):
            said += answered(admin + path)
        limits = Path(f"/proc/{program.process.pid}/limits")
        if limits.exists():
            (core,) = [line for line in limits.read_text().splitlines() if line.startswith("Max core file")]
            assert core.split()[4] == "0"
    finally:
        program.process.terminate()
        program.wait(20)
        log = program.written()
        program.close()
    assert b"good__" in said
    assert " DEBUG " in log or '"level":"debug"' in log
    assert SECRETS.seen_in(said) == []
    assert SECRETS.seen_in(log) == []


@pytest.mark.timeout(60)
def test_a_gateway_on_stdio_prints_no_secret(tmp_path: Path, url: str) -> None:
    """Nor the token that it shows to upstreams with `auth: forward`, whatever its client writes."""
    file, _, _ = written(tmp_path, url)
    file.write_text(f"{file.read_text()}  each: {{url: '{url}', auth: forward}}\n")
    listed = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
    lines = [json.dumps(listed).encode(), b"{", f'{{"a": "{SECRETS["line"]}"'.encode(), b"\xff"]
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "stdio", "--config", str(file), "--token-env", "CALLER"],
        cwd=ROOT,
        env={**os.environ, **ENV},
        input=b"\n".join(lines),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert b"good__" in done.stdout
    assert b"DEBUG" in done.stderr
    assert SECRETS.seen_in(done.stdout + done.stderr) == []


def answered(url: str, body: bytes | None = None, **headers: str) -> bytes:
    """Return head and body of an answer, whatever its status."""
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        lines |= {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
        }
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, body, lines), timeout=20) as answer:
            return str(answer.headers).encode() + bytes(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return str(error.headers).encode() + error.read()
