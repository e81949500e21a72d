"""Reads what the documentation shows: blocks with the marks above them, links, headings. Pure.

A mark is an HTML comment on a line of its own directly above a block, which readers do not see:

    <!-- stage: gateway -->
    <!-- file: gateway.yaml -->
    ```yaml
    ...

`stage` holds for all blocks of the page below it, until the next one; the others are about one block. MARKS
says what there is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import ROOT

MARKS = {
    "stage": "on which stage of stages.py the blocks below are run and written",
    "file": "the file that the block is written to, in the stage's folder",
    "output": "it is what the block before printed; … stands for any text, alone on a line for any lines",
    "until": "the command goes on running; the next block's turn comes once it printed this",
    "stop": "a running command that holds this text is stopped before, as by Ctrl-C",
    "exit": "the exit code that is right; otherwise 0",
    "mistaken": "a configuration that is shown for what is wrong with it",
    "add": "names of upstreams that a part of a configuration speaks of, and that are added to it",
    "as": "what a block is that its language does not tell: see OTHER in test_blocks.py",
    "excerpt": "the file of the repository whose lines these are, in this order",
    "elsewhere": "it cannot run here; the name in elsewhere.py says what checks it instead",
}
_MARK = re.compile(r"<!-- (\w+)(?::(.*?))? -->")
_FENCE = re.compile(r"( *)(`{3,}|~{3,})([\w-]*) *(.*)")
_CODE = re.compile(r"`+[^`]*`+")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    stage: str | None = None
    marks: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Unreadable(Exception):
    """A page is not written as it has to be; the message says where and what to do."""


def pages() -> list[str]:
    """Return the names of all pages, from the root of the repository."""
    found = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
    return sorted(str(page.relative_to(ROOT)) for page in found if page.exists())


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page; raises Unreadable for marks and blocks nobody could check."""
    stage: str | None = None
    marks: dict[str, str] = {}
    lines = enumerate(text.splitlines(), 1)
    before = ""
    for number, line in lines:
        if mark := _MARK.fullmatch(line.strip()):
            name, value = mark[1], (mark[2] or "").strip()
            if name not in MARKS:
                raise Unreadable(f"{page}:{number}: there is no mark {name}; known are {', '.join(MARKS)}")
            if name == "stage":
                stage = value
            else:
                marks[name] = value
        elif fence := _FENCE.fullmatch(line):
            indent, ticks, language = len(fence[1]), fence[2], fence[3]
            body = []
            for _, inner in lines:
                if inner.strip() == ticks:
                    break
                body.append(inner[indent:] if not inner[:indent].strip() else inner)
            else:
                raise Unreadable(f"{page}:{number}: this block has no end")
            yield Block(page, number, language, "\n".join(body) + "\n", stage, marks)
            marks = {}
        elif line.startswith("    ") and line.strip() and not before.strip():
            raise Unreadable(
                f"{page}:{number}: write code between ``` and ```, so that its language is known"
            )
        elif line.strip() and marks:
            raise Unreadable(f"{page}:{number}: a mark stands directly above a block")
        before = line if not line.startswith("    ") else before


def readable(page: str) -> tuple[list[Block], str | None]:
    """Return the blocks of a page up to what makes it unreadable, and what that is."""
    found: list[Block] = []
    try:
        for block in blocks(page, text_of(page)):
            found.append(block)
    except Unreadable as error:
        return found, str(error)
    return found, None


def prose(text: str) -> str:
    """Return a page without its blocks, each of whose lines is left empty."""
    shown, ticks = [], None
    for line in text.splitlines():
        fence = _FENCE.fullmatch(line)
        if ticks is None and fence:
            ticks = fence[2]
            shown.append("")
        elif ticks is not None:
            ticks = None if line.strip() == ticks else ticks
            shown.append("")
        else:
            shown.append(line)
    return "\n".join(shown)


def links(text: str) -> list[tuple[int, str]]:
    """Return where the links and pictures of a page lead, and in which lines they stand."""
    found = []
    for number, line in enumerate(prose(text).splitlines(), 1):
        plain = _CODE.sub("", line)
        found += [(number, target) for target in re.findall(r"\]\(([^()\s]+)\)", plain)]
        found += [(number, target) for target in re.findall(r'(?:src|srcset|href)="([^"]+)"', plain)]
    return found


def anchors(text: str) -> set[str]:
    """Return what links may name behind #, as GitHub and most others make it of headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?)#* *$", prose(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number, unique = 0, slug
        while unique in found:
            number += 1
            unique = f"{slug}-{number}"
        found.add(unique)
    found |= set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    return found


def inline(text: str) -> Iterator[tuple[int, str]]:
    """Yield the code in the middle of sentences and tables, and its lines."""
    for number, line in enumerate(prose(text).splitlines(), 1):
        for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", line):
            yield number, code


def target_of(page: str, link: str) -> tuple[Path, str]:
    """Return the file that a link leads to, and what stands behind its #."""
    path, _, anchor = link.partition("#")
    return ((ROOT / page).parent / path if path else ROOT / page), anchor
