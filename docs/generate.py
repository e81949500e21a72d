"""Writes the pages that follow from the code, and manifests that follow from other files: `make docs`.

`python -m docs.generate --check` writes nothing and ends with 1 where one is not what it should be.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from docs.generating import findings, metrics, reference, rules

ROOT = Path(__file__).parents[1]

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/findings.md": findings.page,
    "docs/metrics.md": metrics.page,
    "docs/reference.md": reference.page,
    "deploy/kubernetes/components/monitoring/prometheusrule.yaml": rules.kubernetes,
    "deploy/helm/mcp-gateway/files/rules.yaml": rules.chart,
}
"""File in the repository -> what makes its text."""


def outdated() -> list[str]:
    """Return the files that are not what they should be."""
    return [name for name, page in PAGES.items() if _written(name) != page()]


def _written(name: str) -> str:
    try:
        return (ROOT / name).read_text("utf-8")
    except FileNotFoundError:
        return ""


def main(arguments: Sequence[str]) -> int:
    """Write what is outdated, or only say it."""
    names = outdated()
    for name in names:
        if "--check" in arguments:
            sys.stderr.write(f"{name} is not what the code says: run `make docs`\n")
        else:
            (ROOT / name).write_text(PAGES[name](), "utf-8")
            sys.stdout.write(f"{name}\n")
    return 1 if names and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
