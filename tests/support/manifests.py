"""What is applied to a cluster, as kustomize and Helm make it, held against the schemas of Kubernetes."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from gateway import config
from tests.support.processes import ROOT

Manifest: TypeAlias = dict[str, Any]

CHART = ROOT / "deploy" / "helm" / "mcp-gateway"
KUBERNETES = ("1.29", "1.37")
"""The oldest and the newest version against which everything is checked."""


def _newest_kustomize() -> int:
    if shutil.which("kubectl") is None:
        return 0
    said = subprocess.run(
        ["kubectl", "version", "--client"], capture_output=True, text=True, timeout=60
    ).stdout
    found = re.search(r"Kustomize Version: v(\d+)", said)
    return int(found[1]) if found else 0


needs_kustomize = pytest.mark.skipif(_newest_kustomize() < 5, reason="needs kubectl with kustomize 5")


def kustomized(folder: Path) -> list[Manifest]:
    """Return what `kubectl apply -k` would apply."""
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
    return manifests(done.stdout)


def charted(values: Mapping[str, Any], name: str = "demo") -> list[Manifest]:
    """Return what `helm install` would apply; raises helm_python.HelmError for values that do not fit."""
    import helm_python as helm  # only here: it is there for some platforms alone

    with helm.Chart.load(CHART) as chart:
        texts = chart.render(dict(values), name=name, namespace="mcp")
    return [one for path, text in texts.items() if path.endswith(".yaml") for one in manifests(text)]


def manifests(text: str) -> list[Manifest]:
    return [one for one in YAML(typ="safe").load_all(text) if one]


def one_of(all: Iterable[Manifest], kind: str, name: str = "mcp-gateway") -> Manifest:
    """Return the one of a kind with a name."""
    (found,) = [one for one in all if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def check_schemas(all: Iterable[Manifest], foreign: Iterable[str] = ()) -> None:
    """Fail on a key or a value that Kubernetes does not know; it has no schema of `foreign` kinds."""
    for one in all:
        if one["kind"] not in foreign:
            for version in KUBERNETES:
                kubernetes_validate.validate(one, version, strict=True)


def shipped_rules() -> list[Manifest]:
    """Return the groups of rules and alerts that a Prometheus without the operator loads."""
    files = [ROOT / "deploy" / "prometheus" / name for name in ("rules.yml", "alerts.yml")]
    return [group for file in files for group in YAML(typ="safe").load(file.read_text("utf-8"))["groups"]]


def check_references(all: Iterable[Manifest]) -> None:
    """Fail on what names something that is not there: a port, a label, a ConfigMap, a workload."""
    all = list(all)
    pods = [(one, one["spec"]["template"]) for one in all if one["kind"] == "Deployment"]
    labels = [template["metadata"]["labels"] for _, template in pods]
    for one in all:
        spec, name = one.get("spec", {}), f"{one['kind']} {one['metadata']['name']}"
        match one["kind"]:
            case "Service":
                (behind,) = [template for _, template in pods if _fits(spec["selector"], template)]
                named = {port["name"] for c in behind["spec"]["containers"] for port in c["ports"]}
                assert {port["targetPort"] for port in spec["ports"]} <= named, name
            case "PodDisruptionBudget":
                assert sum(_fits(spec["selector"]["matchLabels"], template) for _, template in pods) == 1, (
                    name
                )
            case "NetworkPolicy":
                assert (
                    sum(_fits(spec["podSelector"]["matchLabels"], template) for _, template in pods) == 1
                ), name
            case "HorizontalPodAutoscaler":
                target = one_of(all, spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"])
                assert "replicas" not in target["spec"], "it would be set back with each apply"
            case "ServiceMonitor":
                wanted = spec["selector"]["matchLabels"]
                services = [each for each in all if each["kind"] == "Service"]
                (service,) = [
                    s for s in services if wanted.items() <= s["metadata"].get("labels", {}).items()
                ]
                ports = {port["name"] for port in service["spec"]["ports"]}
                assert {endpoint["port"] for endpoint in spec["endpoints"]} <= ports, name
            case "Deployment":
                assert _fits(spec["selector"]["matchLabels"], spec["template"]), name
                for volume in spec["template"]["spec"].get("volumes", []):
                    if "configMap" in volume:
                        one_of(all, "ConfigMap", volume["configMap"]["name"])
    assert len({tuple(sorted(one.items())) for one in labels}) == len(labels)


def _fits(selector: Mapping[str, str], template: Manifest) -> bool:
    return bool(selector.items() <= template["metadata"]["labels"].items())


def check_confined(deployment: Manifest) -> None:
    """Fail where a pod could do what it does not need (Pod Security Standard "restricted", and read-only)."""
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]


def loaded(all: Iterable[Manifest], name: str = "mcp-gateway") -> tuple[config.Config, list[str]]:
    """Return the configuration that the pods are given, with their environment, and what is warned of."""
    all = list(all)
    (container,) = one_of(all, "Deployment", name)["spec"]["template"]["spec"]["containers"]
    # What comes of a whole Secret is what the pages say to put into it.
    environment = {"GATEWAY_KEY": "a-secret-of-GATEWAY_KEY"} if "envFrom" in container else {}
    for variable in container.get("env", []):
        secret = "valueFrom" in variable
        environment[variable["name"]] = f"a-secret-of-{variable['name']}" if secret else variable["value"]
    warnings: list[str] = []
    text = one_of(all, "ConfigMap", name)["data"]["gateway.yaml"]
    return config.load(text, env=environment, warn=warnings.append), warnings


def check_stop(all: Iterable[Manifest], settings: config.Config, name: str = "mcp-gateway") -> None:
    """Fail where a pod would be killed before its gateway has let everybody finish (B50)."""
    pod = one_of(all, "Deployment", name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert int(seconds) + settings.shutdown_grace < pod["terminationGracePeriodSeconds"]
