"""What a request says twice is written and compared in one notation (B43)."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.call import HeaderParam
from gateway.protocol.jsonrpc import INVALID_PARAMS, Malformed, McpError
from gateway.protocol.mirror import without_invalid
from gateway.protocol.modern import (
    InvalidAnnotation,
    check_param_headers,
    decode_value,
    encode_value,
    header_params,
    mirrored,
)

ENCODABLE = st.text(st.characters(exclude_categories=["Cs"]))
REGION = HeaderParam("Region", ("region",), "string")
COUNT = HeaderParam("Count", ("page", "count"), "integer")
FORCE = HeaderParam("Force", ("force",), "boolean")


def annotate(path: str, token: Any = "Region", kind: Any = "string") -> dict[str, Any]:
    """Return a schema that annotates one place; a path's parts are keywords or `properties` names."""
    schema: Any = {"type": kind, "x-mcp-header": token}
    for part in reversed(path.split("/") if path else []):
        schema = [schema] if part == "0" else {part: schema}
    result: dict[str, Any] = schema
    return result


def params_of(schema: object) -> tuple[HeaderParam, ...]:
    return header_params(json.dumps(schema).encode())


# Values


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("github", "github"),
        ("a b", "a b"),
        ("Zürich ", "=?base64?WsO8cmljaCA=?="),
        (" pad", "=?base64?IHBhZA==?="),
        ("\t", "=?base64?CQ==?="),
        ("a\tb", "=?base64?YQli?="),
        ("a\r\nX: y", "=?base64?YQ0KWDogeQ==?="),
        ("\x7f", "=?base64?fw==?="),
        ("=?base64?eA==?=", "=?base64?PT9iYXNlNjQ/ZUE9PT89?="),
        ("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="),
        ("=?BASE64?eA==?=", "=?BASE64?eA==?="),
        ("=?base64?eA==", "=?base64?eA=="),
    ],
)
def test_a_value_is_wrapped_only_if_a_header_cannot_carry_it(text: str, line: str) -> None:
    """U-05, the sentinel's own look-alikes included."""
    assert encode_value(text) == line
    assert decode_value(line) == text


@given(ENCODABLE)
def test_any_text_survives_a_header(text: str) -> None:
    """What goes out is printable, needs no trimming, and comes back as it was."""
    line = encode_value(text)
    assert line.isascii()
    assert not set(line) & set("\r\n\0")
    assert line.strip() == line
    assert decode_value(f" \t{line}\t ") == text


@pytest.mark.parametrize(
    "line",
    [
        "=?base64?eA?=",
        "=?base64?eA=?=",
        "=?base64?eA===?=",
        "=?base64?e A=?=",
        "=?base64?eB==?=",
        "=?base64?-_-_?=",
        "=?base64?=eA=?=",
        "=?base64?/w==?=",
        "caf\xe9",
        "a\x00b",
        "a\x7f",
        "a\nb",
    ],
)
def test_a_malformed_value_is_refused(line: str) -> None:
    """Bad padding, alphabet, trailing bits, UTF-8 or characters (S-12, S-13), in words that follow a name."""
    with pytest.raises(ValueError, match=r"^(holds|is not) "):
        decode_value(line)


@given(st.text())
def test_any_line_is_text_or_refused(line: str) -> None:
    """Nothing but ValueError comes out of a header."""
    with suppress(ValueError):
        assert isinstance(decode_value(line), str)


# Annotations


def test_annotations_are_found_along_chains_of_properties() -> None:
    """Nested ones too (A-12), in the schema's order, as written."""
    schema = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "page": {"properties": {"count": {"type": "integer", "x-mcp-header": "Count"}}},
            "force": {"type": "boolean", "x-mcp-header": "Force"},
        },
    }
    assert params_of(schema) == (REGION, COUNT, FORCE)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "items",
        "properties/a/items",
        "properties/a/items/0",
        "prefixItems/0",
        "anyOf/0/properties/a",
        "oneOf/0/properties/a",
        "allOf/0/properties/a",
        "not/properties/a",
        "if/properties/a",
        "then/properties/a",
        "else/properties/a",
        "contains/properties/a",
        "contentSchema/properties/a",
        "propertyNames",
        "additionalProperties",
        "additionalItems",
        "unevaluatedItems",
        "unevaluatedProperties",
        "patternProperties/a",
        "dependentSchemas/a/properties/b",
        "dependencies/a/properties/b",
        "$defs/A/properties/a",
        "definitions/A",
        "properties/a/anyOf/0/properties/b",
    ],
)
def test_an_annotation_off_the_chain_spoils_the_tool(path: str) -> None:
    """Whatever keyword it crossed, other than properties (U-08)."""
    with pytest.raises(InvalidAnnotation, match="chain of properties"):
        params_of(annotate(path))


