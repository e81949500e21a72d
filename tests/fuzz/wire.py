"""What the parsers of messages owe whoever sends them garbage; each function is one target.

A target takes any bytes. It returns, or an assertion or an exception says what went wrong.
"""

import contextlib
import json
from itertools import accumulate
from typing import Any

from gateway.protocol import legacy_client, legacy_server
from gateway.protocol.envelope import read_object, same_id
from gateway.protocol.jsonrpc import (
    DuplicateKey,
    Json,
    Malformed,
    McpError,
    canonical,
    error_message,
    is_object,
    is_utf8,
    join,
    mended,
    nests_deeper,
    read_incoming,
    split,
    split_strict,
)
from gateway.protocol.lines import LineCutter, TooLong
from gateway.protocol.mirror import (
    InvalidAnnotation,
    check_param_headers,
    decode_value,
    encode_value,
    header_params,
    mirrored,
    without_invalid,
)
from gateway.protocol.modern import (
    Call,
    Head,
    PostedNotification,
    Rejection,
    accept_body,
    era_of,
    read_head,
    takes_events,
)
from gateway.protocol.sse import Event, EventTooLarge, SseParser, format_event
from gateway.protocol.subscriptions import read_acknowledged, read_wanted, spell

DEPTH = 200
LIMIT = 300
DIALECTS = tuple(legacy_client.DIALECTS.values())


# Clients


def modern_request(data: bytes) -> None:
    """Header lines, an empty line and a body come to a call, a notification or a refusal."""
    head, body = _request(data)
    era_of(head, body)
    outcome = accept_body(head, body, depth=DEPTH, passes=lambda method: method.startswith("x/"))
    match outcome:
        case Rejection():
            assert 400 <= outcome.status < 500
            if outcome.error is not None:
                _said(error_message(outcome.id, outcome.error))
        case PostedNotification():
            assert read(mended(body))["method"] == outcome.method
        case Call():
            sent = read(mended(body))
            assert sent["method"] == outcome.method
            assert sent["id"] == read(outcome.id)
            for name, raw in outcome.params.items():
                assert sent["params"][name] == read(bytes(raw))
            assert not any(name.casefold() == "_meta" for name in outcome.params)


def accept_line(data: bytes) -> None:
    """Any Accept is judged, and alike in one line and in several."""
    lines = data.decode("latin-1").split("\n")
    assert takes_events(lines) == takes_events([",".join(lines)])


def legacy_request(data: bytes) -> None:
    """What a client of an older revision posts comes to messages, each of which is one or says why not."""
    dialect = DIALECTS[data[0] % len(DIALECTS)] if data else DIALECTS[0]
    found = legacy_client.read_messages(data[1:], dialect, DEPTH)
    messages = found if isinstance(found, list) else [found]
    assert len(messages) <= legacy_client.MOST_IN_A_BATCH
    for message in messages:
        match message:
            case legacy_client.Unreadable(error, id):
                _said(error_message(id, error))
            case legacy_client.Asked(id, _, params):
                read(id)
                _asked(message, params)
            case legacy_client.Noted(_, params):
                legacy_client.cancelled_id(params)
                legacy_client.progress_of(params)
            case legacy_client.Answered(id, result, _):
                read(id)
                if result is not None:
                    read(bytes(result))


def _asked(message: legacy_client.Asked, params: Any) -> None:
    """Everything that is done with a request of theirs raises McpError alone."""
    legacy_client.asked_version(params)
    held = None
    for reading in (legacy_client.handshake, legacy_client.level_of, legacy_client.uri_of):
        try:
            found = reading(params)
        except McpError as error:
            _said(error_message(message.id, error))
            continue
        held = found if isinstance(found, legacy_client.Handshake) else held
    held = held or legacy_client.Handshake("2025-06-18")
    read(held.capabilities)
    try:
        legacy_client.call_of(message, held, None, lambda method: method.startswith("x/"))
    except McpError as error:
        _said(error_message(message.id, error))


