"""Puts the rules and alerts of deploy/prometheus where the Prometheus operator takes them from."""

from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
_HEAD = "# Written by `make docs` from deploy/prometheus/rules.yml and alerts.yml: change those.\n"
_RESOURCE = """\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: mcp-gateway
  labels: {app.kubernetes.io/name: mcp-gateway}
spec:
"""


def kubernetes() -> str:
    """Return the manifest for kustomize."""
    lines = (f"  {line}" if line.strip() else line for line in _groups().splitlines(keepends=True))
    return f"{_HEAD}{_RESOURCE}{''.join(lines)}"


def chart() -> str:
    """Return the file of the chart, which no template of it changes: the annotations have braces of their own."""
    return f"{_HEAD}{_groups()}"


def _groups() -> str:
    """Return the groups of both files, as they are written."""
    texts = [(_FOLDER / name).read_text("utf-8") for name in ("rules.yml", "alerts.yml")]
    return "groups:\n" + "".join(text.partition("\ngroups:\n")[2] for text in texts)
