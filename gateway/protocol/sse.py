"""Reads and writes event streams as WHATWG defines them (U-21, S-18, B17).

Bytes are cut into lines as they arrive and decoded by nobody here: a character, a line end or the byte
order mark may be cut by a chunk anywhere. Each byte is looked at a fixed number of times.
"""

from dataclasses import dataclass

KEEP_ALIVE = b": ping\n\n"
"""A comment, which every client skips (S-22)."""

EVENT_START = b"event: message\ndata: "
EVENT_END = b"\n\n"

_BOM = b"\xef\xbb\xbf"
_FIELD = len("retry: ")
"""The longest name of a field that is read, with what separates it from its value."""
_RETRY_DIGITS = 10
_NO_BREAKS = bytes.maketrans(b"\r\n", b"  ")


class EventTooLarge(ValueError):
    """An event, or one line of it, is larger than the parser was told to keep."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event that carried data. `id` is the last id the stream has named so far, None before the first."""

    event: str
    data: bytes
    id: str | None = None
    retry: int | None = None


class SseParser:
    """Turns the chunks of one event stream into its events, whatever the chunks are.

    Neither an event's data nor any line may grow beyond `limit` bytes, nor all that stands between two events
    and carries no data; after EventTooLarge the stream is of no use any more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._started = False
        self._held = b""  # what may become the byte order mark
        self._after_cr = False
        self._pending = bytearray()  # of the line that has not ended
        self._data: bytes | bytearray | None = None  # of the event that has not ended
        self._event = ""
        self._id: str | None = None
        self._retry: int | None = None
        self._idle = 0  # bytes of lines without data since the last event

    def __repr__(self) -> str:
        return (
            f"<SseParser {len(self._data or b'')} bytes of data, {len(self._pending)} of an unfinished line>"
        )

    @property
    def held(self) -> int:
        """The bytes that are kept of what has not ended."""
        return len(self._pending) + len(self._data or b"")

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that this chunk completes; raises EventTooLarge."""
        if not self._started:
            chunk = self._without_bom(chunk)
        if not chunk:
            return []
        *ends, rest = self._with_line_feeds(chunk).split(b"\n")
        events = []
        for end in ends:
            event = self._line(self._finish_line(end))
            if event is not None:
                events.append(event)
        self._keep(rest)
        return events

    def _without_bom(self, chunk: bytes) -> bytes:
        held = self._held + chunk
        if len(held) < len(_BOM) and _BOM.startswith(held):
            self._held = held
            return b""
        self._started = True
        self._held = b""
        return held.removeprefix(_BOM)

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        """Return the chunk with one line end for all three; a CR ends its line at once, an LF may follow."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            if not chunk:  # the pair is complete, and nothing came behind it
                self._after_cr = False
                return chunk
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _keep(self, piece: bytes) -> None:
        self._check_line(piece)
        self._pending += piece

    def _finish_line(self, end: bytes) -> bytes:
        self._check_line(end)
        if not self._pending:
            return end
        self._pending += end
        line = bytes(self._pending)
        self._pending.clear()
        return line

    def _check_line(self, more: bytes) -> None:
        if len(self._pending) + len(more) > self._limit + _FIELD:
            raise EventTooLarge(f"a line of the event stream is larger than {self._limit} bytes")

    def _line(self, line: bytes) -> Event | None:
        if not line and self._data is not None:
            return self._dispatch()
        match _split_field(line):
            case b"data", value:
                self._add(value)
                return None
            case b"event", value:
                self._event = value.decode(errors="replace")
            case b"id", value if b"\x00" not in value:
                self._id = value.decode(errors="replace")
            case b"retry", value if value.isdigit() and len(value) <= _RETRY_DIGITS:
                self._retry = int(value)
            case _:  # a comment, a field that nobody defined, or the end of an event that carried no data
                if not line:
                    self._event = ""
        self._idle += len(line) + 1
        if self._idle > self._limit:
            raise EventTooLarge(f"over {self._limit} bytes of the event stream carry no data")
        return None

    def _add(self, value: bytes) -> None:
        if self._data is None:
            self._check_data(len(value))
            self._data = value  # nearly every event has one line, which is then not copied again
            return
        self._check_data(len(self._data) + 1 + len(value))
        if isinstance(self._data, bytes):
            self._data = bytearray(self._data)
        self._data += b"\n"
        self._data += value

    def _check_data(self, size: int) -> None:
        if size > self._limit:
            raise EventTooLarge(f"an event is larger than {self._limit} bytes")

    def _dispatch(self) -> Event:
        """Return the event that a blank line ends."""
        event = Event(self._event or "message", bytes(self._data or b""), self._id, self._retry)
        self._data = self._retry = None
        self._event, self._idle = "", 0
        return event


def _split_field(line: bytes) -> tuple[bytes, bytes]:
    """Return the field and the value of a line; the field of a comment is empty."""
    colon = line.find(b":")
    if colon < 0:
        return line, b""
    return line[:colon], line[colon + 2 :] if line.startswith(b" ", colon + 1) else line[colon + 1 :]


def format_event(message: bytes) -> bytes:
    """Return one JSON text as an event of one data line, without id and retry (S-18).

    Line breaks in it can only be whitespace between tokens; they become spaces, so that none ends the line.
    """
    return EVENT_START + in_one_line(message) + EVENT_END


def in_one_line(json: bytes) -> bytes:
    """Return JSON, or a piece of it, without the line breaks that may stand between its tokens."""
    return json.translate(_NO_BREAKS) if b"\n" in json or b"\r" in json else json
