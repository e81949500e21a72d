"""The shipped rules, alerts and dashboard ask for metrics that there are, in words that they can have."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
from ruamel.yaml import YAML

from gateway.support.metrics import TABLE
from gateway.support.series import OTHER, Row
from tests.support.processes import ROOT

PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARD: Mapping[str, Any] = json.loads((GRAFANA / "dashboards" / "mcp-gateway.json").read_text("utf-8"))

_OF_TARGETS = {"job", "instance"}
_OF_PROMETHEUS = {
    "up",
    "process_start_time_seconds",
    "process_open_fds",
    "process_max_fds",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
}
"""Metrics that every target of a Prometheus has, or that the library adds."""


def loaded(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text("utf-8"))


def rules(name: str) -> list[Mapping[str, Any]]:
    """Return the rules of a file, of all its groups."""
    return [rule for group in loaded(PROMETHEUS / name)["groups"] for rule in group["rules"]]


RECORDED = {rule["record"]: rule["expr"] for rule in rules("rules.yml")}
ALERTS = rules("alerts.yml")


def without_variables(query: str) -> str:
    """Return a query of the dashboard as Grafana would ask it."""
    return query.replace("$__rate_interval", "1m").replace("$job", "mcp-gateway").replace("$instance", ".*")


def shown() -> Iterator[tuple[str, str]]:
    """Yield every query of the dashboard and what it is for."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", without_variables(target["expr"])
    for note in DASHBOARD["annotations"]["list"]:
        yield note["name"], without_variables(note["expr"])


QUERIES = {
    **{f"dashboard: {what}": query for what, query in shown()},
    **{f"record: {name}": expr for name, expr in RECORDED.items()},
    **{f"alert: {alert['alert']}": alert["expr"] for alert in ALERTS},
}


def rows() -> dict[str, tuple[Row, set[str]]]:
    """Return what each name that can be queried is a part of, and its labels."""
    names: dict[str, tuple[Row, set[str]]] = {}
    for row in TABLE:
        labels = {label.name for label in row.labels} | _OF_TARGETS
        if row.kind == "histogram":
            names[f"{row.name}_bucket"] = row, labels | {"le"}
            names[f"{row.name}_sum"] = names[f"{row.name}_count"] = row, labels
        else:
            names[row.name] = row, labels
    return names


ROWS = rows()


def selectors(node: Any) -> Iterator[Any]:
    """Yield every selector of a metric in a query, checking what is grouped by on the way."""
    match node:
        case promql.VectorSelector():
            yield node
        case promql.MatrixSelector():
            yield node.vector_selector
        case promql.AggregateExpr():
            inner = list(selectors(node.expr))
            labels = {label for one in inner for label in labels_of(one.name)}
            grouped = set(node.modifier.labels) if node.modifier is not None else set()
            assert grouped <= labels, f"grouped by {grouped - labels}, which is no label there"
            yield from inner
        case promql.BinaryExpr():
            yield from selectors(node.lhs)
            yield from selectors(node.rhs)
        case promql.Call():
            for argument in node.args:
                yield from selectors(argument)
        case promql.ParenExpr() | promql.SubqueryExpr() | promql.UnaryExpr():
            yield from selectors(node.expr)
        case promql.NumberLiteral() | promql.StringLiteral():
            return
        case _:
            pytest.fail(f"{type(node).__name__} is not looked into")


def labels_of(name: str) -> set[str]:
    """Return the labels that the series of a name have; fails where there is no such metric."""
    if name in ROWS:
        return ROWS[name][1]
    if name in RECORDED:
        first = name.partition(":")[0]
        return {
            label
            for label in ("job", "instance", "upstream", "endpoint", "mcp_method_name")
            if label in first
        }
    assert name in _OF_PROMETHEUS, f"there is no metric {name}"
    return _OF_TARGETS


def words_of(name: str, label: str) -> frozenset[str] | None:
    """Return what a label can be, None where it is a name that an operator chose."""
    if label in _OF_TARGETS or name not in ROWS:
        return None
    return next((one.words for one in ROWS[name][0].labels if one.name == label), None)


@pytest.mark.parametrize("what", QUERIES)
def test_a_query_asks_for_what_there_is(what: str) -> None:
    """Its metrics, their labels and the words that these can have."""
    found = list(selectors(promql.parse(QUERIES[what])))
    assert found
    for one in found:
        for matcher in one.matchers.matchers:
            assert matcher.name in labels_of(one.name), f"{one.name} has no label {matcher.name}"
            words = words_of(one.name, matcher.name)
            if words is None:
                continue
            if "Re" in str(matcher.op):
                matched = [word for word in words if re.fullmatch(matcher.value, word)]
                alternatives = matcher.value.split("|")
                wanted = set(alternatives) - {""} if re.fullmatch(r"[\w|/-]*", matcher.value) else set()
                assert matched, f"nothing that {matcher.name} can be matches {matcher.value}"
            else:
                wanted = {matcher.value} - {""}
            assert wanted <= words | {OTHER}, f"{matcher.name} is never {wanted - words}"


def test_the_dashboard_shows_every_metric() -> None:
    """What is counted can be looked at."""
    asked = {one.name for _, query in shown() for one in selectors(promql.parse(query))}
    parts = {name for name in ROWS if name in asked}
    assert [row.name for row in TABLE if not any(ROWS[part][0] is row for part in parts)] == []


def test_panels_are_whole_and_do_not_overlap() -> None:
    """Every one has a title, a place of its own and the data source that is chosen."""
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        assert panel["title"]
        for target in panel.get("targets", ()):
            assert (
                target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            )


def test_the_dashboard_is_provisioned_with_the_prometheus_that_is_shipped() -> None:
    """The files say the same of where things are."""
    source = loaded(GRAFANA / "provisioning" / "datasources" / "prometheus.yml")["datasources"][0]
    scrapes = loaded(PROMETHEUS / "prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrapes
    assert source["type"] == "prometheus"
    provider = loaded(GRAFANA / "provisioning" / "dashboards" / "mcp-gateway.yml")["providers"][0]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_what_is_wrong_and_what_to_do(alert: Mapping[str, Any]) -> None:
    """To somebody who was just woken."""
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert re.fullmatch(r"McpGateway[A-Za-z]+", alert["alert"])
    said = alert["annotations"]
    assert set(said) == {"summary", "description"}
    assert len(said["summary"]) < 100
    assert said["description"].endswith(".")
    for label in re.findall(r"\$labels\.(\w+)", said["summary"] + said["description"]):
        names = [one.name for one in selectors(promql.parse(alert["expr"]))]
        assert any(label in labels_of(name) for name in names), label


@pytest.mark.timeout(120)  # each of the tests of rules has a database of its own
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "--lint-fatal", "rules.yml", "alerts.yml"),
        ("test", "rules", "tests.yml"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_promtool_is_content(arguments: tuple[str, ...]) -> None:
    """With the configuration, the rules, and when each alert fires."""
    ran = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_is_seen_to_fire_and_to_be_quiet() -> None:
    """By its own test, on the series that it is about; and none fires where all is well."""
    seen: dict[str, set[bool]] = {}
    calm = 0
    for one in loaded(PROMETHEUS / "tests.yml")["tests"]:
        for asked in one["promql_expr_test"]:
            name = re.search(r'alertname="(\w+)"', asked["expr"])
            if name is None:
                calm += asked["expr"] == "ALERTS" and asked["exp_samples"] == []
            else:
                seen.setdefault(name[1], set()).add(bool(asked["exp_samples"]))
    assert calm >= 1
    assert seen == {alert["alert"]: {True, False} for alert in ALERTS}
