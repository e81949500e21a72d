"""When a failed attempt is made again."""

import pytest

from gateway.protocol.call import Reason
from gateway.upstream.failures import Failed
from gateway.upstream.retrying import Pace, retry_after, retry_pause

UNSENT = Failed("alpha", Reason.CONNECT, unsent=True, lost=True)
CUT = Failed("alpha", Reason.CONNECT, transient=True)
BROKEN = Failed("alpha", Reason.PROTOCOL)


def pause(failure, method="tools/list", attempt=1, heard=False, remaining=60.0):
    return retry_pause(failure, method, attempt=attempt, heard=heard, remaining=remaining, random=lambda: 0.0)


@pytest.mark.parametrize(
    "method", ["server/discover", "tools/list", "resources/read", "prompts/get", "completion/complete"]
)
def test_what_may_run_twice_is_asked_again(method):
    """Discover, lists, reads, prompts and completion are retried after a cut (U-27)."""
    assert pause(CUT, method) == 0.1
    assert pause(CUT, method, attempt=2) == 0.4
    assert pause(CUT, method, attempt=3) is None


@pytest.mark.parametrize("method", ["tools/call", "vendor/act"])
def test_a_tool_call_is_repeated_only_when_nothing_was_sent(method):
    """A dropped stream never replays a call; neither does an unknown method (U-27)."""
    assert pause(CUT, method) is None
    assert pause(UNSENT, method) == 0.1


def test_what_will_not_change_is_final():
    """A broken answer, a caller that heard progress, no time left."""
    assert pause(BROKEN) is None
    assert pause(CUT, heard=True) is None
    assert pause(CUT, remaining=0.05) is None


def test_retry_after_is_honoured_within_reason():
    """Up to ten seconds we wait as told; beyond that the failure stands."""
    busy = Failed("alpha", Reason.STATUS, transient=True, status=503, retry_after=2.0)
    assert pause(busy) == 2.0
    assert pause(busy, remaining=1.0) is None
    assert pause(Failed("alpha", Reason.STATUS, transient=True, retry_after=60.0)) is None


def test_retry_after_is_seconds_or_a_date():
    """Anything else is as if it were absent."""
    assert retry_after("3", 0.0) == 3.0
    assert retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 50.0) == 10.0
    assert retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 90.0) == 0.0
    for text in (None, "", "soon", "-1", "1.5", "²", "9" * 400):
        assert retry_after(text, 0.0) is None or retry_after(text, 0.0) > 10
    for text in (
        "Mon, 01 Jan 99999999999 00:00:00 GMT",
        "Mon, 01 Jan 1970 99999999999999999999:00:00 GMT",
        "Mon, 01 Jan 2020 00:00:00 -9999999999999999999999",
        "Mon, 01 Jan 2020 00:00:00 +9999999",
        f"Mon, 01 Jan {'9' * 5000} 00:00:00 GMT",
        "Mon, 99 Jan 2020 00:00:00 GMT",
    ):
        assert retry_after(text, 0.0) is None


def test_probes_slow_down_to_a_cap_and_spread():
    """Doubling, capped, shortened by up to a half so that replicas differ."""
    pace = Pace(first=0.5, longest=30.0)
    assert [pace.pause(n, 0.0) for n in (1, 2, 3, 10, 10_000)] == [0.5, 1.0, 2.0, 30.0, 30.0]
    assert pace.pause(1, 1.0) == 0.25
