"""Tells from what became of the first exchanges with an upstream which kind of failure it is. No I/O."""

import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from gateway.protocol.call import Reason

ODD_CLOCK = 30.0
"""Seconds by which clocks may differ: as far as `leeway` lets them, where nothing else is written."""
_EXPIRED = frozenset({9, 10})
_UNTRUSTED = frozenset({18, 19, 20, 21})
_MISNAMED = frozenset({62, 63, 64})
_TLS = (
    ("WRONG_VERSION_NUMBER", "no-tls"),
    ("HTTP_REQUEST", "no-tls"),
    ("CERTIFICATE_REQUIRED", "client-certificate"),
    ("HANDSHAKE_FAILURE", "client-certificate"),
    ("BAD_CERTIFICATE", "client-certificate"),
    ("CERTIFICATE_UNKNOWN", "client-certificate"),
    ("CERTIFICATE_EXPIRED", "client-certificate"),
    ("CERTIFICATE_REVOKED", "client-certificate"),
    ("ALERT_UNKNOWN_CA", "client-certificate"),
)
"""How the reasons of openssl end, and what that is."""

_SIGNS: Sequence[tuple[Reason, str, str]] = (
    (Reason.CONNECT, "the proxy answered", "proxy"),
    (Reason.CONNECT, "TLS: it speaks no TLS", "no-tls"),
    (Reason.CONNECT, "client certificate", "client-certificate"),
    (Reason.CONNECT, "TLS: ", "tls"),
    (Reason.CONNECT, "no connection within", "unreachable"),
    (Reason.CONNECT, "connection lost", "cut"),
    (Reason.CONNECT, "", "refused"),
    (Reason.TIMEOUT, "", "silent"),
    (Reason.STATUS, "redirect", "redirected"),
    (Reason.STATUS, "HTTP 429", "too-many"),
    (Reason.STATUS, "HTTP 5", "server-error"),
    (Reason.STATUS, "HTTP 404", "no-such-path"),
    (Reason.STATUS, "HTTP 405", "no-such-path"),
    (Reason.STATUS, "HTTP 410", "no-such-path"),
    (Reason.STATUS, "text/html", "web-page"),
    (Reason.STATUS, "", "status"),
    (Reason.PROTOCOL, "text/html", "web-page"),
    (Reason.PROTOCOL, "unsupported encoding", "encoding"),
    (Reason.PROTOCOL, "not HTTP", "not-http"),
    (Reason.PROTOCOL, "", "not-mcp"),
    (Reason.TOO_LARGE, "", "too-large"),
    (Reason.ERA, "HTTP 404", "no-such-path"),
    (Reason.ERA, "HTTP 405", "no-such-path"),
    (Reason.ERA, "settled on no version", "not-mcp"),
    (Reason.ERA, "", "no-common-version"),
)
"""Of the reasons, what their details hold, and the kind that is then found: the first that fits."""
_SIGNS_OF_PROGRAMS: Sequence[tuple[Reason, str, str]] = (
    (Reason.CONNECT, "no program", "no-program"),
    (Reason.CONNECT, "exit code 126", "not-started"),
    (Reason.CONNECT, "exit code 127", "not-started"),
    (Reason.CONNECT, "ended", "ended"),
    (Reason.CONNECT, "", "not-started"),
    (Reason.TIMEOUT, "", "silent-program"),
    (Reason.PROTOCOL, "", "silent-program"),
    (Reason.TOO_LARGE, "", "too-large"),
    (Reason.ERA, "", "no-common-version"),
)


@dataclass(slots=True)
class Met:
    """What was met on the way to a server, apart from its answers; seconds each step took."""

    proxied: bool = False
    resolved: float | None = None
    connected: float | None = None
    secured: float | None = None
    answered: float | None = None
    """Until the head of an answer was there."""
    failure: str | None = None
    """The kind of finding that the way ended with."""
    certificate_ends: float | None = None
    clock: float | None = None
    """How far its clock is ahead of ours."""


def kind_of_failure(reason: Reason, detail: str, met: Met, *, program: bool, era: str) -> str:
    """Return the kind of finding that an upstream which is down is; `era` is what is configured."""
    if program:
        return _first(_SIGNS_OF_PROGRAMS, reason, detail)
    unmet = reason is Reason.TIMEOUT and met.connected is None
    if met.failure is not None and (reason is Reason.CONNECT or unmet):
        return met.failure
    kind = _first(_SIGNS, reason, detail)
    if reason is Reason.ERA and era != "auto" and kind == "no-common-version":
        return "wrong-era"
    return kind


def kind_of_tls(error: ssl.SSLError) -> str:
    """Return the kind of finding that a handshake which failed is."""
    if isinstance(error, ssl.SSLCertVerificationError):
        codes = (
            (_EXPIRED, "certificate-expired"),
            (_UNTRUSTED, "certificate-untrusted"),
            (_MISNAMED, "certificate-name"),
        )
        return next((kind for some, kind in codes if error.verify_code in some), "tls")
    reason = error.reason or ""
    return next((kind for end, kind in _TLS if reason.endswith(end)), "tls")


def clock_of(head: bytes, asked_at: float, answered_at: float) -> float | None:
    """Return how far the clock that an answer was dated by is ahead of ours; None where nothing tells.

    A date has whole seconds, and was written at some moment between question and answer.
    """
    fields = dict(re.findall(rb"(?m)^(date|age): *([^\r\n]*)", head.lower()))
    if b"date" not in fields or b"age" in fields:  # of an answer out of a cache it is an old one
        return None
    try:
        dated = parsedate_to_datetime(fields[b"date"].decode("latin-1")).timestamp()
    except ValueError:
        return None
    if dated > answered_at:
        return dated - answered_at
    return min(0.0, dated + 1.0 - asked_at)


def _first(signs: Sequence[tuple[Reason, str, str]], reason: Reason, detail: str) -> str:
    return next((kind for wanted, sign, kind in signs if wanted is reason and sign in detail), "status")
