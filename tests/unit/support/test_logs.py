"""How records become lines, and that no credential stands in one."""

import base64
import contextvars
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

import pytest
from multidict import CIMultiDict

from gateway import config
from gateway.support import logs

CANARY = "canary-5f1d0c9a7b"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """A stream for the log; the root logger is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_text_line_has_time_level_logger_message_and_extras(written: io.StringIO) -> None:
    """One record, one line."""
    logs.configure(config.Log(), stream=written)
    logging.getLogger("gateway.app").info("listening on %s", "127.0.0.1:8080", extra={"upstreams": 2})
    line = written.getvalue()
    assert line.endswith(" INFO gateway.app: listening on 127.0.0.1:8080 upstreams=2\n")
    assert line[10] == "T"


def test_a_json_line_is_one_object(written: io.StringIO) -> None:
    """Extras are members, a traceback is one member too."""
    logs.configure(config.Log(format="json"), stream=written)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("gateway.front").exception("a bug", extra={"endpoint": "/mcp"})
    record = json.loads(written.getvalue())
    assert record["level"] == "error"
    assert record["message"] == "a bug"
    assert record["endpoint"] == "/mcp"
    assert record["trace"].endswith("ValueError: broken")


def test_the_level_hides_what_is_below_it(written: io.StringIO) -> None:
    """Debug lines appear only at debug."""
    logs.configure(config.Log(level="warning"), stream=written)
    logging.getLogger("gateway").info("quiet")
    assert written.getvalue() == ""


def test_configuring_twice_writes_once(written: io.StringIO) -> None:
    """A reload changes the form and adds no second line."""
    logs.configure(config.Log(), stream=written)
    logs.configure(config.Log(format="json"), stream=written)
    logging.getLogger("gateway").info("once")
    assert len(written.getvalue().splitlines()) == 1


def test_a_line_break_in_a_message_starts_no_new_line(written: io.StringIO) -> None:
    """A client cannot forge a record."""
    logs.configure(config.Log(), stream=written)
    logging.getLogger("gateway").info("tool %s", "x\n2026 ERROR gateway: forged\u2028")
    assert len(written.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {CANARY}",
        f"{{'authorization': 'Bearer {CANARY}'}}",
        f"(b'Authorization', b'Basic {CANARY}')",
        f"got bearer {CANARY} here",
        f"https://user:{CANARY}@alpha.example/mcp",
        f"https://alpha.example/mcp?api_key={CANARY}&x=1",
        f"GH_TOKEN={CANARY}",
        f'{{"client_secret": "{CANARY}"}}',
        f"password={CANARY}",
        f"Bearer https://user:{CANARY}@alpha.example/mcp",
    ],
)
def test_what_looks_like_a_credential_is_hidden(text: str) -> None:
    """B42: headers, URLs and settings are blanked wherever they stand in a text."""
    assert CANARY not in logs.redact(text)


@pytest.mark.parametrize(
    "piece", ["a-", "a_", "a", "token ", "a.b+", "cookie:", "://", "eyJ", "a://u:p@h?q "]
)
def test_a_long_text_is_looked_through_once(piece: str) -> None:
    """A megabyte of it: a program may write what it likes, and must not hold up everybody else with it."""
    assert CANARY not in logs.redact(piece * (2**20 // len(piece)) + f" token={CANARY}")


def test_a_url_keeps_its_host_and_path() -> None:
    """A redacted line still says where."""
    assert (
        logs.redact("GET https://u:p@alpha.example/mcp?k=v failed")
        == "GET https://alpha.example/mcp?*** failed"
    )


def test_a_known_secret_is_hidden_in_messages_extras_and_tracebacks(written: io.StringIO) -> None:
    """Values from the configuration are blanked whatever surrounds them."""
    logs.configure(config.Log(), stream=written, secrets=["k-123456"])
    try:
        raise ValueError("saw k-123456")
    except ValueError:
        logging.getLogger("gateway").exception("about k-123456", extra={"what": "k-123456"})
    assert "k-123456" not in written.getvalue()
    assert written.getvalue().count("***") == 4


def test_a_short_secret_makes_no_holes_in_words() -> None:
    """`re***licas` would tell that it is a p; alone it is hidden, whatever characters it has."""
    assert (
        logs.redact("not linked to the other replicas: p", ["p"]) == "not linked to the other replicas: ***"
    )
    assert logs.redact("tried p, ap and p-q", ["p"]) == "tried ***, ap and ***-q"
    assert logs.redact("got $1+ from 2$1+", ["$1+"]) == "got *** from 2$1+"
    assert logs.redact("the text", ["", "e"]) == "the text"


def test_a_longer_secret_goes_before_one_that_is_a_part_of_it() -> None:
    """Else its rest would be left standing."""
    assert logs.redact("a secret-word-2 b", ["secret-word", "secret-word-2"]) == "a *** b"


def test_aiohttp_says_the_kind_of_an_error_and_quotes_nothing(
    written: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    """B42: its own tracebacks carry header bytes, so whoever listens gets only the class name."""
    logs.configure(config.Log(level="debug"), stream=written)
    try:
        raise ValueError(f"Got more than 8190 bytes when reading: b'Bearer {CANARY}'")
    except ValueError as error:
        logging.getLogger("aiohttp.server").exception(
            "Error handling request from %s", CANARY, exc_info=error
        )
        logging.getLogger("aiohttp.internal").error(error)
    assert "Error handling request from: ValueError" in written.getvalue()
    for secret in (CANARY, CANARY.encode().hex(), base64.b64encode(CANARY.encode()).decode()):
        assert secret not in written.getvalue()
        assert all(secret not in str(vars(record)) for record in caplog.records)


def foreign(error: BaseException | None = None) -> logging.LogRecord:
    """Return a record as another package makes one, with the canary wherever it can stand."""
    text = f"Task exception was never retrieved\nfuture: <Task exception=ValueError({CANARY!r})>"
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("asyncio", logging.ERROR, "x.py", 1, text, (), info)


def test_of_other_packages_the_log_keeps_places_and_kinds(written: io.StringIO) -> None:
    """What asyncio prints of a task that failed quotes what the exception says; its code does not."""
    logs.configure(config.Log(level="debug"), stream=written)
    try:
        try:
            raise KeyError(CANARY)
        except KeyError as cause:
            raise ValueError(f"saw {CANARY}") from cause
    except ValueError as error:
        logging.getLogger("asyncio").handle(foreign(error))
    logging.getLogger("redis.connection").debug("sent %s to %s", CANARY, "h")
    logging.getLogger("py.warnings").warning("%s", f"a.py:3: UserWarning: {CANARY}\n  code")
    said = written.getvalue()
    assert CANARY not in said
    for part in ("Task exception was never retrieved", "test_logs.py", "builtins.ValueError", "KeyError"):
        assert part in said
    assert "redis.connection: sent … to …\n" in said
    assert "a.py:3: UserWarning" in said


def test_a_record_that_cannot_be_written_is_not_printed_raw(
    written: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    """The standard library would print message and arguments to stderr."""
    logs.configure(config.Log(), stream=written)
    (ours,) = [one for one in logging.getLogger().handlers if isinstance(one.formatter, logs.TextLines)]
    ours.handle(logging.LogRecord("gateway", logging.INFO, "x.py", 1, "%d tokens", (CANARY,), None))
    assert written.getvalue() == "a record of gateway could not be written: TypeError\n"
    assert CANARY not in "".join(capsys.readouterr())


@pytest.mark.parametrize("secret", ["s3cr3t/+?ü", "hunter2", CANARY, "a" * 40])
def test_a_known_secret_is_hidden_in_every_spelling(written: io.StringIO, secret: str) -> None:
    """As bytes, in hex, in a URL, and in base64 behind one, two or three other bytes."""
    logs.configure(config.Log(), stream=written, secrets=[secret])
    text = secret.encode()
    for before in range(3):
        coded = base64.b64encode(b"x" * before + text + b"yz").decode()
        core = coded[(before * 8 + 5) // 6 : (before + len(text)) * 8 // 6]
        logging.getLogger("gateway").info("basic auth of %s", coded)
        logging.getLogger("gateway").info("and %s", coded.replace("+", "-").replace("/", "_"))
        assert core not in written.getvalue()
    for spelled in (secret, text.hex(), quote(secret, safe=""), quote_plus(secret)):
        logging.getLogger("gateway").info("as %s", spelled)
        assert spelled not in written.getvalue()


def test_a_secret_of_the_request_is_hidden_while_it_is_served(written: io.StringIO) -> None:
    """Also when some text was cut in the middle of it; elsewhere nobody knows of it."""
    logs.configure(config.Log(), stream=written)

    def serve() -> None:
        logs.hide(CIMultiDict(Authorization=f"Bearer {CANARY}"), ["authorization"])
        logging.getLogger("gateway").info("got %s and b'Bearer %s...'", CANARY, CANARY[:14])

    contextvars.copy_context().run(serve)
    assert CANARY[:12] not in written.getvalue()
    logging.getLogger("gateway").info("the name canary-5f1d0c9a7b")
    assert "canary-5f1d" in written.getvalue()


def test_commands_that_set_up_no_log_warn_without_secrets() -> None:
    """Python prints such warnings by itself; what is left of them looks the same."""
    program = (
        "import logging, sys; from gateway.support import logs; logs.guard_last_resort(sys.argv[1:])\n"
        "logging.getLogger('gateway.x').warning('it said %s', sys.argv[1])\n"
        "logging.getLogger('asyncio').error('odd: %r', sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, CANARY], capture_output=True, text=True, check=False
    )
    assert done.stderr == "it said ***\nodd: …\n"


def test_what_nobody_catches_goes_through_the_log() -> None:
    """In the main thread, in others, and where nothing can be raised; each in a process of its own."""
    program = (
        "import threading, sys; from gateway import config; from gateway.support import logs\n"
        f"logs.configure(config.Log(), secrets=[{CANARY!r}]); logs.take_the_rest()\n"
        f"def fail(*_): raise ValueError('saw {CANARY}')\n"
        "thread = threading.Thread(target=fail); thread.start(); thread.join()\n"
        "class Odd:\n    __del__ = fail\n"
        "Odd()\n"
        "import warnings; warnings.warn('about ' + sys.argv[1])\n"
        "fail()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, CANARY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert CANARY not in done.stderr
    assert done.stderr.count("CRITICAL gateway: nobody caught this") == 2
    assert "ERROR python: an exception where none can be raised" in done.stderr
    assert "UserWarning" in done.stderr


def test_records_are_not_waited_for_either() -> None:
    """A pipe that nobody reads takes some; the rest waits, up to a bound, and is told when somebody reads."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    read, write = os.pipe()
    try:
        with open(write, "w", encoding="utf-8") as stream, open(read, "rb", buffering=0) as reader:
            logs.configure(config.Log(format="json"), stream=stream)
            made = 12_000
            for number in range(made):
                logging.getLogger("gateway").warning("%d %s", number, "x" * 100)
            logs.configure(config.Log(format="json", level="warning"), stream=stream)  # a reload loses none
            os.set_blocking(read, False)
            found = b""
            while b"nobody read the log" not in found:
                found += reader.read(2**20) or b""
                logs.flush()
            logs.configure(config.Log(), stream=io.StringIO())
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    words = [json.loads(line)["message"] for line in found.splitlines()]
    missing = int(words[-1].split()[0])
    assert [word.split()[0] for word in words[:-1]] == [str(number) for number in range(made - missing)]
    assert 0 < missing < made


def test_a_record_that_cannot_be_written_says_whose_it_was(written: io.StringIO) -> None:
    """And nothing of what it had."""
    logging.getLogger().handlers[:] = []  # those of pytest would raise
    logs.configure(config.Log(), stream=written)
    logging.getLogger("gateway.core").warning("%d", CANARY)
    assert written.getvalue() == "a record of gateway.core could not be written: TypeError\n"
