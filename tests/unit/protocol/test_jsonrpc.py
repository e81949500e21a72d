"""JSON-RPC messages are cut and spliced to the byte, and what is no JSON is named as such."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.jsonrpc import (
    CROWD,
    INVALID_PARAMS,
    DuplicateKey,
    Malformed,
    McpError,
    array,
    error_message,
    is_crowd,
    is_json,
    is_null,
    is_utf8,
    items,
    join,
    mended,
    nests_deeper,
    notification_message,
    read_incoming,
    result_pieces,
    split,
    split_strict,
    text_of,
)

ENCODABLE = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = st.text(st.sampled_from('ab"\\:,{}é😀 '), max_size=3)
NUMBERS = (
    "1.0",
    "1",
    "1e2",
    "-0",
    "9007199254740993",
    "18446744073709551616",
    "9" * 5000,
    "0.10000000000000000555",
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | ENCODABLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ENCODABLE, inner, max_size=3),
    max_leaves=10,
)
BLANKS = st.text(" \t\r\n", max_size=2)


@st.composite
def object_texts(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """Return an object's text in any layout and escaping, and its names, some of them repeated."""
    names = draw(st.lists(NAMES, max_size=5))
    texts = []
    for name in names:
        key = json.dumps(name, ensure_ascii=draw(st.booleans()))
        value = json.dumps(draw(st.sampled_from([1, 12, "a", ",", "}", {"a": 1}, [], {"b": [{"a": '"'}]}])))
        texts.append("".join([draw(BLANKS), key, draw(BLANKS), ":", draw(BLANKS), value, draw(BLANKS)]))
    return f"{draw(BLANKS)}{{{','.join(texts) or draw(BLANKS)}}}{draw(BLANKS)}".encode(), names


@given(object_texts())
def test_every_repeated_name_is_found(made: tuple[bytes, list[str]]) -> None:
    """Whatever the layout and the escapes, an object is refused exactly if it names a member twice."""
    text, names = made
    repeated = {name for name, times in Counter(names).items() if times > 1}
    if not repeated:
        assert split_strict(text).keys() == set(names)
        return
    with pytest.raises(DuplicateKey) as refused:
        split_strict(text)
    assert refused.value.names == repeated
    assert refused.value.members.keys() == set(names)


@pytest.mark.parametrize(
    "text",
    [b'{"a":1,"a":1}', b'{"a":1,"b":2,"a":1}', b'{"a":"x","\\u0061":"x"}', b'{"a":12,"a":1}', b'{"":0,"":0}'],
)
def test_a_repeated_name_is_found_however_alike_the_values(text: bytes) -> None:
    """Equal values, escapes and prefixes do not hide the second one."""
    with pytest.raises(DuplicateKey):
        split_strict(text)


@given(st.dictionaries(ENCODABLE, JSON_VALUES, max_size=5))
def test_an_object_survives_being_cut_and_joined(members: dict[str, object]) -> None:
    """join undoes split: the same members, in the same order, with the same bytes for values."""
    text = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    cut = split(text)
    assert list(cut) == list(members)
    assert json.loads(join(cut)) == members
    assert {name: bytes(raw) for name, raw in split(join(cut)).items()} == {
        name: bytes(raw) for name, raw in cut.items()
    }


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_keep_their_spelling(number: str) -> None:
    """A number that nobody reads is never decoded (B39)."""
    assert join(split(f'{{"n":{number}}}'.encode())) == f'{{"n":{number}}}'.encode()


def test_an_array_survives_being_cut_and_joined() -> None:
    """Whitespace between elements goes, the elements stay."""
    assert array(items(b'[ 1.0 , {"a" : 1},"x"]')) == b'[1.0,{"a" : 1},"x"]'
    assert array([]) == b"[]"
    assert join({}) == b"{}"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"[]",
        b"1",
        b"null",
        b'{"a":1,}',
        b'{"a":01}',
        b'{"a":NaN}',
        b"{}x",
        b"{'a':1}",
        b'{"a":"\n"}',
        b"\xff",
    ],
)
def test_what_is_no_object_is_malformed(text: bytes) -> None:
    """Every way of not being one JSON object raises the same exception."""
    with pytest.raises(Malformed):
        split(text)


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_bottomless_nesting_is_malformed(depth: int) -> None:
    """Too deep for the decoder is an ordinary refusal, wherever it is met."""
    deep = b"[" * depth + b"]" * depth
    for read in (items, is_json, lambda text: split(b'{"a":' + text + b"}")):
        with pytest.raises(Malformed, match="nests too deep"):
            read(deep)