@pytest.mark.parametrize(
    "path",
    [
        "default",
        "examples/0",
        "const",
        "enum/0",
        "properties/a/default/properties/b",
        "x-vendor/properties/a",
        "required/0",
        "$comment",
    ],
)
def test_data_that_looks_like_an_annotation_is_data(path: str) -> None:
    """Only schema positions are walked."""
    assert params_of(annotate(path)) == ()


def test_a_reference_is_not_followed() -> None:
    """The definition it leads to is refused where it stands, and an absent one is nobody's business (B10)."""
    assert (
        params_of({"$comment": "x-mcp-header", "properties": {"a": {"$ref": "https://example.invalid/s"}}})
        == ()
    )
    with pytest.raises(InvalidAnnotation):
        params_of({"$defs": {"A": annotate("")}, "properties": {"a": {"$ref": "#/$defs/A"}}})


def test_a_property_may_be_called_like_the_keyword() -> None:
    """The names under properties are no keywords."""
    schema = {"properties": {"x-mcp-header": {"type": "string"}, "properties": {"type": "object"}}}
    assert params_of(schema) == ()


@pytest.mark.parametrize("token", [None, 1, True, ["a"], {}])
def test_an_annotation_is_a_string(token: object) -> None:
    """Of any other type it is invalid, null included."""
    with pytest.raises(InvalidAnnotation, match=r"a: x-mcp-header is not a string"):
        params_of(annotate("properties/a", token))


@pytest.mark.parametrize("token", ["", "a b", "é", "a:b", "a\r\nb", "a\n", "(a)"])
def test_an_annotation_is_a_header_token(token: str) -> None:
    """Else it would break the header block."""
    with pytest.raises(InvalidAnnotation, match="not a header token"):
        params_of(annotate("properties/a", token))


@pytest.mark.parametrize(
    "kind", [None, "number", "object", "array", "null", ["string"], ["string", "null"], "int"]
)
def test_an_annotated_parameter_is_a_string_an_integer_or_a_boolean(kind: object) -> None:
    """Unions and numbers have no one spelling (A-13)."""
    with pytest.raises(InvalidAnnotation, match="needs type"):
        params_of(annotate("properties/a", "A", kind))
    with pytest.raises(InvalidAnnotation, match="needs type"):
        params_of({"properties": {"a": {"x-mcp-header": "A"}}})


def test_two_parameters_do_not_share_a_header() -> None:
    """Header names know no case."""
    schema = {"properties": {"a": annotate("", "Region"), "b": {"properties": {"c": annotate("", "REGION")}}}}
    with pytest.raises(InvalidAnnotation, match="twice"):
        params_of(schema)


@pytest.mark.parametrize(
    "schema",
    [
        b"true",
        b"null",
        b'{"properties":{"p":true}}',
        b'{"properties":null,"items":1,"anyOf":{}}',
        b'{"anyOf":[{"type":"object"}]}',
        b'{"properties":{"n":{"type":"int"}}}',
        b'{"description":"x-mcp-header","dependencies":{"a":["b"]}}',
        b'{"$comment":"x-mcp-header","default":' + b"9" * 5000 + b',"maximum":1e999}',
    ],
)
def test_an_unusual_schema_has_no_annotations(schema: bytes) -> None:
    """B11: what is odd but no annotation passes, numbers of any size too."""
    assert header_params(schema) == ()


