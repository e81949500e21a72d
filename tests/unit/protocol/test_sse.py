"""An event stream means the same however it is cut (B17), and none can fill the memory (B25)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.sse import KEEP_ALIVE, Event, EventTooLarge, SseParser, format_event

LIMIT = 1 << 20
ANSWER = '{"jsonrpc":"2.0","id":1,"result":{"t":"é😀"}}'

LINES = st.sampled_from(
    [
        "data: a",
        "data:a",
        "data:  a",
        "data",
        "data:",
        "data: é😀",
        "event: message",
        "event",
        "event:x",
        "id: 1",
        "id",
        "id: a\0b",
        "retry: 10",
        "retry: 1x",
        ": comment",
        ":",
        "other: x",
        " data: x",
        "",
        "",
    ]
)


def parse(stream: bytes, *cuts: int) -> list[Event]:
    """Return the events of a stream that arrives cut at these places."""
    parser = SseParser(LIMIT)
    events: list[Event] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        events += parser.feed(stream[start:end])
    return events


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Return a stream of odd lines with any mix of line ends, perhaps behind a byte order mark."""
    lines = draw(st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r", "\r\n"])), max_size=12))
    mark = draw(st.sampled_from(["", "\ufeff", "\ufeff\ufeff"]))
    return (mark + "".join(line + end for line, end in lines)).encode()


@given(streams(), st.data())
def test_any_chunking_gives_the_same_events(stream: bytes, data: st.DataObject) -> None:
    """Cut between CR and LF, inside a character, inside the byte order mark: nothing changes."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    whole = parse(stream)
    assert parse(stream, *cuts) == whole
    assert parse(stream, *range(1, len(stream))) == whole


@given(st.lists(LINES, max_size=12))
def test_all_line_ends_mean_the_same(lines: list[str]) -> None:
    """LF, CR and CRLF are one."""
    with_lf, with_cr, with_crlf = (
        parse("".join(line + end for line in lines).encode()) for end in ("\n", "\r", "\r\n")
    )
    assert with_lf == with_cr == with_crlf


@given(streams())
def test_events_are_those_of_the_standard(stream: bytes) -> None:
    """A straightforward reading of the standard's algorithm on the whole text comes to the same."""
    assert [(e.event, e.data.decode(), e.id) for e in parse(stream)] == by_the_book(stream)


def by_the_book(stream: bytes) -> list[tuple[str, str, str | None]]:
    """Return type, data and last id of each event, as WHATWG's "interpreting an event stream" goes."""
    text = stream.decode().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    events: list[tuple[str, str, str | None]] = []
    kind, data, last_id = "", "", None
    for line in text.split("\n")[:-1]:
        name, colon, value = line.partition(":")
        if line == "":
            if data:
                events.append((kind or "message", data.removesuffix("\n"), last_id))
            kind, data = "", ""
        elif colon and not name:
            continue
        elif name == "event":
            kind = value.removeprefix(" ")
        elif name == "data":
            data += value.removeprefix(" ") + "\n"
        elif name == "id" and "\0" not in value:
            last_id = value.removeprefix(" ")
    return events


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_message_over_two_data_lines_is_one(end: str) -> None:
    """The faults' own example, one byte at a time."""
    lines = ["event: message", f"data: {ANSWER[:17]}", f"data: {ANSWER[17:]}", "", ""]
    stream = end.join(lines).encode()
    (event,) = parse(stream, *range(1, len(stream)))
    assert json.loads(event.data) == json.loads(ANSWER)


def test_a_bare_cr_ends_an_event_at_once() -> None:
    """The event is there before the next byte, which may be a minute away."""
    parser = SseParser(LIMIT)
    assert [event.data for event in parser.feed(b"data: a\r\r")] == [b"a"]
    assert parser.feed(b"\n") == []
    assert [event.data for event in parser.feed(b"data: b\n\n")] == [b"b"]


def test_comments_and_unknown_fields_are_skipped() -> None:
    """Keep-alives come to nothing (S-22)."""
    assert parse(KEEP_ALIVE * 3 + b"x: y\ndata: a\n\n" + KEEP_ALIVE) == [Event("message", b"a")]


def test_an_event_without_data_is_none() -> None:
    """An event's name does not outlive the blank line, an id does."""
    assert parse(b"event: x\nid: 7\n\ndata: a\n\n") == [Event("message", b"a", id="7")]


def test_the_priming_event_carries_its_id_and_retry() -> None:
    """Legacy servers open a stream with empty data (interop, legacy trace)."""
    assert parse(b"id: e1\ndata: \nretry: 100\n\ndata: b\n\n") == [
        Event("message", b"", id="e1", retry=100),
        Event("message", b"b", id="e1"),
    ]


@pytest.mark.parametrize("retry", ["-1", "1.5", "", "٣", "9" * 5000])
def test_an_odd_retry_is_ignored(retry: str) -> None:
    """Only a few ASCII digits are a time."""
    assert parse(f"retry: {retry}\ndata: a\n\n".encode()) == [Event("message", b"a")]


def test_bytes_that_are_no_text_stay_in_the_data() -> None:
    """Who reads the message judges it; the parser does not fail over a name either."""
    assert parse(b"event: \xff\ndata: \xff\n\n") == [Event("�", b"\xff")]


@pytest.mark.parametrize("size", [65_536, 1_000])
def test_a_long_line_is_read_in_linear_time(size: int) -> None:
    """15 MB in one data line, in small chunks; a quadratic reader would take minutes, and run out of time."""
    message = b'{"t":"' + b"A" * 15_000_000 + b'"}'
    stream = format_event(message)
    parser = SseParser(16 << 20)
    events: list[Event] = []
    for at in range(0, len(stream), size):
        events += parser.feed(stream[at : at + size])
    assert events == [Event("message", message)]


def test_an_event_may_be_as_large_as_the_limit_and_no_larger() -> None:
    """The bound is on the data, in one line or in many."""
    parser = SseParser(10)
    assert parser.feed(b"data: 0123456789\n\n")
    assert parser.feed(b"data: 01234\ndata: 5678\n\n")
    with pytest.raises(EventTooLarge, match="10 bytes"):
        parser.feed(b"data: 01234\ndata: 56789\n\n")
    with pytest.raises(EventTooLarge, match="10 bytes"):
        SseParser(10).feed(b"data:01234567890\n\n")


def feed_for_ever(parser: SseParser, chunk: bytes) -> None:
    for _ in range(50):
        parser.feed(chunk)


@pytest.mark.parametrize("start", [b"", b"data: ", b": ", b"id: ", b"event: ", b"retry: "])
@pytest.mark.parametrize("size", [1, 7, 50])
def test_no_line_grows_beyond_the_limit(start: bytes, size: int) -> None:
    """A line that never ends is given up, a comment too."""
    parser = SseParser(20)
    parser.feed(start)
    with pytest.raises(EventTooLarge):
        feed_for_ever(parser, b"x" * size)
    assert "unfinished line" in repr(parser)


def test_empty_data_lines_count_too() -> None:
    """Each adds a line feed to the event, so a stream of nothing else ends as well."""
    with pytest.raises(EventTooLarge):
        feed_for_ever(SseParser(20), b"data\n")


@given(
    st.recursive(st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists),
    st.data(),
)
def test_what_is_formatted_is_read_back(value: object, data: st.DataObject) -> None:
    """Any single-line JSON comes back to the byte."""
    message = json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode()
    assert parse(format_event(message)) == [Event("message", message)]


@given(st.sampled_from(["\n", "\r", "\r\n"]), st.lists(st.text(), max_size=3))
def test_line_breaks_between_tokens_do_not_break_the_framing(end: str, value: list[str]) -> None:
    """A pretty-printed message becomes one data line that means the same."""
    message = json.dumps(value, indent=2).replace("\n", end).encode()
    formatted = format_event(message)
    assert formatted.startswith(b"event: message\ndata: ")
    assert formatted.count(b"\n") == 3
    (event,) = parse(formatted)
    assert json.loads(event.data) == value


@pytest.mark.parametrize("nothing", [b"\n", b":\n\n", b": ping\n\n", b"id: 7\n", b"event: x\n\n"])
def test_what_carries_no_data_is_not_read_for_ever(nothing: bytes) -> None:
    """Between two events there may be as much of it as an event may be large, and then again."""
    parser = SseParser(100)
    for _ in range(3):
        parser.feed(nothing * (90 // len(nothing)))
        assert [event.data for event in parser.feed(b"data: x\n\n")] == [b"x"]
    with pytest.raises(EventTooLarge, match="carry no data"):
        parser.feed(nothing * (1 + 100 // len(nothing)))
