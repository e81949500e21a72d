"""What a failure is, from its words, its exception, or a date."""

import ssl

import pytest

from gateway.doctor.diagnosis import Met, clock_of, kind_of_failure, kind_of_tls
from gateway.doctor.kinds import KINDS
from gateway.protocol.call import Reason

DATE = b"HTTP/1.1 204 No Content\r\nDate: Thu, 01 Jan 1970 00:16:40 GMT\r\n\r\n"
"""Dated 1000 seconds after the epoch, or within the second that begins there."""


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("WRONG_VERSION_NUMBER", "no-tls"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "client-certificate"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "client-certificate"),
        ("TLSV1_ALERT_UNKNOWN_CA", "client-certificate"),
        ("TLSV1_UNRECOGNIZED_NAME", "tls"),
        ("", "tls"),
    ],
)
def test_an_alert_is_read_by_how_its_name_ends(reason: str, kind: str) -> None:
    """How it begins differs from version to version of openssl."""
    assert kind_of_tls(alert(reason)) == kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (9, "certificate-expired"),
        (10, "certificate-expired"),
        (19, "certificate-untrusted"),
        (20, "certificate-untrusted"),
        (62, "certificate-name"),
        (64, "certificate-name"),
        (23, "tls"),
    ],
)
def test_a_certificate_that_will_not_do_is_told_by_the_check(code: int, kind: str) -> None:
    """As openssl numbers its checks; 23 is a revoked one."""
    error = ssl.SSLCertVerificationError(1, "verify failed")
    error.verify_code = code
    assert kind_of_tls(error) == kind


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("program", [True, False])
def test_every_failure_has_a_kind(reason: Reason, program: bool) -> None:
    """Whatever its details say."""
    for detail in ("", "HTTP 500", "text/html", "exit code 1"):
        assert kind_of_failure(reason, detail, Met(), program=program, era="auto") in KINDS


def test_the_way_says_more_than_the_failure_where_it_ended_before_an_answer() -> None:
    """A name that is not known is a failed connection, too; a timeout is one only where there is none."""
    lost = Met(failure="unknown-host")
    assert kind_of_failure(Reason.CONNECT, "no address", lost, program=False, era="auto") == "unknown-host"
    far = Met(resolved=0.1, failure="unreachable")
    assert kind_of_failure(Reason.TIMEOUT, "", far, program=False, era="auto") == "unreachable"
    mute = Met(resolved=0.1, connected=0.1, failure="cut")
    assert kind_of_failure(Reason.TIMEOUT, "", mute, program=False, era="auto") == "silent"
    assert kind_of_failure(Reason.STATUS, "HTTP 502", lost, program=False, era="auto") == "server-error"


@pytest.mark.parametrize(
    ("head", "asked", "answered", "clock"),
    [
        (DATE, 1000.0, 1000.5, 0.0),
        (DATE, 1000.9, 1001.2, 0.0),  # within its second
        (DATE, 990.0, 991.0, 9.0),
        (DATE, 1040.0, 1041.0, -39.0),
        (DATE.replace(b"Date", b"DATE"), 990.0, 991.0, 9.0),
        (DATE.replace(b"\r\n\r\n", b"\r\nAge: 500\r\n\r\n"), 990.0, 991.0, None),
        (DATE.replace(b"Jan", b"Foo"), 990.0, 991.0, None),
        (b"HTTP/1.1 200 OK\r\n\r\n", 990.0, 991.0, None),
    ],
)
def test_a_clock_is_read_off_an_answer(
    head: bytes, asked: float, answered: float, clock: float | None
) -> None:
    """No further off than it is for certain; an answer out of a cache is dated long ago."""
    found = clock_of(head, asked, answered)
    assert found == (None if clock is None else pytest.approx(clock))