def test_an_escaped_keyword_is_a_keyword() -> None:
    """An escape hides nothing from the walk."""
    schema = rb'{"properties":{"a":{"type":"string","x\u002dmcp-header":"Region"}}}'
    assert header_params(schema) == (HeaderParam("Region", ("a",), "string"),)


def test_a_bottomless_schema_is_malformed() -> None:
    """The walk itself needs no stack, its parser does."""
    deep = b'{"properties":{"a":' * 20_000 + b'{"x-mcp-header":"A"}' + b"}}" * 20_000
    with pytest.raises(Malformed, match="too deep"):
        header_params(deep)
    with pytest.raises(Malformed, match="not JSON"):
        header_params(b'{"x-mcp-header":')


# Mirroring


@pytest.mark.parametrize(
    ("param", "arguments", "line"),
    [
        (REGION, '{"region":"eu"}', "eu"),
        (REGION, '{"region":""}', ""),
        (REGION, '{"region":"Zürich "}', "=?base64?WsO8cmljaCA=?="),
        (REGION, '{"region":"a\\r\\nX: y"}', "=?base64?YQ0KWDogeQ==?="),
        (REGION, '{"region":7}', "7"),
        (COUNT, '{"page":{"count":42}}', "42"),
        (COUNT, '{"page":{"count":-9007199254740991}}', "-9007199254740991"),
        (COUNT, '{"page":{"count":42.0}}', "42.0"),
        (COUNT, '{"page":{"count":4.2e1}}', "42.0"),
        (FORCE, '{"force":true}', "true"),
        (FORCE, '{"force":false}', "false"),
    ],
)
def test_an_argument_is_mirrored_in_its_header(param: HeaderParam, arguments: str, line: str) -> None:
    """U-05 and U-06; what is sent is what we accept ourselves."""
    assert mirrored((param,), arguments.encode()) == {f"Mcp-Param-{param.token}": line}
    assert check_param_headers((param,), {param.token.lower(): (line,)}, arguments.encode()) is None


@pytest.mark.parametrize(
    "arguments",
    [
        None,
        b"{}",
        b'{"page":null}',
        b'{"page":[]}',
        b'{"page":{}}',
        b'{"page":{"count":null}}',
        b'{"page":{"count":{}}}',
    ],
)
def test_what_is_not_there_is_not_mirrored(arguments: bytes | None) -> None:
    """Absent, null, and what no header can spell."""
    assert mirrored((REGION, COUNT), arguments) == {}
    assert check_param_headers((REGION, COUNT), {}, arguments) is None


@pytest.mark.parametrize(
    "number", ["9007199254740992", "-9007199254740992", "1e16", "1e999", "9" * 5000, "1" + "0" * 99]
)
def test_a_number_beyond_the_safe_integers_fails_the_call(number: str) -> None:
    """It cannot be mirrored exactly, and the error names it without quoting it."""
    with pytest.raises(McpError) as refused:
        mirrored((COUNT,), f'{{"page":{{"count":{number}}}}}'.encode())
    assert refused.value.code == INVALID_PARAMS
    assert refused.value.message == "params.arguments.page.count is a number that no header can carry"


# Comparing


@pytest.mark.parametrize("line", ["42", "42.0", "42.000", " 42 ", "042", "=?base64?NDI=?="])
@pytest.mark.parametrize("argument", ["42", "42.0", "4.2e1"])
def test_integers_compare_by_value(argument: str, line: str) -> None:
    """S-14: 42 is 42.0."""
    arguments = f'{{"page":{{"count":{argument}}}}}'.encode()
    assert check_param_headers((COUNT,), {"count": (line,)}, arguments) is None


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("42", "43"),
        ("42", "42.5"),
        ("42", "42."),
        ("42", "+42"),
        ("42", ""),
        ("42", "4.2e1"),
        ("1.5", "1"),
        ('"42"', "42.0"),
    ],
)
def test_other_numbers_differ(argument: str, line: str) -> None:
    """A decimal with nothing behind the point, or the same text; nothing looser."""
    problem = check_param_headers((COUNT,), {"count": (line,)}, f'{{"page":{{"count":{argument}}}}}'.encode())
    assert problem == "The Mcp-Param-Count header differs from params.arguments.page.count"


