"""Writes the log: one line per record to stderr, as text or JSON, with secrets taken out on the way.

What is known to be secret is blanked wherever it stands: the secrets of the configuration in every spelling,
and those of the request that is being served (`hide`). What looks like a credential is blanked as well. Of
records of other packages only the constant part of the message and the kinds of exceptions are kept, with the
places in the code where they came up: their texts quote header bytes, bodies and arguments (B42).
"""

import asyncio
import base64
import logging
import os
import re
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import TextIO
from urllib.parse import quote

import msgspec
from multidict import MultiMapping

from gateway import config
from gateway.support import access, exchange
from gateway.support.access import AccessLog
from gateway.support.exchange import Exchange

HIDDEN = "***"

_AIOHTTP = (
    "aiohttp.access",
    "aiohttp.client",
    "aiohttp.internal",
    "aiohttp.server",
    "aiohttp.web",
    "aiohttp.websocket",
)
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_TOGETHER = 0.05
"""Seconds for which lines of the access log wait for each other, and so for how long they may be missing."""
_ATOMIC = 4096
"""Bytes that a pipe takes as one piece, which no other process that writes to it can cut (PIPE_BUF)."""
_MANY = 1000
"""Exchanges that wait for their lines to be made."""
_MOST_WAITING = 2**20
"""Bytes of the access log that wait for whoever reads it; what comes then is dropped."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
# Each of these looks at a text as many times as it is long: no word of it is read from each of its places.
_SECRETS = (
    # Authorization: Bearer x, 'authorization': 'Basic x', and the same as a (name, value) pair of bytes
    re.compile(r"(?i)(authorization\b[\"']?\s*[:=,]\s*b?[\"']?)(?:[a-z0-9._~-]+ +)?[^\s\"',;)]+"),
    re.compile(r"(?i)\b((?:bearer|basic|dpop) +)[a-z0-9._~+/=-]{4,}"),
    re.compile(r"(?i)((?:cookie|session-id)[\"']?\s*[:=,]\s*b?[\"']?)[^\s\"',)]+"),
    re.compile(r"()\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,2}"),  # a JWT, or the beginning of one
    re.compile(
        r"(?i)((?<![a-z0-9])(?:token|secret|password|api[_-]?key)[\"']?\s*[:=]\s*b?[\"']?)[^\s\"',;&)]+"
    ),
)
_PUT_IN = re.compile(r"%(?:\([^)]*\))?[-#0 +]*[\d*]*(?:\.[\d*]+)?[A-Za-z%]")
"""Where a message has room for its arguments."""
_WARNING = re.compile(r"[^\n]*?:\d+: \w+")
"""Where a warning came up and of which kind it is; what it says may quote anything."""
_URL_SECRETS = re.compile(r"(?i)([a-z0-9+.-]{0,20}://)([^\s/?#\"'@]*@)?([^\s?#\"'<>]*)(\?[^\s\"'<>#]*)?")


_OURS = "gateway"
_levelled: frozenset[str] = frozenset()
"""The loggers that have a level of their own."""
_LEAST = 12
"""Characters of a request's secret that are hidden alone, too: some text may have been cut behind them."""
_hidden: ContextVar["tuple[MultiMapping[str], Sequence[str]] | None"] = ContextVar("hidden", default=None)


def hide(headers: MultiMapping[str], names: Sequence[str]) -> None:
    """Leave the values of these headers out of whatever the task that calls this, or one it starts, logs.

    Of `Bearer x` the x alone is left out, too. They are looked up when there is something to log.
    """
    _hidden.set((headers, names))


def configure(settings: config.Log, *, stream: TextIO | None = None, secrets: Iterable[str] = ()) -> None:
    """Send every record to stderr (or `stream`), once, with the levels, the form and the filters set.

    `secrets` are values known to be secret, which are hidden wherever they stand.
    """
    global _levelled
    handler = _Handler(stream if stream is not None else sys.stderr)
    known = [spelling for secret in secrets for spelling in spellings(secret)]
    handler.setFormatter(JsonLines(known) if settings.format == "json" else TextLines(known))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old.formatter, _Lines)]:
        with suppress(OSError, ValueError):  # its stream may be gone
            old.flush()
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(_LEVELS[settings.level])
    for name in _levelled - settings.levels.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in settings.levels.items():
        logging.getLogger(name).setLevel(_LEVELS[level])
    _levelled = frozenset(settings.levels)
    access.use(AccessLog(settings, handler.later))
    quiet_aiohttp()


def flush() -> None:
    """Write what waits to be written; for who is about to end the process without further ado."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def guard_last_resort(secrets: Iterable[str]) -> None:
    """Leave secrets out of what Python prints itself where nobody set up a log: bare lines on stderr."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(BareLines(spelling for one in secrets for spelling in spellings(one)))


