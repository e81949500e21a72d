"""Makes docs/metrics.md of the table in gateway/support/metrics.py and of the shipped alerts."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from gateway.support.metrics import SECTIONS
from gateway.support.series import Label, Row

_ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"

_HEAD = """\
# Metrics

<!-- Written by `make docs` from gateway/support/metrics.py and deploy/prometheus/alerts.yml. -->

`/metrics` on the admin listener (`admin:`) has everything below in the text format of Prometheus, and what
the process itself takes (`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_open_fds`).

Where the conventions of OpenTelemetry have a name for something of MCP, it is used as Prometheus spells it:
`mcp.server.operation.duration` is `mcp_server_operation_duration_seconds`, and the attribute
`mcp.method.name` the label `mcp_method_name`. A histogram `x` is queried as `x_bucket`, `x_sum` and
`x_count`; the count of the durations is that of the requests, so there is no other counter of those.

No label is ever taken from a request: it is a name of the configuration's, or one word of those that are
listed [below](#labels), `other` for all that is not among them. So nobody who calls the gateway can make it
count without end. What belongs to an upstream goes with it when it is removed from the configuration.

With `--workers` the numbers of all processes are told as one. Counters and histograms are summed, those of
processes that ended included, and are exact even where one was killed. Gauges are those of the living, put
together as the tables say.

Everything to watch it with lies in the repository: `deploy/prometheus/` has the scrape configuration, the
[alerts](#alerts) with their tests and the rules that these need, `deploy/grafana/` a dashboard of it all.
"""

_MERGED = {"sum": "sum", "max": "greatest", "min": "least"}


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD, *(_table(about, rows) for about, rows in SECTIONS.items()), _labels(), _alerts()]
    return "\n".join(parts)


def _table(about: str, rows: list[Row]) -> str:
    lines = [
        f"## {about}",
        "",
        "| Metric | Type | Labels | Of several processes | What it says |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        labels = ", ".join(f"`{label.name}`" for label in row.labels)
        lines.append(f"| `{row.name}` | {row.kind} | {labels} | {_MERGED[row.merge]} | {_cell(row.text)} |")
    return "\n".join([*lines, ""])


def _labels() -> str:
    lines = ["## Labels", "", "| Label | Of | What it says | What it can be |", "|---|---|---|---|"]
    for label, names in _by_label().items():
        of = "all that have it" if len(names) > 3 else ", ".join(f"`{name}`" for name in names)
        words = "" if label.words is None else ", ".join(f"`{word}`" for word in sorted(label.words) if word)
        lines.append(f"| `{label.name}` | {of} | {_cell(label.meaning)} | {words} |")
    return "\n".join([*lines, ""])


def _by_label() -> Mapping[Label, list[str]]:
    """Return the metrics that have each label, in the order of the tables."""
    found: dict[Label, list[str]] = {}
    for row in (row for rows in SECTIONS.values() for row in rows):
        for label in row.labels:
            found.setdefault(label, []).append(row.name)
    return found


def _alerts() -> str:
    return "\n".join(["## Alerts", "", _BEFORE_ALERTS, *_each_alert()])


_BEFORE_ALERTS = """\
Of `deploy/prometheus/alerts.yml`; `tests.yml` beside it shows when each fires, and when not. A `critical` one
is for at once, a `warning` for the working day.
"""


def _each_alert() -> Iterator[str]:
    for group in YAML(typ="safe").load(_ALERTS.read_text("utf-8"))["groups"]:
        for alert in group["rules"]:
            yield _alert(alert)


def _alert(alert: Mapping[str, Any]) -> str:
    after = f"after {alert['for']}" if "for" in alert else "at once"
    said = alert["annotations"]
    severity = alert["labels"]["severity"].capitalize()
    return f"### {alert['alert']}\n\n{severity}, {after}. {said['description']}\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
