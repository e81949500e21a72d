"""docker-compose.yml as Docker Compose itself reads it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import config
from tests.support.compose import DEFAULTS, ENTRYPOINTS, KEY, SUBNET, described, image_of, needs_compose
from tests.support.processes import ROOT

pytestmark = [pytest.mark.timeout(120), needs_compose]


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return described(GATEWAY_KEY=KEY)


def services(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from whole["services"].items()


def test_no_service_has_rights_or_ports_that_it_does_not_need(whole: dict[str, Any]) -> None:
    """Each is read-only and without capabilities, and what is published is this machine's own affair."""
    for name, one in services(whole):
        assert one["read_only"], name
        assert one["cap_drop"] == ["ALL"], name
        assert one["security_opt"] == ["no-new-privileges:true"], name
        assert {port["host_ip"] for port in one.get("ports", [])} <= {"127.0.0.1"}, name
        assert all(
            volume.get("read_only") for volume in one.get("volumes", []) if volume["type"] == "bind"
        ), name


def test_what_is_mounted_and_built_is_there(whole: dict[str, Any]) -> None:
    """No file was moved without it."""
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "deploy/docker/Dockerfile").read_text(), re.MULTILINE)
    for name, one in services(whole):
        for volume in one.get("volumes", []):
            assert volume["type"] != "bind" or Path(volume["source"]).exists(), name
        if "build" in one:
            assert (Path(one["build"]["context"]) / one["build"]["dockerfile"]).is_file()
            assert one["build"]["target"] in stages


def test_images_of_others_are_named_with_a_version(whole: dict[str, Any]) -> None:
    """What was tried is what runs."""
    for name, one in services(whole):
        tag = one["image"].partition(":")[2]
        assert tag == "local" if "build" in one else re.match(r"v?\d", tag), name


def test_without_a_key_it_says_how_to_make_one() -> None:
    """Nothing comes up with a key that everybody has."""
    with pytest.raises(ValueError, match="openssl rand") as refusal:
        described()
    (command,) = re.findall(r"with +(echo .*)$", str(refusal.value), re.MULTILINE)
    assert command == 'echo "GATEWAY_KEY=$(openssl rand -hex 32)" > .env'


def test_only_gateways_reach_the_servers_and_redis(whole: dict[str, Any]) -> None:
    """Neither has a way to the network outside, nor one to the other."""
    inner = {name for name, one in whole["networks"].items() if one.get("internal")}
    members = {
        network: {name for name, one in services(whole) if network in one["networks"]} for network in inner
    }
    assert members == {
        "upstreams": {"gateway-1", "gateway-2", "notes", "clock"},
        "data": {"gateway-1", "gateway-2", "redis"},
    }


def test_who_names_another_can_reach_it(whole: dict[str, Any]) -> None:
    """They share a network: a process of this machine would reach the other in any case."""
    networks = {name: set(one["networks"]) for name, one in services(whole)}
    named = set()
    for name, one in services(whole):
        folders = [Path(volume["source"]) for volume in one.get("volumes", []) if volume["type"] == "bind"]
        files = [file.read_text() for folder in folders for file in folder.rglob("*") if file.is_file()]
        said = "\n".join(
            [*files, *(one.get("command") or []), *map(str, one.get("environment", {}).values())]
        )
        for other in networks.keys() - {name}:
            if re.search(rf"(?<![\w.-]){other}:\d", said):
                named.add((name, other))
                assert networks[name] & networks[other], f"{name} names {other}"
    assert {("prometheus", "gateway-1"), ("prometheus", "balancer"), ("grafana", "prometheus")} <= named
    assert {("balancer", "gateway-2"), ("gateway-1", "redis"), ("gateway-2", "clock")} <= named


def test_the_gateways_are_alike_and_their_configuration_is_right(whole: dict[str, Any]) -> None:
    """They believe the network in which the balancer is, and nobody else."""
    one, other = ({**whole["services"][name], "ports": []} for name in ("gateway-1", "gateway-2"))
    assert one == other
    (mounted,) = one["volumes"]
    assert mounted["target"] == "/etc/mcp-gateway"
    environment = {"PATH": os.environ["PATH"], **one["environment"]}
    checked = subprocess.run(
        [sys.executable, "-m", "gateway", "check", "--json", f"{mounted['source']}/gateway.yaml"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert json.loads(checked.stdout) == {"ok": True, "problems": [], "warnings": []}
    text = Path(mounted["source"], "gateway.yaml").read_text()
    assert config.load(text, env=environment).trusted_proxies == [SUBNET]
    assert whole["networks"]["front"]["ipam"]["config"] == [{"subnet": SUBNET}]


def test_the_tests_run_every_image_that_can_be_run_without_docker(whole: dict[str, Any]) -> None:
    """Grafana comes as an image alone; its dashboards are checked beside it."""
    assert {image_of(one) for _, one in services(whole)} - set(ENTRYPOINTS) <= {"grafana/grafana"}
    (command,) = re.findall(r"^CMD (\[.*\])$", (ROOT / "deploy/docker/Dockerfile").read_text(), re.MULTILINE)
    assert tuple(json.loads(command)) == DEFAULTS["mcp-gateway"]
