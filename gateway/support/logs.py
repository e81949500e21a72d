"""Writes the log: one line per record to stderr, as text or JSON, with secrets taken out on the way.

Two filters do it. One sits on the handler and blanks what looks like a credential in any message or
traceback. The other sits on aiohttp's own loggers: their tracebacks quote header bytes and bodies, the
caller's token among them, so only the kind of error is kept (B42).
"""

import logging
import re
import sys
import time
import traceback
from collections.abc import Iterable
from typing import TextIO

import msgspec

from gateway import config

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
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_SECRETS = (
    # Authorization: Bearer x, 'authorization': 'Basic x', and the same as a (name, value) pair of bytes
    re.compile(r"(?i)(authorization\b[\"']?\s*[:=,]\s*b?[\"']?)(?:[a-z0-9._~-]+ +)?[^\s\"',;)]+"),
    re.compile(r"(?i)\b((?:bearer|basic|dpop) +)[a-z0-9._~+/=-]{4,}"),
    re.compile(
        r"(?i)\b((?:[a-z0-9]+[_-])*(?:token|secret|password|api[_-]?key)[\"']?\s*[:=]\s*b?[\"']?)[^\s\"',;&)]+"
    ),
)
_URL_SECRETS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)([^\s/?#\"'@]*@)?([^\s?#\"'<>]*)(\?[^\s\"'<>#]*)?")


def configure(settings: config.Log, *, stream: TextIO | None = None, secrets: Iterable[str] = ()) -> None:
    """Send every record to stderr (or `stream`), once, with the level, the form and the filters set.

    `secrets` are values known to be secret, which are hidden wherever they stand.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines(secrets) if settings.format == "json" else TextLines(secrets))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old.formatter, _Lines)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(_LEVELS[settings.level])
    quiet_aiohttp()


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
    # URLs first: `Bearer https://u:p@h` would lose its scheme, and what follows be no URL any more.
    text = _URL_SECRETS.sub(
        lambda url: url.group(1) + url.group(3) + ("?" + HIDDEN if url.group(4) else ""), text
    )
    for pattern in _SECRETS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


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


class _Lines(logging.Formatter):
    """What both forms share: a record as redacted message, traceback and extra members."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._secrets = tuple(secret for secret in secrets if secret)

    def _message(self, record: logging.LogRecord) -> str:
        return redact(record.getMessage(), self._secrets)

    def _trace(self, record: logging.LogRecord) -> str | None:
        if not record.exc_info or record.exc_info[0] is None:
            return None
        return redact("".join(traceback.format_exception(*record.exc_info)).rstrip(), self._secrets)

    def _extra(self, record: logging.LogRecord) -> dict[str, object]:
        return {
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