@given(st.binary(max_size=20))
def test_utf8_is_told_from_other_bytes(text: bytes) -> None:
    """is_utf8 agrees with Python's own decoder."""
    try:
        text.decode()
        valid = True
    except UnicodeDecodeError:
        valid = False
    assert is_utf8(text) is valid


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_character_may_lie_across_two_slices(cut: int) -> None:
    """Long texts are decoded by slices of a mebibyte, and no character minds where one ends."""
    start = b"a" * ((1 << 20) - cut)
    assert is_utf8(start + "😀".encode() + b"a" * 9)
    assert not is_utf8(start + "😀".encode()[:3] + b"a" * 9)
    assert not is_utf8(start + "😀".encode()[:3])


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@given(
    st.recursive(
        st.text('[]{}"\\a', max_size=5) | st.none(),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"\\', max_size=3), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    st.integers(min_value=0, max_value=6),
)
def test_depth_is_counted_outside_strings(value: object, limit: int) -> None:
    """Brackets, quotes and backslashes in strings count for nothing."""
    assert nests_deeper(json.dumps(value).encode(), limit) is (depth_of(value) > limit)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    """A long list of small objects passes a small limit."""
    assert not nests_deeper(b"[" + b",".join([b"{}"] * 1000) + b"]", 2)
    assert nests_deeper(b"[" + b",".join([b"{}"] * 1000) + b",[[]]]", 2)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (rb'"\ud83d"', '"�"'.encode()),
        (rb'"\ude00x"', '"�x"'.encode()),
        (rb'"\uD83D\uDE00"', rb'"\uD83D\uDE00"'),
        (rb'"\ud83d\ud83d\ude00"', '"�\\ud83d\\ude00"'.encode()),
        (rb'"\ud83d\ude00\ude00"', '"\\ud83d\\ude00�"'.encode()),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', '"\\\\�"'.encode()),
        (rb'"\ud83d\\ude00"', '"�\\\\ude00"'.encode()),
        (b'"\0\0"', b'"\0\0"'),
    ],
)
def test_only_lone_surrogates_are_mended(text: bytes, whole: bytes) -> None:
    """Pairs, and what merely looks like an escape behind an escaped backslash, stay as they are."""
    assert mended(text) == whole


@given(st.text(st.sampled_from('\ud83d\ud83e\ude00\udfff😀\\"ué'), max_size=8))
def test_mending_makes_any_text_of_javascript_readable(text: str) -> None:
    """What JSON.stringify may write of a string cut anywhere can be read afterwards."""
    written = json.dumps(text).encode()
    assert text_of(mended(written)) == json.loads(written).encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )


@pytest.mark.parametrize(
    ("raw", "text"), [(b'"\\u00e9"', "é"), (b"1", None), (b'{"a":1}', None), (b"null", None), (None, None)]
)
def test_text_of_reads_strings_only(raw: bytes | None, text: str | None) -> None:
    """Anything but a string is nothing."""
    assert text_of(raw) == text


def test_null_and_absent_are_one() -> None:
    """E-26, and nothing else is null."""
    assert is_null(None)
    assert is_null(split(b'{"a":null}')["a"])
    assert not is_null(b'"null"')
    assert not is_null(b"0")


def test_an_error_echoes_the_id_or_leaves_it_out() -> None:
    """There is never an id of null (E-06), and data may be null (E-10)."""
    error = McpError(INVALID_PARAMS, 'a "b"', b"null")
    assert error_message(b"1.0", error) == (
        b'{"jsonrpc":"2.0","id":1.0,"error":{"code":-32602,"message":"a \\"b\\"","data":null}}'
    )
    assert b"id" not in error_message(None, McpError(INVALID_PARAMS, ""))


def test_results_and_notifications_are_spliced() -> None:
    """A result may come in segments."""
    assert b"".join(result_pieces(b'"x"', b'{"a":', b"1}")) == b'{"jsonrpc":"2.0","id":"x","result":{"a":1}}'
    assert notification_message("n", {"a": b"1.0"}) == b'{"jsonrpc":"2.0","method":"n","params":{"a":1.0}}'


def test_an_upstreams_message_is_taken_apart() -> None:
    """A response, an error and a notification are told apart by their members."""
    answer = read_incoming(b'{"jsonrpc":"2.0","id":1,"result":{"n":1.0},"error":null}')
    assert (bytes(answer.id or b""), bytes(answer.result or b"")) == (b"1", b'{"n":1.0}')
    failed = read_incoming(b'{"id":null,"error":{"code":-32602.0,"message":null,"data":null}}')
    assert failed.id is None
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == (INVALID_PARAMS, "")
    notice = read_incoming(b'{"method":"notifications/progress","params":{"progress":1}}')
    assert (notice.method, notice.id) == ("notifications/progress", None)


def test_an_upstreams_lone_surrogate_does_not_cost_the_message() -> None:
    """JavaScript servers cut strings inside an emoji."""
    assert bytes(read_incoming(rb'{"id":1,"result":{"t":"\ud83d"}}').result or b"") == '{"t":"�"}'.encode()


@pytest.mark.parametrize(
    "message",
    [
        b"{}",
        b"[]",
        b'{"method":1}',
        b'{"error":{"code":true}}',
        b'{"error":{"code":1.5}}',
        b'{"error":[]}',
        b'{"error":{"code":' + b"9" * 5000 + b"}}",
        b'{"result":"\xff"}',
        b'{"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_an_upstreams_nonsense_is_malformed(message: bytes) -> None:
    """Nothing but Malformed comes out of what is no JSON-RPC message."""
    with pytest.raises(Malformed):
        read_incoming(message)


@pytest.mark.parametrize(
    ("text", "crowded"),
    [
        (b"[" + b"1," * CROWD + b"1]", True),
        (b"[" + b",".join([b'{"type":"text","text":"x"}'] * CROWD) + b"]", True),
        (b'["' + b"," * 2 * CROWD + b'"]', False),
        (b'["' + rb"\",\"," * CROWD + b'"]', False),
        (b'["' + rb"\\" + b'",' + b"1," * CROWD + b"1]", True),
        (b"[" + b"1," * 1000 + b'"' + b"d" * CROWD + b'"]', False),
        (b"[" + b'{"":""},' * 5 * CROWD + b"1]", True),
    ],
)
def test_a_crowd_is_told_by_its_commas_outside_of_strings(text: bytes, crowded: bool) -> None:
    """A table in one text is one value."""
    assert is_crowd(text) is crowded
