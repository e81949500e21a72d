"""Every block of the documentation is loaded, run, or compared; one that nothing checks fails here."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from gateway.config import ConfigError
from tests.docs import configs
from tests.docs.elsewhere import ELSEWHERE
from tests.docs.pages import MARKS, Block, pages, readable
from tests.docs.stages import STAGES, Stage, mismatch, stage
from tests.support import manifests
from tests.support.processes import ROOT

SHELL = {"sh", "bash", "shell"}
NOT_RUN = {"elsewhere", "excerpt", "as"}
READ = {page: readable(page) for page in pages()}
BLOCKS = [block for found, _ in READ.values() for block in found]
STORIES = [
    (page, name, [block for block in told if "file" in block.marks or not block.marks.keys() & NOT_RUN])
    for (page, name), told in (
        (key, list(group))
        for key, group in groupby(
            sorted((one for one in BLOCKS if one.stage), key=lambda one: (one.page, one.stage)),
            key=lambda one: (one.page, str(one.stage)),
        )
    )
]


def marked(name: str) -> Iterator[Block]:
    return (block for block in BLOCKS if name in block.marks)


def _by_program(*command: str) -> Callable[[Path], str | None]:
    def check(file: Path) -> str | None:
        done = subprocess.run([*command, str(file)], capture_output=True, text=True, timeout=15)
        return f"{done.stdout}{done.stderr}" if done.returncode else None

    return check


def _data(file: Path) -> str | None:
    """JSON that is read for its own sake, as every JSON is."""
    return None if isinstance(json.loads(file.read_text()), dict | list) else "neither an object nor a list"


def _marks(file: Path) -> str | None:
    """Marks, and what they are for."""
    names = re.findall(r"^<!-- (\w+)", file.read_text(), re.MULTILINE)
    unknown = sorted({*names} - {*MARKS})
    return f"no marks: {unknown}" if unknown or not names else None


def _usage(file: Path) -> str | None:
    """Commands, and in brackets what may be left out; test_pages.py knows whether they exist."""
    odd = [line for line in file.read_text().splitlines() if not line.startswith("mcp-gateway ")]
    return f"no command: {odd}" if odd else None


def _nginx(file: Path) -> str | None:
    """A part of a `server`, in a file of which nginx says whether it is right."""
    whole = file.with_name("nginx.conf")
    whole.write_text(f"events {{}}\nhttp {{ server {{ listen 127.0.0.1:1;\n{file.read_text()} }} }}\n")
    command = ["nginx", "-t", "-q", "-e", "stderr", "-p", str(file.parent), "-g", "pid nginx.pid;", "-c"]
    return _by_program(*command)(whole)


def _values(file: Path) -> str | None:
    """Values of the chart, with which Helm renders it, and the configuration that comes of them."""
    if find_spec("helm_python") is None:
        return None  # it is there for some platforms alone
    manifests.loaded(manifests.charted(YAML(typ="safe").load(file)), "demo-mcp-gateway")
    return None


OTHER: dict[str, Callable[[Path], str | None]] = {
    "data": _data,
    "prometheus": _by_program("promtool", "check", "config", "--syntax-only"),
    "rules": _by_program("promtool", "check", "rules"),
    "usage": _usage,
    "marks": _marks,
    "nginx": _nginx,
    "haproxy": _by_program("haproxy", "-c", "-f"),
    "values": _values,
}
"""`as` -> what reads such a block."""


def checked(block: Block) -> bool:
    marks = block.marks.keys()
    if marks & {"elsewhere", "excerpt", "as"} or configs.is_configuration(block):
        return True
    return block.stage is not None and (block.language in SHELL or bool(marks & {"output", "file"}))


@pytest.mark.parametrize("page", READ)
def test_pages_are_written_so_that_they_can_be_checked(page: str) -> None:
    """No block without a language, no mark without a block, no mark that there is not."""
    _, wrong = READ[page]
    assert wrong is None, wrong


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_is_checked(block: Block) -> None:
    """Whoever writes a block says how it is known to be true."""
    known = "\n".join(f"  <!-- {name}: … -->  {what}" for name, what in MARKS.items())
    assert checked(block), f"{block}: nothing checks this block; write a mark above it:\n{known}"
    assert block.stage is None or block.stage in STAGES, f"{block}: the stages are {', '.join(STAGES)}"
    where = block.marks.get("elsewhere")
    assert where is None or where in ELSEWHERE, f"{block}: elsewhere.py has {', '.join(ELSEWHERE)}"
    kind = block.marks.get("as")
    assert kind is None or kind in OTHER, f"{block}: it may be {', '.join(OTHER)}"


@pytest.mark.parametrize("block", [one for one in BLOCKS if configs.is_configuration(one)], ids=str)
def test_configurations_load(block: Block, tmp_path: Path) -> None:
    """What is shown as a configuration can be copied as it stands."""
    try:
        configs.loaded(block, tmp_path)
    except ConfigError as error:
        pytest.fail(f"{block}:\n" + "\n".join(map(str, error.problems)), pytrace=False)


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language in {"yaml", "json"}], ids=str)
def test_yaml_and_json_can_be_read(block: Block) -> None:
    """Whatever it is about."""
    if block.language == "json" and "output" not in block.marks:
        json.loads(block.text)
    elif "output" not in block.marks:
        list(YAML(typ="safe").load_all(block.text))


def test_what_is_for_other_programs_is_read_by_them(tmp_path: Path) -> None:
    """Their own checkers say whether it is right."""
    for block in marked("as"):
        file = tmp_path / "block"
        file.write_text(block.text)
        wrong = OTHER[block.marks["as"]](file)
        assert wrong is None, f"{block}: {wrong}"


def test_excerpts_are_what_the_files_say() -> None:
    """Each line stands in the file, in this order."""
    for block in marked("excerpt"):
        rest = iter((ROOT / block.marks["excerpt"]).read_text("utf-8").splitlines())
        for line in block.text.splitlines():
            if line.strip() not in {"", "…", "# …"}:
                assert line in rest, f"{block}: {block.marks['excerpt']} does not say, here: {line}"


def test_what_cannot_run_here_is_only_that() -> None:
    """Each command of such a block is one of those that the list allows, and a shell can read it."""
    for block in marked("elsewhere"):
        if block.language in SHELL:
            subprocess.run(["bash", "-n", "-c", block.text], check=True)
            allowed = ELSEWHERE[block.marks["elsewhere"]].commands
            for line in block.text.replace("\\\n", " ").splitlines():
                assert not line or line.startswith(("#", *allowed)), f"{block}: {line} is not {allowed}"


def test_what_checks_them_instead_is_there() -> None:
    """The list of exceptions holds none that is over."""
    used = {block.marks.get("elsewhere") for block in BLOCKS}
    for name, one in ELSEWHERE.items():
        assert name in used, f"no block needs {name} any more"
        assert (ROOT / one.instead).exists(), f"{name}: there is no {one.instead}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "story"),
    [pytest.param(name, story, id=f"{page}-{name}") for page, name, story in STORIES],
)
def test_commands_do_what_is_shown(name: str, story: list[Block]) -> None:
    """The blocks of a page on one stage, in their order."""
    with stage(name, story) as set_stage:
        play(set_stage, story)


def play(on: Stage, story: list[Block]) -> None:
    printed: str | None = None
    for block in story:
        if "file" in block.marks:
            on.write(block)
        if "output" in block.marks:
            assert printed is not None, f"{block}: no command stands before it"
            wrong = mismatch(block.text, printed)
            assert wrong is None, f"{block}: {wrong}"
        elif block.language in SHELL and "file" not in block.marks:
            printed = on.run(block)
