"""Lines come out whole whatever the chunks are, and one that is too long costs the next ones nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.lines import LineCutter, TooLong

LINES = st.lists(st.binary(max_size=40).map(lambda text: text.replace(b"\n", b"").replace(b"\r", b"")))


@given(LINES, st.lists(st.integers(1, 9), min_size=1))
def test_any_chunks_give_the_same_lines(lines: list[bytes], sizes: list[int]) -> None:
    text = b"".join(line + b"\n" for line in lines)
    cutter, found, at, turn = LineCutter(20), [], 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        found += cutter.feed(text[at : at + size])
        at, turn = at + size, turn + 1
    assert cutter.end() == []
    assert [line for line in found if isinstance(line, bytes)] == [line for line in lines if len(line) <= 20]
    assert [line.size for line in found if isinstance(line, TooLong)] == [
        len(line) for line in lines if len(line) > 20
    ]
    for long, line in zip(
        (line for line in found if isinstance(line, TooLong)),
        (line for line in lines if len(line) > 20),
        strict=True,
    ):
        assert line.startswith(long.head)
        assert line.endswith(long.tail)
        assert long.head
        assert long.tail


def test_a_carriage_return_before_the_end_is_no_part_of_a_line() -> None:
    assert LineCutter(9).feed(b"a\r\nb\r") == [b"a"]


def test_a_last_line_without_an_end_is_a_line() -> None:
    cutter = LineCutter(9)
    assert cutter.feed(b"a\nb") == [b"a"]
    assert cutter.end() == [b"b"]
    assert cutter.end() == []


def test_next_to_nothing_is_kept_of_a_line_beyond_the_limit() -> None:
    """300 MB of base64 must not be held to be thrown away (B25)."""
    cutter = LineCutter(1000)
    for _ in range(500):
        assert cutter.feed(b"x" * 10_000) == []
    [line] = cutter.feed(b"y\n")
    assert isinstance(line, TooLong)
    assert line.size == 5_000_001
    assert len(line.head) == len(line.tail) == 256
    assert line.tail.endswith(b"xy")


@pytest.mark.parametrize(
    ("line", "id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"text":"%s"}}', b"7"),
        (b'{"jsonrpc":"2.0", "id": "7", "result":{"text":"%s"}}', b'"7"'),
        (b'{"jsonrpc":"2.0","id":"a-b \\"\\u00e9","method":"x","params":{"text":"%s"}}', b'"a-b \\"\\u00e9"'),
        (b'{"jsonrpc":"2.0","id":-5,"method":"x","params":{"text":"%s"}}', b"-5"),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"x","params":{"text":"%s"}}', None),
        (b'{"jsonrpc":"2.0","id":null,"method":"x","params":{"text":"%s"}}', None),
        (b'{"result":{"text":"%s"},"jsonrpc":"2.0","id":12}', b"12"),
        (b'{"result":{"text":"%s"},"id":12,"jsonrpc":"2.0"}', b"12"),
        (b'{"params":{"text":"%s"},"method":"x","id":"12"}', b'"12"'),
        (b'{"jsonrpc":"2.0","id":"%s","method":"x"}', None),
        (b'{"result":{"id":3,"text":"%s"}}', None),
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":{"id":3,"data":"%s"}}', None),
        (b'{"result":{"text":"%s","id":4}}', None),
        (b"%s", None),
    ],
)
def test_the_id_of_a_line_beyond_the_limit(line: bytes, id: bytes | None) -> None:
    """The call it answers fails, and no other; what a result holds is not taken for the envelope."""
    [long] = LineCutter(1000).feed(line % (b"x" * 2000) + b"\n")
    assert isinstance(long, TooLong)
    assert long.id() == id
