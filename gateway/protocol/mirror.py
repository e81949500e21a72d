"""The notation in which requests are mirrored in headers: values, `x-mcp-header` annotations, Mcp-Param-*.

One file for both directions, so that what is sent and what is compared cannot drift apart (B43).
"""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Raw

from gateway.protocol.call import HeaderParam
from gateway.protocol.jsonrpc import (
    INVALID_PARAMS,
    Json,
    Malformed,
    McpError,
    encode,
    is_null,
    split,
    text_of,
    value,
)

# Header values (U-05, S-12)

_FIELD_VALUE = re.compile(r"[\t\x20-\x7e]*")
_OPEN, _CLOSE = "=?base64?", "?="


def encode_value(text: str) -> str:
    """Return a text as a header value: as it is where a header can carry it, else wrapped in base64."""
    plain = text.isascii() and text.isprintable() and text == text.strip(" ")
    if plain and not (text.startswith(_OPEN) and text.endswith(_CLOSE)):
        return text
    return f"{_OPEN}{b64encode(text.encode()).decode()}{_CLOSE}"


def decode_value(line: str) -> str:
    """Return the text of a header value; raises ValueError, which completes a sentence about the header.

    The markers are exact: what lacks one of them is literal text. Base64 that another encoder would have
    written differently is refused, for two readers could make two things of it.
    """
    text = line.strip(" \t")
    if not is_field_value(text):
        raise ValueError("holds characters outside printable ASCII")
    if len(text) < len(_OPEN) + len(_CLOSE) or not (text.startswith(_OPEN) and text.endswith(_CLOSE)):
        return text
    coded = text[len(_OPEN) : -len(_CLOSE)]
    try:
        decoded = b64decode(coded, validate=True)
    except ValueError:
        raise ValueError("is not base64 between its markers") from None
    if b64encode(decoded).decode() != coded:
        raise ValueError("is not canonical base64 between its markers")
    try:
        return decoded.decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 in base64") from None


def is_field_value(text: str) -> bool:
    """Whether every character may stand in a header's value (S-13)."""
    return (text.isascii() and text.isprintable()) or _FIELD_VALUE.fullmatch(text) is not None


# Mirrored arguments (U-06, U-08, S-14)

_ANNOTATION = "x-mcp-header"
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SAFE_INTEGER = 2**53 - 1
_LONGEST_NUMBER = 64
_LARGEST_SCHEMA = 2**20
_MOST_SCHEMAS = 10_000
_WHOLE = re.compile(r"(-?)0*(0|[1-9][0-9]*)(?:\.0+)?")
_BRACE, _BRACKET = b"{["

_HOLD_A_SCHEMA = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_HOLD_A_LIST = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_HOLD_A_MAP = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"})
"""Keywords whose value is, or holds, schemas. All others hold data; references are not followed."""

_Path: TypeAlias = tuple[str, ...]


class InvalidAnnotation(ValueError):
    """An `x-mcp-header` breaks its rules, so that the tool must not be offered (U-08)."""


class Unsearchable(InvalidAnnotation):
    """A schema that may hold annotations is too large to look for them."""


def header_params(schema: Json) -> tuple[HeaderParam, ...]:
    """Return what an inputSchema annotates with `x-mcp-header`; raises InvalidAnnotation.

    One in which this would take long is Unsearchable, and its tool left out alone as well.

    Raises Malformed when the schema cannot be read, which is looked at only if there may be annotations.
    """
    text = bytes(schema)
    if _ANNOTATION.encode() not in text and b"\\u" not in text:
        return ()
    if len(text) > _LARGEST_SCHEMA:
        raise Unsearchable(f"x-mcp-header stands in an inputSchema of over {_LARGEST_SCHEMA} bytes")
    found: dict[str, HeaderParam] = {}
    for place, (path, position) in enumerate(_schema_positions(_load(text))):
        if place >= _MOST_SCHEMAS:
            raise Unsearchable(f"x-mcp-header stands in an inputSchema of over {_MOST_SCHEMAS} schemas")
        if _ANNOTATION in position:
            param = _annotated(path, position)
            if found.setdefault(param.token.lower(), param) is not param:
                where = _where(param.path)
                raise InvalidAnnotation(f"{where}: x-mcp-header {_brief(param.token)!r} is used twice")
    return tuple(found.values())


