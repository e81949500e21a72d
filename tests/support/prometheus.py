"""A real Prometheus with the shipped configuration, rules and alerts, which scrapes what a test runs.

with prometheus("127.0.0.1:9090") as monitor:
    monitor.until("up", lambda found: found == [1.0])
"""

import json
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import ROOT, Program, free_port, launch, text_of, wait_for

SHIPPED = ROOT / "deploy" / "prometheus"
_PATIENCE = 30.0
_QUICK: Mapping[str, Sequence[tuple[str, str]]] = {
    "prometheus.yml": [
        ("scrape_interval: 15s", "scrape_interval: 250ms"),
        ("evaluation_interval: 15s", "evaluation_interval: 250ms"),
    ],
    "rules.yml": [],
    "alerts.yml": [],
}
"""What a test has no time for, and what stands in its place."""


@dataclass
class Prometheus:
    """One that runs, and what it is asked."""

    url: str
    program: Program

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the series of an instant query and their values; fails where Prometheus finds it wrong."""
        asked = urllib.parse.urlencode({"query": expression})
        data = self._get(f"/api/v1/query?{asked}")
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]

    def until(self, expression: str, such: Callable[[list[float]], bool]) -> list[float]:
        """Return the values of a query once they are such."""
        return self._until(
            lambda: [value for _, value in self.query(expression)], such, f"{expression} is not such"
        )

    def rules(self) -> list[Mapping[str, Any]]:
        """Return every rule and how it went when it was last worked out."""
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def rules_once_evaluated(self) -> list[Mapping[str, Any]]:
        """Return the same once each was worked out."""
        return self._until(
            self.rules, lambda rules: all(rule["health"] != "unknown" for rule in rules), "unknown"
        )

    def alerts(self) -> list[Mapping[str, Any]]:
        """Return what fires or is about to."""
        return list(self._get("/api/v1/alerts")["alerts"])

    def _get(self, path: str) -> Any:
        answer = json.loads(text_of(self.url + path))
        assert answer["status"] == "success", answer
        return answer["data"]

    def _until(self, ask: Callable[[], Any], such: Callable[[Any], bool], what: str) -> Any:
        # It tells nobody when it has scraped: asking again is all there is.
        give_up = time.monotonic() + _PATIENCE
        while not such(found := ask()):
            if time.monotonic() > give_up:
                raise AssertionError(f"{what}: {found}\n{self.program.written()}")
            time.sleep(0.05)
        return found


@contextmanager
def prometheus(target: str) -> Iterator[Prometheus]:
    """Run it with the shipped files, but quicker, on one gateway instead of those named there."""
    with tempfile.TemporaryDirectory() as folder:
        for name, replaced in _QUICK.items():
            text = (SHIPPED / name).read_text("utf-8")
            for before, after in replaced:
                assert before in text, before
                text = text.replace(before, after)
            (Path(folder) / name).write_text(text, "utf-8")
        _point(Path(folder), target)
        port = free_port()
        program = launch(
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(f"{url}/-/ready", program, timeout=_PATIENCE)
            yield Prometheus(url, program)
        finally:
            program.close()


def _point(folder: Path, target: str) -> None:
    """Have it scrape this gateway, and alerts fire at once."""
    scraping, alerts = folder / "prometheus.yml", folder / "alerts.yml"
    text = scraping.read_text("utf-8")
    shipped = '["gateway-1:9090", "gateway-2:9090"]'
    assert shipped in text
    scraping.write_text(text.replace(shipped, f'["{target}"]'), "utf-8")
    lines = alerts.read_text("utf-8").splitlines(keepends=True)
    alerts.write_text("".join(line for line in lines if not line.strip().startswith("for:")), "utf-8")
