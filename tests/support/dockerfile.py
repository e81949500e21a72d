"""A Dockerfile's stages done on this machine, in a folder that stands for the root of the image.

For stages that need no system of their own, as packages of the distribution and users do: their steps are the
very ones that are written there, with other folders.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path


@dataclass
class Stage:
    """One stage: what it begins with, and its steps, behind those of the stage that it begins with."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def words(self, instruction: str) -> list[str]:
        """Return the JSON list of CMD, ENTRYPOINT or the command of HEALTHCHECK; the last one counts."""
        (*_, text) = [arguments for name, arguments in self.steps if name == instruction]
        return [str(word) for word in json.loads(text[text.index("[") :])]


def stages(text: str) -> dict[str, Stage]:
    """Return the stages of a Dockerfile by name."""
    found: dict[str, Stage] = {}
    for instruction, arguments in _instructions(text):
        if instruction == "FROM":
            base, _, name = arguments.partition(" AS ")
            earlier = [] if base not in found else found[base].steps
            current = found[name] = Stage(name, base, [*earlier])
        elif found:
            current.steps.append((instruction, arguments))
    return found


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in re.sub(r"\\\n", " ", lines).splitlines():
        if line.strip():
            instruction, _, arguments = line.partition(" ")
            yield instruction, re.sub(r"\s+", " ", arguments).strip() if instruction != "RUN" else arguments


def context(source: Path, target: Path) -> None:
    """Copy what .dockerignore lets into a build; it must leave out all but what it names."""
    lines = [line for line in (source / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*", "all but what is named is left out"
    never = [line.removeprefix("**/") for line in lines[1:] if not line.startswith("!")]
    for wanted in (line[1:] for line in lines if line.startswith("!")):
        (target / wanted).parent.mkdir(parents=True, exist_ok=True)
        if (source / wanted).is_dir():
            ignored = shutil.ignore_patterns(*never)
            shutil.copytree(source / wanted, target / wanted, ignore=ignored)
        elif not any(fnmatch(wanted, pattern) for pattern in never):
            shutil.copy2(source / wanted, target / wanted)


def do(stage: Stage, root: Path, context: Path, tools: Mapping[str, str]) -> None:
    """Do a stage's steps in a folder that stands for its root.

    `tools` says what stands for the commands of the base image here, the longest first.
    """
    work, environment = "/", dict[str, str]()
    for instruction, arguments in stage.steps:
        match instruction:
            case "WORKDIR":
                work = arguments
                _in(root, work).mkdir(parents=True, exist_ok=True)
            case "ENV" | "ARG":
                environment |= dict(pair.split("=", 1) for pair in shlex.split(arguments))
            case "COPY":
                _copy(context, root, work, arguments.split())
            case "RUN":
                _run(_in(root, work), root, arguments, environment, tools)


def _in(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _copy(context: Path, root: Path, work: str, words: Sequence[str]) -> None:
    *sources, target = words
    place = _in(root, target if target.startswith("/") else f"{work}/{target}")
    for one in sources:
        if (context / one).is_dir():
            shutil.copytree(context / one, place, dirs_exist_ok=True)
        else:
            into = place / one if target.endswith("/") else place
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(context / one, into)


def _run(
    work: Path, root: Path, command: str, environment: Mapping[str, str], tools: Mapping[str, str]
) -> None:
    command = re.sub(r"--mount=\S+", "", command)
    for name, tool in tools.items():
        command = re.sub(rf"(?<![\w/-]){name}(?= )", tool, command)
    command = re.sub(r"(?<![\w/])/opt/", f"{root}/opt/", command)
    done = subprocess.run(
        ["sh", "-ec", command], cwd=work, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
