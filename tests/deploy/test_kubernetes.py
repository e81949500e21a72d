"""The manifests for Kubernetes, as kustomize makes them."""

import re
from pathlib import Path

import pytest

from gateway.support.metrics import Metrics
from tests.support.manifests import (
    Manifest,
    check_confined,
    check_references,
    check_schemas,
    check_stop,
    kustomized,
    loaded,
    needs_kustomize,
    one_of,
    shipped_rules,
)
from tests.support.processes import ROOT

pytestmark = [pytest.mark.timeout(120), needs_kustomize]

FOLDER = ROOT / "deploy" / "kubernetes"


@pytest.fixture(scope="module", params=["base", "overlays/example"])
def made(request: pytest.FixtureRequest) -> list[Manifest]:
    return kustomized(FOLDER / request.param)


@pytest.fixture(scope="module")
def example() -> list[Manifest]:
    return kustomized(FOLDER / "overlays" / "example")


def test_kubernetes_knows_every_key(made: list[Manifest]) -> None:
    """In the oldest and in the newest version."""
    check_schemas(made, foreign=["ServiceMonitor", "PrometheusRule"])
    check_references(made)


def test_pods_may_do_nothing_they_do_not_need(made: list[Manifest]) -> None:
    """The gateways, and the Redis beside them."""
    for one in made:
        if one["kind"] == "Deployment":
            check_confined(one)


def test_the_configuration_is_right_and_the_pods_live_long_enough(made: list[Manifest]) -> None:
    """With the variables that the Deployment sets, and without a warning."""
    settings, warnings = loaded(made)
    assert warnings == []
    check_stop(made, settings)


def test_the_example_changes_what_it_says(example: list[Manifest]) -> None:
    """Everything is in its namespace, of its image, with its configuration."""
    assert {one["metadata"]["namespace"] for one in example} == {"mcp"}
    (container,) = one_of(example, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/mcp-gateway:0.1.0"
    settings, _ = loaded(example)
    assert settings.public_url == "https://mcp.example.com"
    assert [*settings.upstreams] == ["notes", "gh"]


def test_there_are_two_at_least_and_one_is_always_there(made: list[Manifest]) -> None:
    """While they are replaced, while nodes are emptied, and when little is going on."""
    assert one_of(made, "HorizontalPodAutoscaler")["spec"]["minReplicas"] >= 2
    assert one_of(made, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert one_of(made, "Deployment")["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_only_gateways_reach_redis_and_only_operators_the_admin_port(example: list[Manifest]) -> None:
    """Clients reach the endpoints alone."""
    gateway, redis = one_of(example, "NetworkPolicy"), one_of(example, "NetworkPolicy", "redis")
    (clients, operators) = gateway["spec"]["ingress"]
    assert clients == {"ports": [{"port": "mcp"}]}
    assert operators["from"]
    assert operators["ports"] == [{"port": "admin"}]
    (allowed,) = redis["spec"]["ingress"]
    labels = one_of(example, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert [one["podSelector"]["matchLabels"] for one in allowed["from"]] == [labels]
    assert "egress" not in redis["spec"]
    assert "Egress" in redis["spec"]["policyTypes"]


def test_the_autoscaler_asks_for_a_metric_that_is_there(example: list[Manifest]) -> None:
    """Its name comes from the adapter's rule, whose series the gateway has."""
    metrics = one_of(example, "HorizontalPodAutoscaler")["spec"]["metrics"]
    (asked,) = [one["pods"]["metric"]["name"] for one in metrics if one["type"] == "Pods"]
    assert {one["resource"]["name"] for one in metrics if one["type"] == "Resource"} == {"cpu"}
    rule = (FOLDER / "components" / "monitoring" / "adapter-values.yaml").read_text()
    assert f"name: {{as: {asked}}}" in rule
    (series,) = re.findall(r"seriesQuery: '(\w+)\{side=\"downstream\"", rule)
    assert f"# TYPE {series} gauge\n" in Metrics().render().decode()


def test_the_operator_is_given_all_rules_and_alerts(example: list[Manifest]) -> None:
    """With the braces of their annotations, which are for Prometheus."""
    rule = one_of(example, "PrometheusRule")
    assert rule["spec"]["groups"] == shipped_rules()
    assert "{{ $labels.instance }}" in str(rule)


def test_no_secret_is_among_the_manifests() -> None:
    """Secrets are named, not shown."""
    for file in (path for path in Path(FOLDER).rglob("*.yaml")):
        assert not re.search(r"^kind: Secret$", file.read_text(), re.MULTILINE), file
