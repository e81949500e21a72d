"""How commands speak: answers go to stdout, what went wrong to stderr, and the last line says what next.

Exit codes: 0 fine, 1 found problems, 2 wrong usage or configuration.
"""

import re
import shlex
import sys
from collections.abc import Sequence, Sized

from gateway.config import Problem

FINE, PROBLEMS, WRONG = 0, 1, 2


def complain(what: str, advice: str = "", *, code: int) -> int:
    """Print what went wrong and what helps, and return the exit code."""
    print(f"error: {what}", file=sys.stderr)
    if advice:
        print(f"next: {advice}", file=sys.stderr)
    return code


def warn(message: str) -> None:
    """Print what may be wrong."""
    print(f"warning: {plain(message)}", file=sys.stderr)


def wrong_config(problems: Sequence[Problem], file: str) -> int:
    """Print every mistake of a configuration, and return the exit code."""
    for problem in problems:
        print(plain(str(problem)), file=sys.stderr)
    again = f"mcp-gateway check {shlex.quote(plain(file))}"
    advice = f"mend this and try `{again}`; `mcp-gateway schema` prints every key"
    return complain(f"{count(problems, 'problem')} in the configuration", advice, code=WRONG)


def plain(text: str) -> str:
    """Return a text without control characters: what an upstream wrote must not steer the terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", " ", text)


def first_line(text: str) -> str:
    """Return the first line of a text, cut where it is long."""
    line = plain(text.strip().partition("\n")[0])
    return line if len(line) <= 100 else line[:99] + "…"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of equally many columns, each as wide as its widest but for the last."""
    shown = [list(map(plain, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)][:-1]
    padded = (
        [text.ljust(width) for text, width in zip(row, widths, strict=False)] + row[-1:] for row in shown
    )
    return "\n".join(f"  {'  '.join(row)}".rstrip() for row in padded)


def count(things: Sized, name: str) -> str:
    """Return how many there are, with their name."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
