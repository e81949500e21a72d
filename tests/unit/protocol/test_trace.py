"""What of trace context counts, and which baggage goes on (E-25)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.trace import baggage, context, texts, upward

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({"traceparent": PARENT}, {"traceparent": PARENT}),
        ({"traceparent": PARENT, "tracestate": "a=1"}, {"traceparent": PARENT, "tracestate": "a=1"}),
        ({"traceparent": PARENT, "tracestate": "a\n"}, {"traceparent": PARENT}),
        ({"traceparent": PARENT, "tracestate": ""}, {"traceparent": PARENT}),
        ({"tracestate": "a=1"}, {}),
        ({"traceparent": f"{PARENT}\n"}, {}),
        ({"traceparent": PARENT.upper()}, {}),
        ({"traceparent": f"ff{PARENT[2:]}"}, {}),
        ({"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01"}, {}),
        ({"traceparent": f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01"}, {}),
    ],
)
def test_only_well_formed_context_counts(given: dict[str, str], counts: dict[str, str]) -> None:
    """What is malformed is none."""
    assert context(given) == counts


def test_what_is_no_text_is_no_context() -> None:
    """A client may write anything into `_meta`."""
    assert texts({"traceparent": b"1", "tracestate": b'"a=1"', "x": b'"y"'}) == {"tracestate": "a=1"}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a=1", "a=1"),
        ("a=1,b=2,c=3", "a=1,c=3"),
        (" a = 1 ; secret=2 ,\tc=x%20y", "a=1,c=x%20y"),
        ("a=1,a=2", "a=1,a=2"),
        ("a", ""),
        ("", ""),
        ("a=\r\nX: y", ""),
        ("a=ä", ""),
        ('a="x"', ""),
        ("A=1", ""),
        ("a=" + "x" * 8190, "a=" + "x" * 8190),
        ("a=" + "x" * 8191, ""),
    ],
)
def test_of_baggage_only_what_is_allowed_and_well_formed_is_left(text: str, left: str) -> None:
    """Without what stands behind semicolons, which could be anything, too."""
    assert baggage(text, {"a", "c"}) == left


@given(st.text())
def test_nothing_is_left_that_a_header_could_not_hold(text: str) -> None:
    """Whatever somebody calls baggage."""
    left = baggage(text, {"a"})
    assert left.isascii()
    assert left == "" or left.isprintable()
    assert all(member.startswith("a=") for member in left.split(",") if member)


def test_upstreams_see_no_baggage_but_what_is_allowed() -> None:
    """All else of the caller's own goes on untouched."""
    vendor = {"x": b'"y"', "baggage": b'"a=1,b=2"', "traceparent": json.dumps(PARENT).encode()}
    assert upward(vendor) == {"x": b'"y"', "traceparent": vendor["traceparent"]}
    assert upward(vendor, {"b"}) == {"x": b'"y"', "traceparent": vendor["traceparent"], "baggage": b'"b=2"'}