@given(st.integers(), st.integers())
def test_integers_of_any_size_compare_exactly(one: int, other: int) -> None:
    """No float comes between them."""
    problem = check_param_headers(
        (COUNT,), {"count": (str(one),)}, f'{{"page":{{"count":{other}}}}}'.encode()
    )
    assert (problem is None) is (one == other)


def test_a_number_of_5000_digits_compares_too() -> None:
    """Neither Python's limit on digits nor the header's end stops the comparison (B39)."""
    arguments = f'{{"page":{{"count":{"9" * 5000}}}}}'.encode()
    assert check_param_headers((COUNT,), {"count": ("9" * 5000,)}, arguments) is None
    assert check_param_headers((COUNT,), {"count": ("9" * 4999 + "8",)}, arguments) is not None
    assert check_param_headers((COUNT,), {"count": ("0" * 60_000 + "x",)}, arguments) is not None


@pytest.mark.parametrize(
    ("arguments", "lines", "problem"),
    [
        (b'{"region":"eu"}', (), "is missing beside params.arguments.region"),
        (b'{"region":""}', (), "is missing beside params.arguments.region"),
        (b"{}", ("eu",), "has no counterpart in params.arguments.region"),
        (None, ("eu",), "has no counterpart in params.arguments.region"),
        (b'{"region":null}', ("null",), "has no counterpart in params.arguments.region"),
        (b'{"region":"eu"}', ("us",), "differs from params.arguments.region"),
        (b'{"region":"eu"}', ("EU",), "differs from params.arguments.region"),
        (b'{"region":" eu"}', (" eu",), "differs from params.arguments.region"),
        (b'{"region":["eu"]}', ("eu",), "differs from params.arguments.region"),
        (b'{"region":true}', ("True",), "differs from params.arguments.region"),
        (b'{"region":"eu"}', ("eu", "eu"), "is there more than once"),
        (b'{"region":"x"}', ("=?base64?eA?=",), "is not base64 between its markers"),
        (b'{"region":"x"}', ("\xe9",), "holds characters outside printable ASCII"),
    ],
)
def test_a_header_that_says_something_else_is_named(
    arguments: bytes | None, lines: tuple[str, ...], problem: str
) -> None:
    """S-14, and the reason never quotes either value."""
    received = {"region": lines} if lines else {}
    assert check_param_headers((REGION,), received, arguments) == f"The Mcp-Param-Region header {problem}"


def test_undeclared_headers_are_ignored() -> None:
    """They are no business of this tool (A-16)."""
    assert (
        check_param_headers((REGION,), {"region": ("eu",), "other": ("x", "y")}, b'{"region":"eu"}') is None
    )
    assert check_param_headers((), {"other": ("x",)}, None) is None


@given(ENCODABLE, st.integers(-(2**53) + 1, 2**53 - 1), st.booleans())
def test_what_is_mirrored_is_accepted(region: str, count: int, force: bool) -> None:
    """The two directions of the notation fit each other."""
    arguments = json.dumps({"region": region, "page": {"count": count}, "force": force}).encode()
    params = (REGION, COUNT, FORCE)
    received = {
        name.lower().removeprefix("mcp-param-"): (line,) for name, line in mirrored(params, arguments).items()
    }
    assert len(received) == 3
    assert check_param_headers(params, received, arguments) is None


@pytest.mark.parametrize(
    ("filler", "what"),
    [
        (b'"description":"%s"' % (b"d" * 2**20), "bytes"),
        (b'"anyOf":[%s]' % b",".join([b"{}"] * 10_000), "schemas"),
    ],
)
def test_a_schema_is_searched_as_far_as_anybody_means_it_to_be(filler: bytes, what: str) -> None:
    """A larger one costs its tool; without an annotation it is not searched at all (U-08)."""
    head = b'{"properties":{"a":{"type":"string"%s}},' % b',"x-mcp-header":"A"'
    with pytest.raises(InvalidAnnotation, match=what):
        header_params(head + filler + b"}")
    assert without_invalid(head + filler + b"}") == head + filler + b"}"
    assert header_params(b'{"properties":{"a":{"type":"string"}},' + filler + b"}") == ()