def listen_filter(data: bytes) -> None:
    """A filter is read or refused, and what was read is spelled as it is understood."""
    members = _members(data)
    if members is None:
        return
    read_acknowledged(members)
    try:
        wanted = read_wanted(members)
    except McpError:
        return
    assert read_wanted({"notifications": spell(wanted)}) == wanted


# Servers


def event_stream(data: bytes) -> None:
    """However a stream is cut into chunks, it holds the events that a simple reader finds."""
    sizes, stream = data[:8], data[8:]
    whole, cut = _events([stream]), _events(_pieces(stream, sizes))
    assert whole == cut
    if whole is not None:
        assert [(event.event, event.data, event.id) for event in whole] == list(_simply_read(stream))


def event_written(data: bytes) -> None:
    """Whatever JSON is written as an event is read back as one event."""
    try:
        split(data)
    except Malformed:
        return
    (event,) = SseParser(len(data) + 8).feed(format_event(data))
    assert event.data.split() == data.replace(b"\r", b" ").replace(b"\n", b" ").split()


def program_lines(data: bytes) -> None:
    """However lines arrive, they are the same lines, and one that is too long costs itself only."""
    sizes, written = data[:8], data[8:]
    whole, cut = _lines([written]), _lines(_pieces(written, sizes))
    assert whole == cut
    *ended, rest = written.split(b"\n")
    assert len(whole) == len(ended) + bool(rest)
    for line, piece in zip(whole, [*ended, rest], strict=False):
        if isinstance(line, TooLong):
            assert (line.size, line.head, line.tail) == (len(piece), piece[:256], piece[-256:])
            line.id()
        else:
            assert line == piece.removesuffix(b"\r")


def legacy_server_message(data: bytes) -> None:
    """What a server of an older revision says is read, or Malformed."""
    version = (None, "2025-03-26", "2025-11-25")[data[0] % 3] if data else None
    try:
        messages = legacy_server.read_messages(data[1:], version)
    except Malformed:
        return
    for message in messages:
        if message.method is not None:
            legacy_server.refusal(message, b'{"elicitation":{"form":{}},"roots":{}}')
            _allowing_malformed(legacy_server.read_question, message)
        if message.error is not None:
            legacy_server.versions_named(message.error.data)
            _allowing_malformed(legacy_server.elicitations, message.error)
        if message.result is not None and is_object(message.result):
            _resulted(message.result)


def _resulted(result: Json) -> None:
    legacy_server.declared(result)
    greeting = _allowing_malformed(legacy_server.read_greeting, result)
    if greeting is not None:
        read(greeting.discovered)
    for method in ("tools/call", "tools/list", "resources/read"):
        worded = _allowing_malformed(legacy_server.worded, method, result)
        if worded is not None:
            read(worded)


# The notation


def envelope(data: bytes) -> None:
    """Cutting and joining lose nothing, and agree with a parser that decodes everything."""
    _allowing_malformed(read_incoming, data)
    with contextlib.suppress(McpError, DuplicateKey):
        read_object(data)
    whole = mended(data)
    assert mended(whole) == whole
    try:
        members = split(data)
    except Malformed:
        return
    assert nests_deeper(data, 20) == (_depth(data) > 20)
    if is_utf8(data):
        assert {name: read(bytes(raw)) for name, raw in members.items()} == read(data)
        assert read(join(members)) == read(data)
        names = [name for name, _ in json.loads(data.decode(), object_pairs_hook=list, **NUMBERS)]
        assert (len(set(names)) < len(names)) == _names_one_twice(data)
    try:
        spelled = canonical(data)
    except Malformed:
        return
    assert canonical(spelled) == spelled
    if "id" in members and is_utf8(data):
        assert same_id(same_id(members["id"])) == same_id(members["id"])