def without_invalid(schema: Json) -> Json:
    """Return the schema without those annotations that `header_params` refuses, all else as it was (U-09).

    One that is Unsearchable stays as it is. Raises Malformed when it cannot be read.
    """
    try:
        header_params(schema)
    except Unsearchable:
        return schema
    except InvalidAnnotation:
        root = _load(bytes(schema), number=_spliced)
    else:
        return schema
    seen: set[str] = set()
    for path, position in _schema_positions(root):
        if _ANNOTATION not in position:
            continue
        try:
            token = _annotated(path, position).token.lower()
        except InvalidAnnotation:
            del position[_ANNOTATION]
            continue
        if token in seen:
            del position[_ANNOTATION]
        seen.add(token)
    return encode(root)


def _load(text: bytes, number: Callable[[str], object] | None = None) -> Any:
    """Return a schema decoded, but for its numbers: nobody reads them, and they may be of any size.

    What stands for one is what `number` makes of it.
    """
    try:
        return json.loads(text, parse_int=number or _unread, parse_float=number or _unread)
    except RecursionError:
        raise Malformed("the schema nests too deep") from None
    except ValueError:
        raise Malformed("the schema is not JSON") from None


def _unread(number: str) -> int:
    return 0


def _spliced(number: str) -> Raw:
    return Raw(number.encode())


def _schema_positions(root: Any) -> Iterator[tuple[_Path | None, dict[str, Any]]]:
    """Yield each schema inside a schema, with the chain of `properties` that leads there, if one does."""
    stack: list[tuple[_Path | None, Any]] = [((), root)]
    while stack:
        path, position = stack.pop()
        if isinstance(position, dict):
            yield path, position
            stack.extend(reversed(list(_parts(path, position))))


def _parts(path: _Path | None, position: dict[str, Any]) -> Iterator[tuple[_Path | None, Any]]:
    for keyword, held in position.items():
        if keyword == "properties" and isinstance(held, dict):
            for name, part in held.items():
                yield None if path is None else (*path, name), part
        elif keyword in _HOLD_A_MAP and isinstance(held, dict):
            yield from ((None, part) for part in held.values())
        elif keyword in _HOLD_A_LIST and isinstance(held, list):
            yield from ((None, part) for part in held)
        elif keyword in _HOLD_A_SCHEMA:
            yield None, held


def _annotated(path: _Path | None, position: dict[str, Any]) -> HeaderParam:
    if not path:
        raise InvalidAnnotation("x-mcp-header stands where a chain of properties does not lead")
    token = position[_ANNOTATION]
    if not isinstance(token, str):
        raise InvalidAnnotation(f"{_where(path)}: x-mcp-header is not a string")
    if _TOKEN.fullmatch(token) is None:
        raise InvalidAnnotation(f"{_where(path)}: x-mcp-header {_brief(token)!r} is not a header token")
    match position.get("type"):
        case "string" | "integer" | "boolean" as kind:
            return HeaderParam(token, path, kind)
        case _:
            raise InvalidAnnotation(f"{_where(path)}: x-mcp-header needs type string, integer or boolean")


def _where(path: _Path) -> str:
    return _brief(".".join(path))


