"""Decides what a run of the conformance suite says about the gateway. No processes, no files."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SEVERITY = ("SKIPPED", "INFO", "SUCCESS", "WARNING", "FAILURE")
"""From what says least to what counts most, when a check id stands there several times."""
NOT_ITS_OWN = "wire-schema-valid"
"""The check that every scenario gets, and that passes with nothing listening."""
NO_SUCCESS = "(no success of its own)"

Checks = Mapping[str, str]
"""The status of every check id."""


@dataclass(frozen=True)
class Row:
    """One scenario: what the reference reached, if there is one, and what the gateway did."""

    scenario: str
    reference: Checks | None
    gateway: Checks

    def lost(self) -> tuple[str, ...]:
        """Return the checks that the reference passes and the gateway does not, and failures of its own.

        Without a reference a warning counts too.
        """
        if self.reference is None:
            lost = [id for id, status in self.gateway.items() if status in ("FAILURE", "WARNING")]
        else:
            ids = [id for id, status in self.reference.items() if status == "SUCCESS"]
            lost = [id for id in ids if self.gateway.get(id) != "SUCCESS"]
            lost += [id for id, status in self.gateway.items() if status == "FAILURE" and id not in lost]
        if not lost and not passed(self.gateway):
            lost.append(NO_SUCCESS)
        return tuple(lost)


@dataclass
class Outcome:
    """What is wrong: nothing when both are empty."""

    unexpected: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    reference: list[str] = field(default_factory=list)
    """Scenarios that the reference itself does not pass: the comparison would prove nothing."""

    @property
    def fine(self) -> bool:
        return not (self.unexpected or self.stale or self.reference)


def scenario_of(folder: str) -> str:
    """Return the scenario whose results a folder holds: `server-NAME-TIMESTAMP` or `NAME-TIMESTAMP`."""
    return re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", folder)


def worst(checks: Iterable[Mapping[str, object]]) -> Checks:
    """Return the status of every check id in a checks.json, of a repeated one the worst."""
    found: dict[str, str] = {}
    for check in checks:
        id, status = str(check["id"]), str(check["status"])
        if SEVERITY.index(status) >= SEVERITY.index(found.get(id, "SKIPPED")):
            found[id] = status
    return found


def passed(checks: Checks) -> bool:
    """Whether a scenario passed by something it checked itself."""
    return "FAILURE" not in checks.values() and any(
        status == "SUCCESS" for id, status in checks.items() if id != NOT_ITS_OWN
    )


def judge(rows: Iterable[Row], excused: Mapping[str, str]) -> Outcome:
    """Hold every loss against the excuses (`scenario` or `scenario:check-id`); unused excuses are stale."""
    outcome, used = Outcome(), set()
    for row in rows:
        if row.reference is not None and row.scenario not in excused and not passed(row.reference):
            outcome.reference.append(row.scenario)
        for id in row.lost():
            name = f"{row.scenario}:{id}"
            excuse = next((key for key in (name, row.scenario) if key in excused), None)
            if excuse is None:
                outcome.unexpected.append(name)
            else:
                used.add(excuse)
    outcome.stale = [key for key in excused if key not in used]
    return outcome
