"""Says in plain words, and without repeating the text, why something is not YAML.

What stands at the place may be a secret that merely looks like an alias or a tag (B42): only single signs of
YAML itself are named.
"""

import json
import re
from collections.abc import Callable

from ruamel.yaml.error import MarkedYAMLError, StringMark


def said(error: MarkedYAMLError, text: str) -> tuple[int, str]:
    """Return the line to look at, 0 when it is not known, and what is wrong there."""
    at = error.problem_mark or error.context_mark
    if at is None:
        return 0, "this is not YAML"
    opened = error.context_mark or at
    problem = str(error.problem or "")
    for pattern, words in _KNOWN:
        if re.match(pattern, problem):
            return words(problem, opened, at, text)
    return at.line + 1, f"at column {at.column + 1}: this is not YAML; text with signs in it needs quotes"


def said_of_json(text: str) -> tuple[int, str] | None:
    """Return the line to look at and what is wrong there, None for what is JSON, or is not meant to be."""
    if re.match(r'\s*\{\s*"', text) is None:
        return None
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if text[error.pos :].strip() == "" or error.msg.startswith("Unterminated string"):
            return error.lineno, "the file ends too early, or a bracket or a quote is not closed"
        return error.lineno, f"at column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
    except (ValueError, RecursionError):
        return None
    return None


def _unclosed(problem: str, opened: StringMark, at: StringMark, text: str) -> tuple[int, str]:
    bracket = "{" if "}" in problem.partition(", but")[0] else "["
    where = f"`{bracket}` opened at {opened.line + 1}:{opened.column + 1} is not closed"
    if text[at.index - 1 : at.index + 1] == "${":
        closing = "}" if bracket == "{" else "]"
        return at.line + 1, f"{where}; put ${{…}} in quotes inside {bracket} {closing}"
    if "but got ':'" in problem and at.line == opened.line:
        return at.line + 1, f'{where}; text that holds ": " needs quotes'
    return at.line + 1, f"{where} before column {at.column + 1}, or a comma is missing there"


def _open_quote(problem: str, opened: StringMark, at: StringMark, text: str) -> tuple[int, str]:
    return opened.line + 1, f"the quote that opens at column {opened.column + 1} is not closed"


def _bad_start(problem: str, opened: StringMark, at: StringMark, text: str) -> tuple[int, str]:
    sign = text[at.index : at.index + 1]
    if sign == "\t":
        return at.line + 1, "a tab cannot indent: use spaces"
    return at.line + 1, f"at column {at.column + 1}: text that begins with {sign} needs quotes"


def _colon(problem: str, opened: StringMark, at: StringMark, text: str) -> tuple[int, str]:
    advice = 'text that holds ": " needs quotes, and the keys of one mapping begin in one column'
    return at.line + 1, f"at column {at.column + 1}: a value has no second `:`; {advice}"


def _odd_end(problem: str, opened: StringMark, at: StringMark, text: str) -> tuple[int, str]:
    if "<scalar>" in problem:
        return at.line + 1, f"at column {at.column + 1}: text behind a value that has ended: quote it whole"
    return at.line + 1, f"this line is indented unlike what began on line {opened.line + 1}"


def _no_key(problem: str, opened: StringMark, at: StringMark, text: str) -> tuple[int, str]:
    return opened.line + 1, "expected `key: value`, a colon and a space between them"


def _plain(advice: str) -> "_Words":
    return lambda problem, opened, at, text: (at.line + 1, f"at column {at.column + 1}: {advice}")


_Words = Callable[[str, StringMark, StringMark, str], tuple[int, str]]
_KNOWN: tuple[tuple[str, _Words], ...] = (
    ("expected ',' or", _unclosed),
    (
        "found undefined alias",
        _plain("an alias (*…) whose anchor (&…) stands nowhere above; text that begins with * needs quotes"),
    ),
    ("found character .* that cannot start", _bad_start),
    ("mapping values are not allowed", _colon),
    ("found unexpected end of stream", _open_quote),
    ("expected <block end>", _odd_end),
    ("could not find expected ':'", _no_key),
    (
        "found unknown escape character|expected escape sequence",
        _plain("in double quotes \\ begins an escape: write \\\\, or use single quotes"),
    ),
    ("expected the node content", _plain("expected a value before this sign")),
    ("but found another document", _plain("a second document (---) begins: a configuration is one")),
    ("sequence entries are not allowed", _plain("an element of a list (- ) begins on a line of its own")),
    ("mapping keys are not allowed", _plain("text that begins with ? needs quotes")),
    ("expected '<document start>'", _plain("a line cannot begin with %")),
    ("found undefined tag handle|expected ('[ >!]'|URI)", _plain("text that begins with ! needs quotes")),
    ("expected alphabetic or numeric", _plain("text that begins with * or & needs quotes")),
    ("expected (a comment|chomping)", _plain("text that begins with | or > needs quotes")),
)
