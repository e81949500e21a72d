"""The chart, as Helm itself reads and renders it."""

import json
from importlib.util import find_spec
from typing import Any

import pytest

from tests.support.manifests import (
    CHART,
    Manifest,
    charted,
    check_confined,
    check_references,
    check_schemas,
    check_stop,
    loaded,
    one_of,
    shipped_rules,
)

if find_spec("helm_python") is None:
    pytest.skip("helm-python-sdk has no build for this platform", allow_module_level=True)

import helm_python as helm

from gateway import config

pytestmark = pytest.mark.timeout(120)

ONE = {"config": {"upstreams": {"time": "http://time:9001/mcp"}}}
FULL: dict[str, Any] = {
    "config": {
        "upstreams": {"gh": {"url": "https://gh.example.com/mcp", "auth": {"bearer": "${GH_TOKEN}"}}},
        "hosts": ["tools.example.com"],
        "public_url": "https://mcp.example.com",
    },
    "image": {"repository": "registry.example.com/mcp-gateway", "tag": "1.2.3"},
    "imagePullSecrets": [{"name": "registry"}],
    "env": [{"name": "GH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "gh", "key": "token"}}}],
    "autoscaling": {"streams": 3000},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "mcp-tls", "annotations": {"a/b": "c"}},
    "networkPolicy": {"clients": [{"podSelector": {}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "podAnnotations": {"a/b": "c"},
    "nodeSelector": {"kubernetes.io/arch": "arm64"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}
SMALL: dict[str, Any] = {
    **ONE,
    "redis": {"enabled": False},
    "autoscaling": {"enabled": False},
    "replicas": 1,
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
}


@pytest.fixture(params=["one", "full", "small"])
def made(request: pytest.FixtureRequest) -> list[Manifest]:
    return charted({"one": ONE, "full": FULL, "small": SMALL}[request.param])


@pytest.mark.parametrize("values", [ONE, FULL, SMALL], ids=["one", "full", "small"])
def test_helm_finds_nothing_wrong(values: dict[str, Any]) -> None:
    """As `helm lint --strict` says it; an icon is not missed."""
    report = helm.lint(CHART, values, strict=True)
    assert report["errors"] == []
    assert [one["error"] for one in report["messages"]] == ["icon is recommended"]


def test_kubernetes_knows_every_key(made: list[Manifest]) -> None:
    """In the oldest and in the newest version, and everything that is named is there."""
    check_schemas(made, foreign=["ServiceMonitor", "PrometheusRule"])
    name = "demo-mcp-gateway"
    check_references(made)
    for one in made:
        if one["kind"] == "Deployment":
            check_confined(one)
    settings, warnings = loaded(made, name)
    assert warnings == []
    check_stop(made, settings, name)


def test_the_values_reach_their_places() -> None:
    """Each of those that change something."""
    made, name = charted(FULL), "demo-mcp-gateway"
    pod = one_of(made, "Deployment", name)["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "registry.example.com/mcp-gateway:1.2.3"
    assert pod["imagePullSecrets"] == FULL["imagePullSecrets"]
    assert pod["nodeSelector"] == FULL["nodeSelector"]
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "mcp-gateway"}}]
    metrics = one_of(made, "HorizontalPodAutoscaler", name)["spec"]["metrics"]
    assert [one["type"] for one in metrics] == ["Resource", "Pods"]
    assert metrics[1]["pods"]["target"] == {"type": "AverageValue", "averageValue": "3000"}
    ingress = one_of(made, "Ingress", name)
    assert ingress["spec"]["tls"] == [{"hosts": ["mcp.example.com"], "secretName": "mcp-tls"}]
    assert one_of(made, "ServiceMonitor", name)["metadata"]["labels"]["release"] == "prometheus"
    rule = one_of(made, "PrometheusRule", name)
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["spec"] == {"groups": shipped_rules()}
    clients = one_of(made, "NetworkPolicy", name)["spec"]["ingress"][0]
    assert clients["from"] == [{"podSelector": {}}]


def test_the_configuration_has_what_follows_from_other_values() -> None:
    """The Redis beside it, the names of the Service and of the ingress; and what was written stays."""
    settings, _ = loaded(charted(FULL), "demo-mcp-gateway")
    assert settings.hosts == [
        "demo-mcp-gateway",
        "demo-mcp-gateway.*",
        "tools.example.com",
        "mcp.example.com",
    ]
    assert _redis(charted(FULL)) == "redis://demo-mcp-gateway-redis:6379/0"
    assert [*settings.upstreams] == ["gh"]
    own = {**ONE, "redis": {"enabled": False, "url": "rediss://redis.example.com:6379/0"}}
    assert _redis(charted(own)) == "rediss://redis.example.com:6379/0"
    assert _redis(charted(SMALL)) is None


def _redis(made: list[Manifest]) -> str | None:
    where = loaded(made, "demo-mcp-gateway")[0].cache.redis
    return None if where is None else where.get_secret_value()


def test_what_is_off_is_not_there() -> None:
    """A single gateway, and nothing beside it."""
    assert sorted(one["kind"] for one in charted(SMALL)) == ["ConfigMap", "Deployment", "Service", "Service"]
    assert one_of(charted(SMALL), "Deployment", "demo-mcp-gateway")["spec"]["replicas"] == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "config.upstreams names no server"),
        ({**ONE, "redis": {"enabled": False}}, "more than one gateway needs a Redis"),
        ({**ONE, "redis": {"url": "redis://r:6379"}}, "set redis.enabled to false"),
        ({**ONE, "autoscaler": {}}, "additional properties 'autoscaler' not allowed"),
        ({**ONE, "replicas": 0}, "minimum"),
        ({"config": {**ONE["config"], "listen": "0.0.0.0:1"}}, "listen"),
    ],
)
def test_what_cannot_work_is_refused_with_a_reason(values: dict[str, Any], said: str) -> None:
    """Before anything is applied."""
    with pytest.raises(helm.HelmError, match=said):
        charted(values)


def test_a_long_name_of_a_release_is_cut() -> None:
    """Names of Services have 63 characters at most, with what is added to them."""
    for one in charted(ONE, "r" * 53):
        assert len(one["metadata"]["name"]) <= 63


def test_the_chart_is_of_this_version() -> None:
    """And the image that it starts by default."""
    with helm.Chart.load(CHART) as chart:
        assert chart.metadata["appVersion"] == config.VERSION


def test_no_value_is_without_a_word_in_the_schema() -> None:
    """Whoever adds a value says what fits."""
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(ONE)
        values = chart.values
    schema = json.loads((CHART / "values.schema.json").read_text())

    def unknown(said: Any, known: Any, path: str = "") -> list[str]:
        properties = known.get("properties", {})
        if known.get("additionalProperties") is not False:
            return []
        return [f"{path}{key}" for key in said if key not in properties] + [
            one
            for key, value in said.items()
            if isinstance(value, dict) and key in properties
            for one in unknown(value, properties[key], f"{path}{key}.")
        ]

    assert unknown(values, schema) == []


def test_the_notes_say_where_it_is() -> None:
    """With the path of the endpoint."""
    with helm.Chart.load(CHART) as chart:
        notes = chart.render(FULL, name="demo", namespace="mcp")["mcp-gateway/templates/NOTES.txt"]
    assert "https://mcp.example.com/mcp\n" in notes
    assert "create secret generic mcp-gateway" in notes
