"""What a probe's outcome says about an upstream."""

import pytest

from gateway.protocol.call import Challenge, Reason, Reply
from gateway.protocol.jsonrpc import McpError, encode
from gateway.upstream.failures import Failed, UpstreamError
from gateway.upstream.probing import judge


def discover(*versions, **members):
    return Reply(encode({"supportedVersions": list(versions), "capabilities": {"tools": {}}, **members}))


def error(code, http, data=None):
    return UpstreamError(McpError(code, "x", None if data is None else encode(data)), http)


def status(code):
    return Failed("alpha", Reason.STATUS, f"HTTP {code}", status=code)


def era(outcome, forced=False):
    verdict = judge(outcome, forced=forced)
    return verdict.era, verdict.reason


def test_a_mutual_version_is_modern():
    """Future and legacy versions beside it do not matter (U-16)."""
    verdict = judge(discover("2027-01-01", "2026-07-28", "2025-11-25", instructions="hi"), forced=False)
    assert (verdict.era, verdict.version, verdict.reason) == ("modern", "2026-07-28", None)
    assert verdict.discovered.instructions == "hi"
    assert verdict.discovered.capabilities == {"tools": b"{}"}


def test_nulls_of_optional_members_are_absent():
    """Older rmcp writes null (E-26)."""
    verdict = judge(discover("2026-07-28", instructions=None, capabilities=None), forced=False)
    assert (verdict.discovered.instructions, verdict.discovered.capabilities) == (None, {})


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (discover("2025-11-25"), ("legacy", Reason.ERA)),
        (discover("2099-01-01"), ("modern", Reason.ERA)),
        (Reply(b"{}"), ("legacy", Reason.ERA)),
        (Reply(b'{"resultType":"complete"}'), ("legacy", Reason.ERA)),
        (Reply(b'{"supportedVersions":1}'), (None, Reason.PROTOCOL)),
        (error(-32022, 400, {"supported": ["2025-06-18"], "requested": "x"}), ("legacy", Reason.ERA)),
        (error(-32022, 400, {"supported": ["2099-01-01"]}), ("modern", Reason.ERA)),
        (error(-32022, 400), ("modern", Reason.ERA)),
        (error(-32020, 400), ("modern", None)),
        (error(-32021, 400), ("modern", None)),
        (error(-32601, 404), ("legacy", Reason.ERA)),
        (error(-32601, 200), ("legacy", Reason.ERA)),
        (error(-32600, 400), ("legacy", Reason.ERA)),
        (error(-32603, 500), (None, Reason.STATUS)),
        (status(400), ("legacy", Reason.ERA)),
        (status(404), ("legacy", Reason.ERA)),
        (status(405), ("legacy", Reason.ERA)),
        *[((status(code)), (None, Reason.STATUS)) for code in (302, 407, 408, 425, 429, 500, 502, 503, 504)],
        (Failed("alpha", Reason.CREDENTIALS, status=401), (None, Reason.CREDENTIALS)),
        (Failed("alpha", Reason.CONNECT, lost=True), (None, Reason.CONNECT)),
        (Challenge("alpha", 401, None, None), ("modern", None)),
    ],
)
def test_only_answers_about_the_protocol_tell_the_era(outcome, expected):
    """401, 403, 5xx and silence say nothing; -32601 to discover is legacy even at 404 (U-16, U-17)."""
    assert era(outcome) == expected


def test_era_modern_in_the_configuration_needs_no_discover():
    """Whoever answers at all is taken at the operator's word."""
    assert era(error(-32601, 404), forced=True) == ("modern", None)
    assert era(Reply(b"{}"), forced=True) == ("modern", Reason.ERA)
    assert era(status(404), forced=True) == (None, Reason.STATUS)


def test_a_legacy_upstream_is_told_of_clearly():
    """The operator reads what the upstream speaks."""
    verdict = judge(discover("2025-11-25", "2025-06-18"), forced=False)
    assert "2025-11-25, 2025-06-18" in verdict.detail
