"""Runs the official conformance suite against servers, alone and through the gateway.

Each pairing of a client's and a server's revision is a leg. `python -m tests.conformance.run` exits 0 when on
each the gateway passes all that the server passes alone, except what expected.yaml names, and when its legs
towards servers pass the suite's client scenarios. --json writes the table, --leg runs those whose name holds
a word.
"""
# ruff: noqa: T201 - a report prints

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path

from ruamel.yaml import YAML

from tests.conformance.verdict import Checks, Outcome, Row, judge, passed, scenario_of, worst
from tests.support.processes import ROOT, gateway, reference_server
from tests.support.published import everything_over

VERSION = "2026-07-28"
OLDER_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
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

OLDER_CLIENT_SCENARIOS = (
    "initialize",
    "tools_call",
    "elicitation-sep1034-client-defaults",
    "sse-retry",
    "json-schema-2020-12-preservation",
)
"""Those of 2025-11-25 that need no authorization: the mock server is one of sessions."""

PUBLISHED_SCENARIOS = (
    "server-initialize",
    "logging-set-level",
    "ping",
    "prompts-list",
    "resources-list",
    "resources-subscribe",
    "resources-unsubscribe",
    "tools-list",
)
"""Those that a server passes which has not the tools, resources and prompts of the suite."""

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

    def server(self, version: str, url: str) -> dict[str, Checks]:
        """Run every server scenario of a revision against `url`."""
        found = self.run("server", "--url", url, "--suite", "all", "--spec-version", version)
        # The suite puts a server- before whatever folder, and some scenarios begin with one of their own.
        return {scenario.removeprefix("server-"): checks for scenario, checks in found.items()}

    def server_and_extensions(self, url: str) -> dict[str, Checks]:
        """Run those of extensions, too."""
        found = self.server(VERSION, url)
        for scenario in EXTENSION_SCENARIOS:
            found |= self.run("server", "--url", url, "--scenario", scenario)
        return found

    def client(self, scenario: str, version: str, *options: str) -> Checks:
        """Run one client scenario with a gateway between the client and the suite's mock server."""
        command = " ".join((sys.executable, "-m", "tests.conformance.drive", *options))
        found = self.run("client", "--command", command, "--scenario", scenario, "--spec-version", version)
        return found.get(scenario, {})


Run = Callable[[str], dict[str, Checks]]
"""The suite, given a URL."""
Server = Callable[[], AbstractContextManager[str]]


@cache
def alone(run: Run, server: Server) -> Mapping[str, Checks]:
    with server() as url:
        return run(url)


def compare(run: Run, server: Server, era: str = "auto", only: Iterable[str] = ()) -> list[Row]:
    """Return what a server reaches alone and behind the gateway, which speaks to it in this era."""
    reference = alone(run, server)
    with server() as url, gateway(json.dumps({"all": {"url": url, "prefix": "", "era": era}})) as running:
        through = run(running.endpoint)
    scenarios = sorted(set(only) or reference)
    return [Row(scenario, reference.get(scenario, {}), through.get(scenario, {})) for scenario in scenarios]


def legs_of(suite: Suite) -> dict[str, Callable[[], list[Row]]]:
    """Return every leg by its name in expected.yaml."""
    modern = suite.server_and_extensions
    everything = partial(everything_over, "streamableHttp")
    older = {version: partial(suite.server, version) for version in OLDER_VERSIONS}
    return {
        "server": partial(compare, modern, reference_server),
        "server of sessions": partial(compare, partial(suite.server, VERSION), reference_server, "legacy"),
        **{
            f"{version} client, server": partial(compare, run, reference_server)
            for version, run in older.items()
        },
        **{
            f"{version} client, server of sessions": partial(compare, run, reference_server, "legacy")
            for version, run in older.items()
        },
        **{
            f"{version} client, server-everything": partial(
                compare, older[version], everything, only=PUBLISHED_SCENARIOS
            )
            for version in ("2025-11-25", "2025-06-18")
        },
        "client": lambda: [
            Row(scenario, None, suite.client(scenario, VERSION)) for scenario in CLIENT_SCENARIOS
        ],
        **{
            f"{mode} client of 2025-11-25": partial(older_client, suite, mode)
            for mode in ("modern", "legacy")
        },
    }


def older_client(suite: Suite, mode: str) -> list[Row]:
    """Return what the gateway reaches as a client of a server of sessions, for clients of either era."""
    return [
        Row(scenario, None, suite.client(scenario, "2025-11-25", "--mode", mode))
        for scenario in OLDER_CLIENT_SCENARIOS
    ]


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
        print(f"{leg}: {len(names)} excused by {EXPECTED.name}: {subject}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", type=Path, default=ROOT / ".node", help="where npm installed the suite")
    parser.add_argument("--json", type=Path, help="write the rows and the verdict to this file")
    parser.add_argument("--leg", default="", help="run only the legs whose name holds this")
    options = parser.parse_args()
    expected = YAML(typ="safe").load(EXPECTED)
    suite = Suite(options.node.resolve())
    legs: dict[str, list[Row]] = {}
    for leg, compared in legs_of(suite).items():
        if options.leg in leg:
            legs[leg] = compared()
            report(leg, legs[leg])
    print()
    outcomes = {leg: judge(rows, expected.get(leg) or {}) for leg, rows in legs.items()}
    for leg, outcome in outcomes.items():
        tell(leg, outcome, expected.get(leg) or {})
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
