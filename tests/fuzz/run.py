"""Runs the targets one after the other and says how many inputs each was fed: `make fuzz`.

Each has a process of its own, which ends at a crash, at an input that takes too long, or at too much memory;
what caused it is left in `.fuzz/` and shown. Everything but the time is the same for the same seed.
"""

import argparse
import asyncio
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.fuzz.sockets import SOCKETS
from tests.fuzz.targets import TARGETS, Target

FOLDER = Path(".fuzz")
_EXECUTED = re.compile(rb"stat::number_of_executed_units: +(\d+)")
_PEAK = re.compile(rb"stat::peak_rss_mb: +(\d+)")
_PACKAGES = ("aiohttp", "atheris", "msgspec", "pydantic")


@dataclass(frozen=True)
class Outcome:
    """What became of one target."""

    name: str
    inputs: int
    seconds: float
    peak_mb: int
    failed: bool


def main() -> int:
    """Run what was asked for; 1 when an input broke something."""
    asked = _options()
    print(f"seed {asked.seed}, {asked.runs} inputs a target, {asked.timeout} s and {asked.memory} MB at most")
    print(f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in _PACKAGES), sep=", ")
    outcomes = []
    for name in asked.targets or [*TARGETS, *SOCKETS]:
        outcomes.append(_run(TARGETS[name], asked) if name in TARGETS else _over_sockets(name, asked))
        print(_row(outcomes[-1]), flush=True)
    inputs = sum(outcome.inputs for outcome in outcomes)
    failed = [outcome.name for outcome in outcomes if outcome.failed]
    print(f"{inputs:,} inputs, {', '.join(failed) or 'none'} failed")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join([*TARGETS, *SOCKETS]))
    parser.add_argument("--runs", type=int, default=20_000, help="inputs a target")
    parser.add_argument("--sockets", type=int, default=2000, help="inputs a target that uses sockets")
    parser.add_argument("--seed", type=int, default=1, help="the same one finds the same")
    parser.add_argument("--timeout", type=int, default=5, help="seconds that one input may take")
    parser.add_argument("--memory", type=int, default=1024, help="MB that the process may have")
    asked = parser.parse_args()
    for name in asked.targets:
        if name not in TARGETS and name not in SOCKETS:
            parser.error(f"there is no target {name}")
    return asked


def _run(target: Target, asked: argparse.Namespace) -> Outcome:
    folder = FOLDER / target.name
    shutil.rmtree(folder, ignore_errors=True)
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = folder / "words"
    words.write_text("".join(f'"{_spelled(word)}"\n' for word in target.words or ("\0",)))
    options = [
        f"-runs={asked.runs}",
        f"-seed={asked.seed}",
        f"-timeout={asked.timeout}",
        f"-rss_limit_mb={asked.memory}",
        f"-max_len={max(target.longest, *map(len, target.seeds))}",
        f"-dict={words}",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
        str(corpus),
    ]
    command = [sys.executable, "-m", "tests.fuzz.one", target.name, *options]
    began = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    seconds = time.monotonic() - began
    (folder / "log").write_bytes(done.stdout)
    if done.returncode:
        print(done.stdout.decode(errors="replace")[-6000:], file=sys.stderr)
    found, peak = (pattern.search(done.stdout) for pattern in (_EXECUTED, _PEAK))
    return Outcome(
        target.name,
        int(found[1]) if found else 0,
        seconds,
        int(peak[1]) if peak else 0,
        done.returncode != 0,
    )


def _over_sockets(name: str, asked: argparse.Namespace) -> Outcome:
    began = time.monotonic()
    counted = asyncio.run(SOCKETS[name](asked.sockets, asked.seed))
    print(counted.wrong, end="\n" if counted.wrong else "", file=sys.stderr)
    seconds = time.monotonic() - began
    return Outcome(name, counted.inputs, seconds, counted.peak >> 20, bool(counted.wrong))


def _spelled(word: str) -> str:
    """Return a word as dictionaries of libFuzzer have it."""
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


def _row(outcome: Outcome) -> str:
    verdict = "FAILED" if outcome.failed else "ok"
    return (
        f"{outcome.name:<24} {outcome.inputs:>9,} inputs  {outcome.seconds:>6.0f} s"
        f"  {outcome.peak_mb:>5} MB at most  {verdict}"
    )


if __name__ == "__main__":
    sys.exit(main())
