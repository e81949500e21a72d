"""docs/rules.md stays in step with the code: every cited rule can be looked up, and none is left over."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "rules.md"
CITING = ("gateway", "tests", "bench", "deploy")
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".sh"}

CODE = re.compile(r"\b(?:[A-Z]-\d\d[a-z]?|B\d\d)\b")
ROW = re.compile(r"^\| (\S+) \| (.+) \|$", re.MULTILINE)


def cited() -> Iterator[tuple[str, str]]:
    """Yield every code and the file that cites it."""
    for folder in CITING:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                for code in CODE.findall(path.read_text("utf-8")):
                    yield code, path.relative_to(ROOT).as_posix()


def sections() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the letter of every section of the page, and its rows: code and sentence."""
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        yield section[0], [row for row in ROW.findall(section) if CODE.fullmatch(row[0])]


def rows() -> list[str]:
    return [code for _, table in sections() for code, _ in table]


def test_every_cited_rule_stands_on_the_page() -> None:
    """Who reads a code must be able to look it up."""
    known = set(rows())
    assert sorted({f"{code} in {path}" for code, path in cited() if code not in known}) == []


def test_no_rule_on_the_page_is_cited_nowhere() -> None:
    """A row that nothing cites is a promise nobody keeps."""
    assert sorted(set(rows()) - {code for code, _ in cited()}) == []


def test_every_rule_stands_once_in_the_table_of_its_letter_and_in_order() -> None:
    """A page that is looked things up in is sorted."""
    for letter, table in sections():
        codes = [code for code, _ in table]
        assert codes, letter
        assert codes == sorted(set(codes))
        assert {code[0] for code in codes} == {letter}


def test_every_rule_is_one_sentence() -> None:
    """It begins like a sentence and ends with its only full stop before a space."""
    for code, sentence in (row for _, table in sections() for row in table):
        assert sentence.endswith("."), code
        assert ". " not in sentence, code
