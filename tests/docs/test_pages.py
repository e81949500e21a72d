"""What the pages say in passing is true: links lead somewhere, commands and metrics that they name exist."""

import argparse
import re

import pytest

from gateway.commands import options
from gateway.support.metrics import TABLE
from tests.docs.pages import anchors, inline, links, pages, readable, target_of, text_of
from tests.support.processes import ROOT

_WORD = re.compile(r"[a-z][a-z-]*")


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page: str) -> None:
    """To a file that is there, and a heading that is in it."""
    for line, link in links(text_of(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        file, anchor = target_of(page, link)
        assert file.exists(), f"{page}:{line}: there is no {link}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text("utf-8")), f"{page}:{line}: no heading is {link}"


def test_every_page_is_in_the_index() -> None:
    """Who begins at docs/README.md finds all of them."""
    index = {target_of("docs/README.md", link)[0].resolve() for _, link in links(text_of("docs/README.md"))}
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or page.resolve() in index, (
            f"docs/README.md does not name {page.name}"
        )


def _options() -> dict[str, set[str]]:
    (commands,) = (
        action for action in options.parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    return {name: set(parser._option_string_actions) for name, parser in commands.choices.items()}


@pytest.mark.parametrize("page", pages())
def test_commands_and_options_exist(page: str) -> None:
    """Also those in sentences and tables, which nothing runs."""
    known = _options()
    shown = list(inline(text_of(page)))
    shown += [
        (block.line, line)
        for block in readable(page)[0]
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    for line, code in shown:
        for command, rest in re.findall(r"(?:^|[\s/])mcp-gateway ([a-z]\S*)([^|;&]*)", code):
            if not _WORD.fullmatch(command):
                continue
            assert command in known, f"{page}:{line}: there is no command {command}"
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest):
                assert option in known[command], f"{page}:{line}: {command} has no {option}"


@pytest.mark.parametrize("page", pages())
def test_metrics_exist(page: str) -> None:
    """The names of metrics are those of gateway/support/metrics.py."""
    known = {f"{row.name}{end}" for row in TABLE for end in ("", "_bucket", "_sum", "_count")}
    for name in re.findall(r"\b(?:mcp_gateway|mcp_server|mcp_client)_\w+", text_of(page)):
        begins = name.endswith("_") and any(one.startswith(name) for one in known)
        assert name in known or begins, f"{page}: there is no metric {name}"


@pytest.mark.parametrize("page", pages())
def test_make_targets_exist(page: str) -> None:
    """Nobody types one that is not there."""
    makefile = (ROOT / "Makefile").read_text()
    for line, target in [
        *(
            (number, name)
            for number, code in inline(text_of(page))
            for name in re.findall(r"^make ([a-z]\S*)", code)
        ),
        *(
            (block.line, name)
            for block in readable(page)[0]
            for name in re.findall(r"^make ([a-z]\S*)", block.text, re.MULTILINE)
        ),
    ]:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}:{line}: there is no make {target}"


def test_messages_that_can_be_looked_up_are_those_of_the_code() -> None:
    """Who searches for what he was told finds it, in the words that he was told."""
    sources = sorted((ROOT / "gateway").rglob("*.py"))
    said = "".join(re.sub(r'"\s+f?"', "", path.read_text("utf-8")) for path in sources)
    rows = re.findall(r"^\| ([^|]+) \|", text_of("docs/troubleshooting.md"), re.MULTILINE)
    messages = [code for row in rows for code in re.findall(r"`([^`]+)`", row)]
    assert len(messages) > 25
    # What the system says, and what is put together of a kind and a name.
    others = {"Address already in use", "Permission denied", "Unknown tool: ", "${TOKEN}"}
    assert [code for code in messages if code not in said and code not in others] == []
