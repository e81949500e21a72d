"""Writes the pages that follow from the code, so that they cannot fall behind it: `make docs`.

`python -m docs.generate --check` writes nothing and ends with 1 where a page is not what the code says.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from docs.generating import findings, metrics, reference

HERE = Path(__file__).parent

PAGES: Mapping[str, Callable[[], str]] = {
    "findings.md": findings.page,
    "metrics.md": metrics.page,
    "reference.md": reference.page,
}
"""File in this folder -> what makes its text."""


def outdated() -> list[str]:
    """Return the pages that are not what the code says."""
    return [name for name, page in PAGES.items() if _written(name) != page()]


def _written(name: str) -> str:
    try:
        return (HERE / name).read_text("utf-8")
    except FileNotFoundError:
        return ""


def main(arguments: Sequence[str]) -> int:
    """Write what is outdated, or only say it."""
    names = outdated()
    for name in names:
        if "--check" in arguments:
            sys.stderr.write(f"docs/{name} is not what the code says: run `make docs`\n")
        else:
            (HERE / name).write_text(PAGES[name](), "utf-8")
            sys.stdout.write(f"docs/{name}\n")
    return 1 if names and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
