"""Runs the official conformance suite against the reference server, alone and through the gateway.

`python -m tests.conformance.run` exits 0 when the gateway passes all that the server passes, except what
expected.yaml names, and when its upstream leg passes the suite's client scenarios. --json writes the table.
"""
# ruff: noqa: T201 - a report prints

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ruamel.yaml import YAML

from tests.conformance.verdict import Checks, Outcome, Row, judge, passed, scenario_of, worst
from tests.support.processes import ROOT, gateway, reference_server

VERSION = "2026-07-28"
PACKAGE = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
EXPECTED = Path(__file__).with_name("expected.yaml")
SUITE_SECONDS = 300

CLIENT_SCENARIOS = (
    "tools_call",
    "request-metadata",
    "http-standard-headers",
    "http-custom-headers",
    "http-invalid-tool-headers",
    "sep-2322-client-request-state",
    "json-schema-2020-12-preservation",
)
"""Those that judge what the gateway sends upstream and need neither authorization nor the older era."""

EXTENSION_SCENARIOS = (
    "tasks-lifecycle",
    "tasks-wire-fields",
    "tasks-capability-negotiation",
    "tasks-required-task-error",
    "tasks-mrtr-input",
    "tasks-mrtr-composition",
    "tasks-request-headers",
    "tasks-request-state-removal",
    "tasks-dispatch-and-envelope",
)
"""Those of extensions belong to no revision, so the suite runs them by name only."""


class Suite:
    """The suite as installed by npm under one folder."""

    def __init__(self, folder: Path) -> None:
        self._script = folder / PACKAGE
        if not self._script.is_file():
            sys.exit(f"{self._script} is missing: make conformance installs it")
        own = folder / "node_modules" / ".bin" / "node"
        self._node = str(own) if own.exists() else (shutil.which("node") or "node")

    def run(self, *arguments: str) -> dict[str, Checks]:
        """Run the suite and return the checks of every scenario; its exit code says nothing new."""
        with tempfile.TemporaryDirectory() as results:
            done = subprocess.run(
                [self._node, str(self._script), *arguments, "-o", results],
                cwd=ROOT,
                env={**os.environ, "NODE_NO_WARNINGS": "1", "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SUITE_SECONDS,
                check=False,
            )
            found = {
                scenario_of(file.parent.name): worst(json.loads(file.read_text()))
                for file in Path(results).glob("*/checks.json")
            }
        if not found:
            sys.exit(f"the suite wrote no results:\n{done.stdout}\n{done.stderr}")
        return found

    def server(self, url: str) -> dict[str, Checks]:
        """Run every server scenario of the revision, and those of extensions, against `url`."""
        found = self.run("server", "--url", url, "--suite", "all", "--spec-version", VERSION)
        for scenario in EXTENSION_SCENARIOS:
            found |= self.run("server", "--url", url, "--scenario", scenario)
        return {scenario.removeprefix("server-"): checks for scenario, checks in found.items()}

    def client(self, scenario: str) -> Checks:
        """Run one client scenario with a gateway between the client and the suite's mock server."""
        command = f"{sys.executable} -m tests.conformance.drive"
        found = self.run("client", "--command", command, "--scenario", scenario, "--spec-version", VERSION)
        return found.get(scenario, {})


def compare_server(suite: Suite) -> list[Row]:
    with reference_server() as url:
        alone = suite.server(url)
    with (
        reference_server() as url,
        gateway(json.dumps({"everything": {"url": url, "prefix": ""}})) as running,
    ):
        through = suite.server(running.endpoint)
    return [Row(scenario, checks, through.get(scenario, {})) for scenario, checks in sorted(alone.items())]


def report(title: str, rows: list[Row]) -> None:
    print(f"\n{title:<52} {'alone':>9} {'gateway':>9}")
    for row in rows:
        alone = "-" if row.reference is None else score(row.reference)
        print(f"{row.scenario:<52} {alone:>9} {score(row.gateway):>9}  {' '.join(row.lost())}".rstrip())


def score(checks: Checks) -> str:
    good = sum(status == "SUCCESS" for status in checks.values())
    return f"{good}/{len(checks)}{'' if passed(checks) else ' !'}"


def tell(leg: str, outcome: Outcome, excused: dict[str, str]) -> None:
    for name in outcome.reference:
        print(f"{leg}: the reference itself does not pass {name}")
    for name in outcome.unexpected:
        print(f"{leg}: lost {name}")
    for name in outcome.stale:
        print(f"{leg}: {name} passes; take it out of {EXPECTED.name}")
    for subject in dict.fromkeys(excused.values()):
        names = [name for name in excused if excused[name] == subject]
        print(f"{leg}: {len(names)} excused by {EXPECTED.name} until: {subject}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", type=Path, default=ROOT / ".node", help="where npm installed the suite")
    parser.add_argument("--json", type=Path, help="write the rows and the verdict to this file")
    options = parser.parse_args()
    expected = YAML(typ="safe").load(EXPECTED)
    suite = Suite(options.node.resolve())
    legs = {
        "server": compare_server(suite),
        "client": [Row(scenario, None, suite.client(scenario)) for scenario in CLIENT_SCENARIOS],
    }
    report(f"Server scenarios of {VERSION}", legs["server"])
    report("Client scenarios, the gateway's upstream leg", legs["client"])
    print()
    outcomes = {leg: judge(rows, expected[leg] or {}) for leg, rows in legs.items()}
    for leg, outcome in outcomes.items():
        tell(leg, outcome, expected[leg] or {})
    fine = all(outcome.fine for outcome in outcomes.values())
    rows = [row for leg in legs.values() for row in leg]
    whole = sum(not row.lost() for row in rows)
    print(f"conformance: {'fine' if fine else 'NOT FINE'}, {whole} of {len(rows)} scenarios whole")
    if options.json is not None:
        document = {leg: [vars(row) | {"lost": row.lost()} for row in rows] for leg, rows in legs.items()}
        options.json.write_text(json.dumps({"fine": fine, **document}, indent=1))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
