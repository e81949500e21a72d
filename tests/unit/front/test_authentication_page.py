"""docs/authentication.md says what is so: its configuration loads, its refusals are made."""

import re
from pathlib import Path

from gateway.config import load

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "authentication.md").read_text("utf-8")
FILES = ("tokens", "proving", "verify")
SOURCE = "".join((ROOT / "gateway" / "front" / f"{name}.py").read_text("utf-8") for name in FILES)


def reasons() -> list[str]:
    """Return what the last table explains."""
    table = PAGE.partition("## Why was that refused?")[2]
    return re.findall(r"^\| (.+?) \| .+ \|$", table, re.MULTILINE)[1:]


def test_its_configuration_loads() -> None:
    """As it is written."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert load(block).authentication.on


def test_it_explains_refusals_that_are_made() -> None:
    """And no others; each stands once."""
    assert len(reasons()) == len(set(reasons())) > 10
    assert [one for one in reasons() if one not in SOURCE] == []
