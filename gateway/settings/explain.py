"""Says in plain words, and at the right line, what pydantic found wrong with a document."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeGuard, get_args

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from gateway.settings.document import Document, Path, is_like_a_secret, show_path

_SECRET_PLACES = frozenset(
    {
        "args",
        "auth",
        "client_id",
        "client_secret",
        "describe",
        "documentation",
        "env",
        "headers",
        "introspection_url",
        "issuer",
        "jwks_url",
        "key_header",
        "keys",
        "proxy",
        "public_url",
        "redis",
        "secrets",
        "url",
    }
)
"""Keys below which a value is not repeated: a credential belongs there, or is easily pasted there."""
_WORDS = {
    "string_type": "expected text: put the value in quotes",
    "string_too_short": "expected at least one character",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "int_parsing_size": "too large: expected a smaller number",
    "finite_number": "expected a whole number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "list_type": "expected a list, such as [a, b]",
    "mapping_type": "expected a mapping of keys to values",
    "dict_type": "expected a mapping of keys to values",
    "model_type": "expected a mapping of keys to values",
    "literal_error": "expected {expected}",
    "greater_than_equal": "expected at least {ge}",
    "less_than_equal": "expected at most {le}",
}

DERIVED: dict[str, JsonValue] = {"x-written": False}
"""Marks a field that follows from others and has no key in a file."""

Later = Mapping[tuple[str, ...], str]
"""Path with * for any key -> what is said about a key that a later version will know."""


def explain(error: ValidationError, document: Document, model: type[BaseModel], later: Later) -> None:
    """Report every error at its place, leaving out what follows from a value that could not be read."""
    for detail in error.errors(include_url=False, include_input=False):
        path = tuple(part for part in detail["loc"] if part != "[key]")
        if path and not (document.is_unreadable(path) and detail["type"] != "extra_forbidden"):
            document.report(*_said(detail, path, document, model, later))


def _said(
    detail: ErrorDetails, path: Path, document: Document, model: type[BaseModel], later: Later
) -> tuple[Path, str]:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            return path, unknown_key(path, model, later)
        case "missing":
            return path[:-1], f"`{path[-1]}` is missing"
        case "value_error":
            message = str(context["error"])
        case kind:
            message = _WORDS.get(kind, detail["msg"]).format(**context)
    about_key = "[key]" in detail["loc"]
    return path, message if about_key else message + _found(path, document)


def _found(path: Path, document: Document) -> str:
    """Return the value as the file has it, unless it may be a secret (B42)."""
    source = document.source(path)
    written = document.written(path)
    if source is None or len(source) > 60 or is_like_a_secret(source):
        return ""
    if _SECRET_PLACES.intersection(map(str, (*path, *written))):
        return ""
    return f", found {source!r}" if source else ", found nothing"


def unknown_key(path: Path, model: type[BaseModel], later: Later) -> str:
    """Return what to say about a key that no model has: the nearest known one, if there is one."""
    *parents, key = map(str, path)
    for pattern, message in later.items():
        if len(pattern) == len(path) and all(a in ("*", str(b)) for a, b in zip(pattern, path, strict=True)):
            return message
    known = _keys_at(model, parents)
    plain = key.lower().replace("-", "_")
    stem = plain.rstrip("s")
    # What is here with one letter more or less is meant, whatever is elsewhere.
    if one := next((one for one in known if one.rstrip("s") == stem), None):
        return f"unknown key; did you mean `{one}`?"
    places = sorted(_places(model), key=len)  # the nearest to the top first
    inside = [place for place in places if parents and place[: len(parents)] == tuple(parents)]
    within = [
        show_path((*place, one))
        for place in inside
        for one in _keys_at(model, place)
        if one.rstrip("s") == stem
    ]
    elsewhere = within or [show_path((*place, key)) for place in places if key in _keys_at(model, place)]
    if elsewhere:
        return f"unknown key here; it belongs at {' or '.join(elsewhere[:3])}"
    near = nearest(plain, known) or _within(plain, known)
    return f"unknown key{near}" if near else f"unknown key; known here: {', '.join(known)}"


def _within(name: str, known: Iterable[str]) -> str:
    """Return the known name of which another one has more words, such as `required_scopes` of `scopes`."""
    words = name.split("_")
    found = next((one for one in known if one in words), None)
    return f"; did you mean `{found}`?" if found else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` when a known name is near, else nothing."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


def _keys_at(model: type[BaseModel], place: Sequence[str | int]) -> list[str]:
    inner: object = model
    for part in place:
        inner = _inside(inner, str(part))
    if not _is_model(inner):
        return []
    return [name for name, field in inner.model_fields.items() if field.json_schema_extra != DERIVED]


def _inside(kind: object, key: str) -> object:
    """Return the type of a member: of a model's field, or of a mapping's or list's elements."""
    if _is_model(kind):
        return _without_none(kind.model_fields[key].annotation) if key in kind.model_fields else None
    return next((one for one in reversed(get_args(kind)) if one is not type(None)), None)


def _without_none(kind: object) -> object:
    """Return the model of one that may be left out."""
    kinds = [one for one in get_args(kind) if one is not type(None)]
    return kinds[0] if len(kinds) == 1 and _is_model(kinds[0]) and type(None) in get_args(kind) else kind


def _is_model(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _places(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every mapping with fixed keys, `NAME` standing for a free key."""
    yield path
    for name, field in model.model_fields.items():
        inner = _without_none(field.annotation)
        below: tuple[str, ...] = (*path, name)
        if not _is_model(inner):
            below = (*below, "NAME")
        element = inner if _is_model(inner) else _inside(inner, "")
        if _is_model(element):
            yield from _places(element, below)
