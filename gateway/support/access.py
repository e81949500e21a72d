"""The access log: one line for each exchange, made of what is known to be harmless.

It goes past `logging`, whose records are looked through for secrets, which costs more than a cached answer.
Lines are made many at a time, which costs less than making each in the middle of something else (measured).
Everything that is written here is a number, a name of the configuration, a word of a closed set, an exposed
name within its charset or an id within its own, so nothing has to be looked through.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from gateway import config
from gateway.support import tracing
from gateway.support.exchange import Exchange

NAME = "gateway.access"

_FINE = frozenset({"ok", "notification", "session", "cancelled", "preflight", "metadata"})
"""How exchanges end that nobody needs to look into."""
_OF_CALLER = 12
_REMEMBERED = 4096

Write: TypeAlias = Callable[[Exchange, Callable[[Exchange], bytes]], None]
"""Takes an exchange of which a line is to be made, and what makes it."""

_log = logging.getLogger(NAME)
_encode = msgspec.json.Encoder().encode


class AccessLog:
    """Decides which exchanges are worth a line, and writes it in the form set."""

    def __init__(self, settings: config.Log, write: Write) -> None:
        self._wanted = settings.access
        self._slow = settings.slow
        self._write = write
        self._line = _json if settings.format == "json" else _text

    def tell(self, exchange: Exchange) -> None:
        """Write the line of an exchange that has just ended, if one is wanted."""
        wanted = self._wanted
        if wanted == "none" or not _log.isEnabledFor(logging.INFO):
            return
        exchange.ended = time.time()
        exchange.seconds = seconds = time.monotonic() - exchange.began
        if wanted == "problems" and exchange.outcome in _FINE and (exchange.listens or seconds < self._slow):
            return
        self._write(exchange, self._line)


_told: AccessLog | None = None
_worker = 0


def use(access: AccessLog | None) -> None:
    """Write lines there from now on, or none."""
    global _told
    _told = access


def mark(worker: int) -> None:
    """Have every line say which of several workers wrote it."""
    global _worker
    _worker = worker


def tell(exchange: Exchange) -> None:
    """Write the line of an exchange that has just ended, and end its span."""
    exchange.over = True
    if exchange.span is not None:
        tracing.served(exchange)
    if _told is not None:
        _told.tell(exchange)


def _json(exchange: Exchange) -> bytes:
    reuse = exchange.reuse
    line = (
        f'{{"time":"{_time(exchange.ended)}","request":"{exchange.id}","ms":{exchange.seconds * 1000:.3f},'
        f'"bytes":{exchange.sent},'
        f"{_recurring(exchange, _json_words)}"
    )
    if reuse is not None:
        line += f"{reuse.age}}}"
    if exchange.lookups or exchange.calls or exchange.span is not None:
        return line.encode() + _json_rest(exchange)
    return f"{line}}}\n".encode()


def _json_words(exchange: Exchange) -> str:
    words: dict[str, object] = {
        "level": "info",
        "logger": NAME,
        "message": f"{exchange.method or 'request'}: {exchange.outcome}",
        "transport": exchange.transport,
        "endpoint": exchange.endpoint,
        "era": exchange.era,
        "method": exchange.method,
        "name": exchange.name,
        "caller": exchange.caller[:_OF_CALLER],
        "outcome": exchange.outcome,
        "status": exchange.status,
        "worker": _worker,
    }
    known = _encode({name: word for name, word in words.items() if word}).decode()[1:-1]
    if exchange.reuse is None:
        return known
    source, reason = exchange.reuse.source, exchange.reuse.reason
    return f'{known},"cache":{{"result":"{source}","reason":"{reason}","age":'


def _json_rest(exchange: Exchange) -> bytes:
    rest: dict[str, object] = {
        "lookups": exchange.lookups,
        "calls": exchange.calls,
        "more": exchange.unnoted,
        "trace": "" if exchange.span is None else exchange.span.trace_id,
    }
    return b",%b\n" % _encode({name: one for name, one in rest.items() if one})[1:]


def _text(exchange: Exchange) -> bytes:
    reuse = exchange.reuse
    line = (
        f"{_time(exchange.ended)} INFO {NAME}: {_recurring(exchange, _text_words)}"
        f" ms={exchange.seconds * 1000:.3f}"
        f" bytes={exchange.sent} request={exchange.id}"
    )
    if reuse is not None:
        line += f" cache={reuse.source},{reuse.reason},{reuse.age}s"
    for at in exchange.lookups:
        line += f" lookup={at.upstream},{at.method},{at.result},{at.reason},{at.age}s"
    for to in exchange.calls:
        line += f" call={to.upstream},{to.method},{to.outcome},{to.ms:g}ms"
    if exchange.unnoted:
        line += f" more={exchange.unnoted}"
    if exchange.span is not None:
        line += f" trace={exchange.span.trace_id}"
    return f"{line}\n".encode()


def _text_words(exchange: Exchange) -> str:
    what = f"{exchange.endpoint or '-'} {exchange.method or 'request'}"
    words = (
        f" {exchange.name}" if exchange.name else "",
        f": {exchange.outcome}",
        f" {exchange.status}" if exchange.status else "",
        f" transport={exchange.transport}",
        "" if exchange.era is None else f" era={exchange.era}",
        f" worker={_worker}" if _worker else "",
        f" caller={exchange.caller[:_OF_CALLER]}" if exchange.caller else "",
    )
    return what + "".join(words)


_words: dict[tuple[object, ...], str] = {}


def _recurring(exchange: Exchange, make: Callable[[Exchange], str]) -> str:
    """Return what is the same in the lines of many exchanges, made once for all of them."""
    reuse = exchange.reuse
    key = (
        make,
        exchange.transport,
        exchange.endpoint,
        exchange.era,
        exchange.method,
        exchange.name,
        exchange.caller,
        exchange.outcome,
        exchange.status,
        None if reuse is None else (reuse.source, reuse.reason),
    )
    known = _words.get(key)
    if known is None:
        if len(_words) >= _REMEMBERED:
            _words.clear()
        known = _words[key] = make(exchange)
    return known


_second: tuple[int, str] = (0, "")


def _time(now: float) -> str:
    """Return a moment; all of it but the milliseconds is made once a second."""
    global _second
    whole = int(now)
    if _second[0] != whole:
        _second = (whole, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)))
    return f"{_second[1]}.{int((now - whole) * 1000):03d}Z"