def take_the_rest() -> None:
    """Make records of what Python itself would print: warnings, and exceptions that nobody catches."""
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_a_thread
    sys.unraisablehook = _unraisable


def spellings(secret: str) -> Iterator[str]:
    """Yield how a secret may be written: as it is, in a URL, in hex, and within base64 wherever it begins.

    A short one, which everything may contain, has but one.
    """
    yield secret
    if len(secret) < config.MASKED_FROM:
        return
    text = secret.encode()
    yield from {quote(secret, safe=""), quote(secret)} - {secret}
    yield text.hex()
    for before in range(3):
        # What depends on its neighbours is left out: the signs that hold their bits as well.
        coded = base64.b64encode(b"\0" * before + text).decode().rstrip("=")
        sure = coded[(before * 8 + 5) // 6 : (before + len(text)) * 8 // 6]
        yield from {sure, sure.replace("+", "-").replace("/", "_")}


def quiet_aiohttp() -> None:
    """Keep header bytes and bodies out of aiohttp's own log, whoever else listens to it."""
    for name in _AIOHTTP:
        logger = logging.getLogger(name)
        if not any(isinstance(existing, _KindOnly) for existing in logger.filters):
            logger.addFilter(_KindOnly())


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text without credentials, and its URLs without userinfo and query.

    A short secret is hidden only where it stands alone: words with holes in them would tell it.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= config.MASKED_FROM:
            text = text.replace(secret, HIDDEN)
        elif secret:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
    for secret in _secrets_of_the_request():
        if len(secret) >= config.MASKED_FROM and secret[:_LEAST] in text:
            begun = rf"{re.escape(secret[:_LEAST])}[^\s\"',;)]*"
            text = re.sub(begun, HIDDEN, text.replace(secret, HIDDEN))
    # URLs first: `Bearer https://u:p@h` would lose its scheme, and what follows be no URL any more.
    text = _URL_SECRETS.sub(
        lambda url: url.group(1) + url.group(3) + ("?" + HIDDEN if url.group(4) else ""), text
    )
    for pattern in _SECRETS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def _secrets_of_the_request() -> Iterator[str]:
    hidden = _hidden.get()
    if hidden is None:
        return
    headers, names = hidden
    for name in names:
        for credential in headers.getall(name, ()):
            yield credential
            yield credential.rpartition(" ")[2]


class _KindOnly(logging.Filter):
    """Reduces an exception to the name of its class, and its message to a constant text."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        arguments = record.args if isinstance(record.args, tuple) else ()
        kinds = [type(it).__name__ for it in (error, *arguments) if isinstance(it, BaseException)]
        text = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        record.msg = ": ".join([text.split("%", 1)[0].strip(), *kinds])
        record.args = None
        record.exc_info = None
        record.exc_text = None
        return True


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines, and of a record that cannot be written says no more than whose it was.

    Lines of the access log are gathered for a moment. Nobody waits for them: where the log is not read, as
    with a client that starts the gateway and leaves its stderr alone, they are dropped and counted.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._guard = threading.RLock()
        self._ended: list[tuple[Exchange, Callable[[Exchange], bytes]]] = []
        self._waiting: list[bytes] = []
        self._size = 0
        self._lost = 0
        self._due_in: asyncio.AbstractEventLoop | None = None
        """The loop that comes back to what waits."""
        self._place = _place_of(stream)

    def later(self, ended: Exchange, line: Callable[[Exchange], bytes]) -> None:
        """Write the line of an exchange soon."""
        with self._guard:
            self._ended.append((ended, line))
            count = len(self._ended)
            if count == 1:
                self._soon()
            elif count >= _MANY:
                self._make()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, behind what happened before it."""
        with self._guard:
            self._write_waiting()
        super().emit(record)

    def flush(self) -> None:
        """Write what waits."""
        with self._guard:
            self._write_waiting()
        super().flush()

    def handleError(self, record: logging.LogRecord) -> None:
        """Say that a record is missing; the one of the standard library would print its arguments."""
        kind = getattr(sys.exc_info()[0], "__name__", "")
        try:
            self.stream.write(f"a record of {record.name} could not be written: {kind}\n")
        except (OSError, ValueError):  # the stream itself is gone
            return

    def _soon(self) -> None:
        """Come back to it in a moment, unless that is due already."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nothing runs that could come back to it
            self._write_waiting()
            return
        if self._due_in is not loop:
            self._due_in = loop
            loop.call_later(_TOGETHER, self._due)

    def _due(self) -> None:
        with self._guard:
            self._due_in = None
            self._write_waiting()
            if self._waiting:
                self._soon()

    def _make(self) -> None:
        """Make lines of what ended; beyond the bound they are only counted."""
        ended, self._ended = self._ended, []
        for one, line in ended:
            if self._size >= _MOST_WAITING:
                self._lost += 1
                continue
            made = line(one)
            self._waiting.append(made)
            self._size += len(made)

    def _write_waiting(self) -> None:
        self._make()
        if not self._waiting:
            return
        lines, self._waiting, self._size = self._waiting, [], 0
        pieces = _pieces(lines)
        while pieces and self._put(pieces[-1]):
            pieces.pop()
        self._waiting = pieces[::-1]
        self._size = sum(map(len, pieces))
        if self._lost and not self._waiting:
            lost, self._lost = self._lost, 0
            logging.getLogger(access.NAME).warning("%d line(s) are missing: nobody read the log", lost)

    def _put(self, piece: bytes) -> bool:
        """Whether a piece could be written without waiting for anybody, or never will be."""
        try:
            if self._place is None:
                self.stream.write(piece.decode())
                return True
            if not self._place.poll(0):
                return False
            os.write(self.stream.fileno(), piece)
        except BlockingIOError:
            return False
        except (OSError, ValueError):  # the stream is gone
            return True
        return True


def _place_of(stream: TextIO) -> "select.poll | None":
    """Return what tells whether the file behind a stream takes more, None where there is no such file."""
    if not hasattr(select, "poll"):  # on Windows
        return None
    try:
        place = select.poll()
        place.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError):
        return None
    return place


def _pieces(lines: Sequence[bytes]) -> list[bytes]:
    """Return the lines in pieces that are written whole or not at all, the last one first."""
    pieces: list[list[bytes]] = []
    size = _ATOMIC
    for line in lines:
        if size + len(line) > _ATOMIC:
            pieces.append([])
            size = 0
        pieces[-1].append(line)
        size += len(line)
    return [b"".join(piece) for piece in reversed(pieces)]


class _Lines(logging.Formatter):
    """What both forms share: a record as redacted message, traceback and extra members."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._secrets = tuple(secret for secret in secrets if secret)

    def _message(self, record: logging.LogRecord) -> str:
        if _is_ours(record):
            return redact(record.getMessage(), self._secrets)
        if warning := _WARNING.match(record.getMessage()) if record.name == "py.warnings" else None:
            return warning[0]
        text = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        constant = text.partition("\n")[0]
        return redact(_PUT_IN.sub("…", constant) if record.args else constant, self._secrets)

    def _trace(self, record: logging.LogRecord) -> str | None:
        if not record.exc_info or record.exc_info[1] is None:
            return None
        error = record.exc_info[1]
        lines = traceback.format_exception(error) if _is_ours(record) else list(_places(error))
        return redact("".join(lines).rstrip(), self._secrets)

    def _extra(self, record: logging.LogRecord) -> dict[str, object]:
        of = exchange.current()
        return ({} if of is None else {"request": of.id}) | {
            name: redact(value, self._secrets) if isinstance(value, str) else value
            for name, value in vars(record).items()
            if name not in _STANDARD and (value is None or isinstance(value, str | int | float | bool))
        }


class TextLines(_Lines):
    """`2026-11-30T02:51:06.123Z INFO gateway.app: message key=value`; only a traceback takes more lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        extra = "".join(f" {name}={value}" for name, value in self._extra(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {self._message(record)}{extra}"
        line = _CONTROL.sub(_escape, line)  # a client's text must not begin a line of its own
        trace = self._trace(record)
        return line if trace is None else f"{line}\n{trace}"


class BareLines(_Lines):
    """The message alone, as commands print it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's message, and its traceback if it has one."""
        trace = self._trace(record)
        return self._message(record) if trace is None else f"{self._message(record)}\n{trace}"


class JsonLines(_Lines):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        members: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._message(record),
            **self._extra(record),
        }
        trace = self._trace(record)
        if trace is not None:
            members["trace"] = trace
        return msgspec.json.encode(members).decode()


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _escape(control: re.Match[str]) -> str:
    return control.group().encode("unicode_escape").decode()


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name == _OURS or record.name.startswith(f"{_OURS}.")


def _places(error: BaseException) -> Iterator[str]:
    """Yield the kinds of an exception and of what led to it, each with where it came up, without any text."""
    told: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in told:
        told.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    for one in reversed(told):
        yield from traceback.format_tb(one.__traceback__)
        yield f"{type(one).__module__}.{type(one).__qualname__}\n"


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger(_OURS).critical("nobody caught this", exc_info=(kind, error, trace))


def _uncaught_in_a_thread(came: "threading.ExceptHookArgs") -> None:
    if came.exc_value is not None and not issubclass(came.exc_type, SystemExit):
        _uncaught(came.exc_type, came.exc_value, came.exc_traceback)


def _unraisable(came: "sys.UnraisableHookArgs") -> None:
    error = came.exc_value
    logging.getLogger("python").error(
        "an exception where none can be raised", exc_info=None if error is None else error
    )
