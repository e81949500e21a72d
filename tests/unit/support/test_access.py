"""Which exchanges have a line, what stands in it, and that it waits for nobody."""

import asyncio
import io
import json
import logging
import os
import re
from collections.abc import Iterator
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from gateway import config
from gateway.protocol.call import Reuse
from gateway.support import access, exchange, logs
from gateway.support.exchange import Exchange


@pytest.fixture(autouse=True)
def afterwards() -> Iterator[None]:
    """Put the logs back as they were."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logs.configure(config.Log(), stream=io.StringIO())  # which takes the levels back
    root.handlers[:] = handlers
    root.setLevel(level)
    access.use(None)


def ended(outcome: str = "ok", **members: Any) -> Exchange:
    """Return one that is about to end."""
    one = Context().run(exchange.begin, "http", "an-id")
    one.outcome = outcome
    for name, value in members.items():
        setattr(one, name, value)
    return one


def told(settings: config.Log, *exchanges: Exchange) -> list[str]:
    """Return the lines that exchanges come to."""
    stream = io.StringIO()
    logs.configure(settings, stream=stream)
    for one in exchanges:
        access.tell(one)
    return stream.getvalue().splitlines()


def whole() -> Exchange:
    """Return one of which everything is known."""
    one = ended(
        endpoint="/mcp",
        era="modern",
        method="tools/list",
        name="alpha__add",
        caller="abcdefghijklmnop",
        reuse=Reuse("miss", "absent", 0),
        status=200,
        sent=512,
    )
    one.lookups.append(exchange.Looked("alpha", "tools/list", "hit", "fresh", 7))
    one.calls.append(exchange.Called("beta", "tools/list", "timeout", 1.5))
    one.unnoted = 3
    return one


def test_a_json_line_has_a_member_for_everything() -> None:
    """Times are numbers of milliseconds, and of the hash of who called there is the beginning."""
    (line,) = told(config.Log(format="json"), whole())
    members = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", members.pop("time"))
    assert 0.0 <= members.pop("ms") < 60_000
    assert members == {
        "level": "info",
        "logger": "gateway.access",
        "message": "tools/list: ok",
        "request": "an-id",
        "transport": "http",
        "endpoint": "/mcp",
        "era": "modern",
        "method": "tools/list",
        "name": "alpha__add",
        "caller": "abcdefghijkl",
        "outcome": "ok",
        "status": 200,
        "bytes": 512,
        "cache": {"result": "miss", "reason": "absent", "age": 0},
        "lookups": [
            {"upstream": "alpha", "method": "tools/list", "result": "hit", "reason": "fresh", "age": 7}
        ],
        "calls": [{"upstream": "beta", "method": "tools/list", "outcome": "timeout", "ms": 1.5}],
        "more": 3,
    }


def test_a_text_line_says_the_same() -> None:
    """In the form of all other lines."""
    (line,) = told(config.Log(), whole())
    line = re.sub(r" ms=\d+\.\d{3} ", " ms=X ", line)
    assert line[24:] == (
        " INFO gateway.access: /mcp tools/list alpha__add: ok 200 transport=http era=modern"
        " caller=abcdefghijkl ms=X bytes=512 request=an-id cache=miss,absent,0s"
        " lookup=alpha,tools/list,hit,fresh,7s"
        " call=beta,tools/list,timeout,1.5ms more=3"
    )


SHOWN = """
2026-11-30T21:04:11.018Z INFO gateway.access: /mcp tools/call gh__search: ok 200 transport=http era=modern caller=b3Jx0aVQ2kLm ms=41.207 bytes=1893 request=7c01e9d2-3f call=gh,tools/call,ok,39.811ms
"""  # noqa: E501  # as docs/observability.md has it
SHOWN_AS_JSON = Path(__file__).parents[3] / "docs" / "observability.md"


def _without_times(line: str) -> str:
    return re.sub(r"ms=[0-9.]+|^\S+|request=\S+", "", line.strip())


def test_the_lines_that_the_page_shows_are_such_lines() -> None:
    """In both forms, to the last member."""
    one = ended(
        endpoint="/mcp",
        era="modern",
        method="tools/call",
        name="gh__search",
        caller="b3Jx0aVQ2kLm",
        status=200,
        sent=1893,
    )
    one.calls.append(exchange.Called("gh", "tools/call", "ok", 39.811))
    (line,) = told(config.Log(), one)
    assert _without_times(line) == _without_times(SHOWN)
    shown = json.loads(re.findall(r"```json\n(.*?)```", SHOWN_AS_JSON.read_text("utf-8"), re.DOTALL)[0])
    (line,) = told(config.Log(format="json"), whole())
    assert list(shown) == [member for member in json.loads(line) if member not in ("name", "more")]


def test_a_request_of_which_little_is_known_has_a_short_line() -> None:
    """Such as one that was turned away at the door."""
    (line,) = told(config.Log(), ended("path", status=404))
    assert re.search(r" - request: path 404 transport=http ms=\S+ bytes=0 request=an-id$", line)


@pytest.mark.parametrize(
    ("settings", "outcome", "listens", "written"),
    [
        ({}, "ok", False, True),
        ({"access": "none"}, "bug", False, False),
        ({"access": "problems"}, "ok", False, False),
        ({"access": "problems"}, "cancelled", False, False),
        ({"access": "problems"}, "unavailable", False, True),
        ({"access": "problems"}, "error", False, True),
        ({"access": "problems", "slow": 0.0}, "ok", False, True),
        ({"access": "problems", "slow": 0.0}, "ok", True, False),
        ({"level": "warning"}, "ok", False, False),
        ({"level": "warning", "levels": {"gateway.access": "info"}}, "ok", False, True),
        ({"levels": {"gateway.access": "warning"}}, "bug", False, False),
    ],
)
def test_the_settings_say_which_have_a_line(
    settings: dict[str, Any], outcome: str, listens: bool, written: bool
) -> None:
    """Failed or slow ones are the problems; how long a stream was held open is none."""
    assert len(told(config.Log(**settings), ended(outcome, listens=listens))) == written


async def test_lines_are_gathered_and_come_before_what_happens_later() -> None:
    """They wait for a moment, but not until something else was written."""
    stream = io.StringIO()
    logs.configure(config.Log(), stream=stream)
    access.tell(ended("first"))
    access.tell(ended("second"))
    assert stream.getvalue() == ""
    logging.getLogger("gateway").warning("third")
    words = re.findall("first|second|third", stream.getvalue())
    assert words == ["first", "second", "third"]
    access.tell(ended("fourth"))
    while "fourth" not in stream.getvalue():  # noqa: ASYNC110  # nothing tells of a write
        await asyncio.sleep(0.005)


async def test_what_waits_is_written_at_the_end() -> None:
    """Also by who ends the process without further ado."""
    stream = io.StringIO()
    logs.configure(config.Log(), stream=stream)
    access.tell(ended())
    logs.flush()
    assert ": ok" in stream.getvalue()


def test_a_log_that_nobody_reads_holds_up_nobody() -> None:
    """What cannot be written is dropped beyond a bound, and its number told once somebody reads again."""
    read, write = os.pipe()
    with open(write, "w", encoding="utf-8") as stream, open(read, "rb", buffering=0) as reader:
        logs.configure(config.Log(format="json"), stream=stream)
        made = 12_000
        for _ in range(made):
            access.tell(ended(name="x" * 60))
        logs.flush()  # returns, although the pipe holds 64 KiB
        os.set_blocking(read, False)
        found = b""
        while b"nobody read the log" not in found:
            found += reader.read(2**20) or b""
            logs.flush()
    lines = [json.loads(line) for line in found.splitlines()]
    words = [line["message"] for line in lines]
    missing = int(words[-1].split()[0])
    assert words[:-1] == ["request: ok"] * (made - missing)
    assert 0 < missing < made


def test_a_record_names_the_request_it_was_written_for() -> None:
    """Whatever is logged meanwhile, and no longer."""
    stream = io.StringIO()
    logs.configure(config.Log(format="json"), stream=stream)

    def work() -> None:
        one = exchange.begin("http")
        logging.getLogger("gateway.core").warning("within")
        access.use(None)
        access.tell(one)
        logging.getLogger("gateway.core").warning("behind")
        within, behind = map(json.loads, stream.getvalue().splitlines())
        assert within["request"] == one.id
        assert "request" not in behind

    Context().run(work)


def test_a_part_has_a_level_of_its_own_until_another_configuration() -> None:
    """It holds for all that is within the part."""
    stream = io.StringIO()
    logs.configure(config.Log(levels={"gateway.upstream": "debug"}), stream=stream)
    logging.getLogger("gateway.upstream.member").debug("told")
    logging.getLogger("gateway.core.hub").debug("not told")
    logs.configure(config.Log(), stream=stream)
    logging.getLogger("gateway.upstream.member").debug("not told either")
    assert [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()] == ["told"]