def mirrored(params: tuple[HeaderParam, ...], arguments: Json | None) -> dict[str, str]:
    """Return the Mcp-Param-* headers of a call with these arguments.

    Raises McpError for a number that no header can carry exactly (U-06).
    """
    headers: dict[str, str] = {}
    for param, raw in _annotated_values(params, arguments):
        try:
            text = None if raw is None else _rendered(raw)
        except Malformed:
            raise McpError(
                INVALID_PARAMS, f"params.arguments.{_where(param.path)} is a number that no header can carry"
            ) from None
        if text is not None:
            headers[f"Mcp-Param-{param.token}"] = encode_value(text)
    return headers


def check_param_headers(
    params: tuple[HeaderParam, ...], received: Mapping[str, tuple[str, ...]], arguments: Json | None
) -> str | None:
    """Return why the Mcp-Param-* lines do not say what the arguments do, or None (S-14)."""
    for param, raw in _annotated_values(params, arguments):
        problem = _disagreement(param, received.get(param.token.lower(), ()), raw)
        if problem is not None:
            return f"The Mcp-Param-{param.token} header {problem}"
    return None


def _disagreement(param: HeaderParam, lines: tuple[str, ...], raw: Json | None) -> str | None:
    argument = f"params.arguments.{_where(param.path)}"
    if len(lines) > 1:
        return "is there more than once"
    if raw is None or is_null(raw):
        return f"has no counterpart in {argument}" if lines else None
    if not lines:
        return f"is missing beside {argument}" if _is_scalar(raw) else None
    try:
        text = decode_value(lines[0])
    except ValueError as error:
        return str(error)
    return None if _says(param, raw, text) else f"differs from {argument}"


def _says(param: HeaderParam, raw: Json, text: str) -> bool:
    """Whether a header's text is the argument: numbers in their own spelling too, integers by their value."""
    try:
        spelled = _rendered(raw)
    except Malformed:  # too large to be mirrored; its digits still compare
        spelled = bytes(raw).decode()
    if spelled == text:
        return True
    if spelled is None or not _is_number(raw):
        return False
    if bytes(raw) == text.encode():
        return True
    return param.type == "integer" and (whole := _whole(spelled)) is not None and whole == _whole(text)


def _whole(number: str) -> str | None:
    """Return the digits of an integer, 42 for 42.0 too, of any size; None for anything else."""
    match = _WHOLE.fullmatch(number)
    if match is None:
        return None
    return match[2] if match[2] == "0" else match[1] + match[2]


def _rendered(raw: Json) -> str | None:
    """Return a scalar as headers spell it, None for what has no spelling; raises Malformed when out of range.

    A whole number written as a float keeps its fraction: some peers compare the spelling (A-44).
    """
    if not _is_scalar(raw):
        return None
    text = text_of(raw)
    if text is not None:
        return text
    if len(raw) > _LONGEST_NUMBER:
        raise Malformed("the number is out of range")
    scalar = value(raw)
    if isinstance(scalar, bool):
        return "true" if scalar else "false"
    if abs(scalar) > _SAFE_INTEGER:
        raise Malformed("the number is out of range")
    return f"{scalar:.1f}" if isinstance(scalar, float) and scalar.is_integer() else str(scalar)


def _is_scalar(raw: Json) -> bool:
    return memoryview(raw)[0] not in (_BRACE, _BRACKET) and not is_null(raw)


def _is_number(raw: Json) -> bool:
    return memoryview(raw)[0] in b"-0123456789"


def _annotated_values(
    params: tuple[HeaderParam, ...], arguments: Json | None
) -> Iterator[tuple[HeaderParam, Json | None]]:
    """Yield each annotated argument's value, cutting every object on the way only once."""
    cut: dict[_Path, Mapping[str, Json]] = {}
    for param in params:
        raw = arguments
        for depth, name in enumerate(param.path):
            parent = param.path[:depth]
            if parent not in cut:
                cut[parent] = split(raw) if raw is not None and memoryview(raw)[0] == _BRACE else {}
            raw = cut[parent].get(name)
        yield param, raw


def _brief(text: str) -> str:
    return text if len(text) <= 64 else text[:63] + "…"
