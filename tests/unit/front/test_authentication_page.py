"""docs/authentication.md says what is so: its configurations load, and its refusals are all that are made."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config import Config, load

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "authentication.md").read_text("utf-8")
FILES = ("tokens", "proving", "verify", "auth")
REFUSE = {"Refused", "Denied", "_refused", "_malformed"}
ABOUT = re.compile(r"The (?:token|key|certificate|credential) does not count: ")


def explained() -> list[str]:
    """Return what the last table explains."""
    table = PAGE.partition("## Why was that refused?")[2]
    return re.findall(r"^\| (.+?) \| .+ \|$", table, re.MULTILINE)[1:]


def given(file: str) -> Iterator[str]:
    """Yield the reasons that a file gives: what its refusals are made with, by a name or as it stands."""
    tree = ast.parse((ROOT / "gateway" / "front" / f"{file}.py").read_text("utf-8"))
    named = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        found: list[ast.AST] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REFUSE:
            found = list(node.args)
        elif isinstance(node, ast.FunctionDef) and node.name == "_outside":
            found = [one for end in ast.walk(node) if isinstance(end, ast.Return) for one in ast.walk(end)]
        for one in found:
            said = named.get(one.id) if isinstance(one, ast.Name) else getattr(one, "value", None)
            if isinstance(said, str) and " " in said:
                yield ABOUT.sub("", said)


def blocks() -> list[str]:
    """Return the configurations that this page and the one about security show."""
    pages = PAGE + (ROOT / "docs" / "security.md").read_text("utf-8")
    return re.findall(r"```yaml\n(.*?)```", pages, re.DOTALL)


@pytest.mark.parametrize("block", blocks())
def test_its_configurations_load(block: str) -> None:
    """As they are written, without a warning, and with callers who are verified."""
    warnings: list[str] = []
    config: Config = load(block, warn=warnings.append)
    assert config.authentication.on
    assert warnings == []


def test_it_explains_every_refusal_that_is_made() -> None:
    """And no others; each stands once."""
    made = {reason for file in FILES for reason in given(file)}
    assert len(explained()) == len(set(explained())) > 25
    assert set(explained()) == made