def mirrored_arguments(data: bytes) -> None:
    """A schema, arguments and header lines: what we would send agrees with the arguments it was made of."""
    schema, _, rest = data.partition(b"\n\n")
    arguments, _, lines = rest.partition(b"\n\n")
    if mended(schema) != schema:
        return  # no message is read that holds half a character
    try:
        params = header_params(schema)
    except Malformed:
        return
    except InvalidAnnotation:
        assert header_params(without_invalid(schema)) is not None
        return
    try:
        split(arguments)
    except Malformed:
        return
    if not is_utf8(arguments):
        return
    received = {
        name.decode("latin-1").lower(): (value.decode("latin-1"),)
        for name, _, value in (line.partition(b":") for line in lines.split(b"\n"))
    }
    check_param_headers(params, received, arguments)
    try:
        sent = mirrored(params, arguments)
    except McpError:
        return
    assert all(value.isascii() and value.isprintable() for value in sent.values())
    lines_of = {name.removeprefix("Mcp-Param-").lower(): (value,) for name, value in sent.items()}
    assert check_param_headers(params, lines_of, arguments) is None


def header_value(data: bytes) -> None:
    """A text that went into a header comes out of it; what came in a header is text or refused."""
    with contextlib.suppress(ValueError):
        decode_value(data.decode("latin-1"))
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    line = encode_value(text)
    assert line.isascii()
    assert line.isprintable()
    assert decode_value(line) == text


# Reading simply, to compare with

NUMBERS: dict[str, Any] = {"parse_int": str, "parse_float": str}


def read(text: bytes) -> Any:
    """Return JSON decoded; numbers stay as they are spelled."""
    return json.loads(text.decode(), **NUMBERS)


def _said(message: bytes) -> None:
    assert read(message)["error"]["message"]


def _request(data: bytes) -> tuple[Head, bytes]:
    lines, _, body = data.partition(b"\n\n")
    pairs = (line.partition(b":") for line in lines.split(b"\n")[:64])
    return read_head([(name, value.strip(b" \t")) for name, _, value in pairs]), body


def _members(data: bytes) -> Any:
    """Return the members of what could be a request's params: an object, UTF-8, not too deep."""
    try:
        members = split_strict(data)
    except Malformed:
        return None
    return members if is_utf8(data) and mended(data) == data and not nests_deeper(data, DEPTH) else None


def _names_one_twice(data: bytes) -> bool:
    try:
        split_strict(data)
    except DuplicateKey:
        return True
    return False


def _allowing_malformed(work: Any, *given: Any) -> Any:
    try:
        return work(*given)
    except Malformed:
        return None


def _pieces(data: bytes, sizes: bytes) -> list[bytes]:
    """Return the data in pieces whose sizes are those, over and over."""
    steps = [size % 7 + 1 for size in sizes] or [3]
    pieces, at, turn = [], 0, 0
    while at < len(data):
        step = steps[turn % len(steps)]
        pieces.append(data[at : at + step])
        at, turn = at + step, turn + 1
    return pieces


def _events(chunks: list[bytes]) -> list[Event] | None:
    """Return the events of a stream, None for one that is larger than the parser was told to keep."""
    parser = SseParser(LIMIT)
    found = []
    try:
        for chunk in chunks:
            found += parser.feed(chunk)
            assert len(parser._pending) <= LIMIT + 16
            assert len(parser._data or b"") <= LIMIT
    except EventTooLarge:
        return None
    return found


def _simply_read(stream: bytes) -> Any:
    """Yield type, data and id of each event, as the specification of event streams words it."""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    data: list[bytes] = []
    kind, last = "", None
    for line in text.split(b"\n")[:-1]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if data:
                yield kind or "message", b"\n".join(data), last
            data, kind = [], ""
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            kind = value.decode(errors="replace")
        elif field == b"id" and b"\0" not in value:
            last = value.decode(errors="replace")


def _lines(chunks: list[bytes]) -> list[bytes | TooLong]:
    cutter = LineCutter(LIMIT)
    return [line for chunk in chunks for line in cutter.feed(chunk)] + cutter.end()


def _depth(text: bytes) -> int:
    """Return how deep valid JSON nests."""
    steps, inside, escaped = [0], False, False
    for byte in text:
        if escaped:
            escaped = False
        elif inside:
            escaped, inside = byte == 0x5C, byte != 0x22
        elif byte == 0x22:
            inside = True
        else:
            steps.append((byte in b"[{") - (byte in b"]}"))
    return max(accumulate(steps))
