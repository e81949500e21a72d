"""Writes the log: one line per record to stderr, as text or JSON, with secrets taken out on the way.

What is known to be secret is blanked wherever it stands: the secrets of the configuration in every spelling,
and those of the request that is being served (`hide`). What looks like a credential is blanked as well. Of
records of other packages only the constant part of the message and the kinds of exceptions are kept, with the
places in the code where they came up: their texts quote header bytes, bodies and arguments (B42).
"""

import asyncio
import base64
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from gateway.support.sink import Sink

log = logging.getLogger(__name__)

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
_MANY = 1000
"""Exchanges that wait for their lines to be made."""
_MOST_WAITING = 2**20
"""Bytes that wait for whoever reads the log; lines of the access log that come then are dropped."""
_FOR_RECORDS = 2**18
"""Bytes beyond these that are left to records, which say more than one line of many."""
_PATIENCE = 1.0
"""Seconds that the end of the process waits for whoever reads what is left."""
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
    stream = stream if stream is not None else sys.stderr
    root = logging.getLogger()
    before = [old for old in root.handlers if isinstance(old, _Handler)]
    sinks = [old.sink for old in before if old.sink.stream is stream]  # what waits there keeps its turn
    handler = _Handler(sinks[0] if sinks else Sink(stream))
    known = [spelling for secret in secrets for spelling in spellings(secret)]
    handler.setFormatter(JsonLines(known) if settings.format == "json" else TextLines(known))
    for old in before:
        old.flush()
        root.removeHandler(old)
        if old.sink is not handler.sink:
            old.sink.close()
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
    """Write what waits to be written and has room."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def finish() -> None:
    """Write what waits to be written; for who is about to end the process without further ado."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler):
            handler.finish()


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


class _Handler(logging.Handler):
    """Writes lines, and of a record that cannot be written says no more than whose it was.

    Nobody waits for whoever reads them: where that is nobody, as with a client that starts the gateway and
    leaves its stderr alone, they are dropped beyond a bound, and counted. Lines of the access log, which are
    gathered for a moment, are dropped first.
    """

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self.sink = sink
        self._ended: list[tuple[Exchange, Callable[[Exchange], bytes]]] = []
        self._due_in: asyncio.AbstractEventLoop | None = None
        """The loop that comes back to what waits."""

    def later(self, ended: Exchange, line: Callable[[Exchange], bytes]) -> None:
        """Write the line of an exchange soon."""
        with self.sink.guard:
            self._ended.append((ended, line))
            count = len(self._ended)
        if count == 1:
            self._soon()
        elif count >= _MANY:
            self._make()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, behind what happened before it."""
        self._make()
        try:
            line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
        except Exception:  # as the standard library has it
            self.handleError(record)
        else:
            self._add(line)

    def flush(self) -> None:
        """Write what there is room for."""
        self._make()
        self._pour()

    def finish(self) -> None:
        """Write what waits, but wait for its reader for no more than a moment."""
        self.flush()
        self.sink.finish(_PATIENCE)

    def close(self) -> None:
        """Write what waits at the very end."""
        self.finish()
        super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        """Say that a record is missing; the one of the standard library would print its arguments."""
        kind = getattr(sys.exc_info()[0], "__name__", "")
        self._add(f"a record of {record.name} could not be written: {kind}\n".encode())

    def _add(self, line: bytes) -> None:
        self.sink.add(line, _MOST_WAITING + _FOR_RECORDS)
        if not self._pour():
            self._soon()

    def _soon(self) -> None:
        """Come back to it in a moment, unless that is due already."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nothing runs that could come back to it: whatever is written next does
            self.flush()
            return
        if self._due_in is not loop:
            self._due_in = loop
            loop.call_later(_TOGETHER, self._due)

    def _due(self) -> None:
        self._due_in = None
        self._make()
        if not self._pour():
            self._soon()

    def _make(self) -> None:
        """Make lines of what ended; beyond the bound they are only counted."""
        with self.sink.guard:
            ended, self._ended = self._ended, []
            for one, line in ended:
                if self.sink.size >= _MOST_WAITING:
                    self.sink.lose()
                else:
                    self.sink.add(line(one), _MOST_WAITING)

    def _pour(self) -> bool:
        poured = self.sink.pour()
        if poured and (lost := self.sink.lost()):  # with no lock held but, at most, the one of this handler
            log.warning("%d line(s) are missing: nobody read the log", lost)
        return poured


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
