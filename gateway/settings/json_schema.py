"""Writes the JSON Schema of a configuration file: what pydantic knows, plus the short forms of a file."""

from typing import Any, TypeAlias

from pydantic import BaseModel

from gateway.settings.values import (
    DURATION_PATTERN,
    SIZE_PATTERN,
    VARIABLE_PATTERN,
    show_duration,
    show_size,
)

Schema: TypeAlias = dict[str, Any]  # a JSON Schema has no narrower type

_VARIABLE: Schema = {"type": "string", "pattern": VARIABLE_PATTERN, "description": "A variable: ${NAME}."}


def json_schema(model: type[BaseModel]) -> dict[str, object]:
    """Return the schema of a file that `model` reads, with its short forms."""
    schema: Schema = model.model_json_schema()
    definitions: Schema = schema.pop("$defs")
    for part in (schema, *definitions.values()):
        part.pop("title", None)
        for name, member in part["properties"].items():
            # pydantic leaves a description out where it repeats the referred one's
            refers_to = definitions.get(str(member.get("$ref")).removeprefix("#/$defs/"), member)
            part["properties"][name] = _member(member, member.get("description", refers_to["description"]))
    for name, part in definitions.items():
        if name not in ("Auth", "Upstream") and not part.get("required"):
            part["type"] = ["object", "null"]  # an empty section means its defaults
    schema["properties"]["endpoints"]["default"] = {"/mcp": {}}
    definitions["Upstream"] = _upstream(definitions["Upstream"])
    definitions["Auth"] = _auth(definitions["Auth"])
    editor_key = {
        "type": "string",
        "description": "Where an editor finds this schema.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "MCP Gateway configuration",
        **schema,
        "properties": {"$schema": editor_key, **schema["properties"]},
        "$defs": {"Variable": _VARIABLE, **definitions},
    }


def _member(member: Schema, description: str) -> Schema:
    """Return a key's schema with its default as a file writes it, and with variables where text is not."""
    described: Schema = {"description": " ".join(description.split())}
    if "default" in member and "$ref" not in member:
        described["default"] = member["default"]
    bare = {key: value for key, value in member.items() if key not in ("description", "default", "title")}
    default = described.get("default")
    if default is not None and bare.get("pattern") == DURATION_PATTERN:
        described["default"] = show_duration(default)
    elif default is not None and bare.get("pattern") == SIZE_PATTERN:
        described["default"] = show_size(default)
    if "patternProperties" in bare:
        bare["additionalProperties"] = False
    return {**described, **_with_variables(bare)}


def _with_variables(part: Schema) -> Schema:
    if "anyOf" in part:
        return {**part, "anyOf": [_with_variables(one) for one in part["anyOf"]]}
    if part.get("type") in ("integer", "boolean") or ("enum" in part and "default" not in part):
        return {"anyOf": [part, {"$ref": "#/$defs/Variable"}]}
    return part


def _upstream(full: Schema) -> Schema:
    """Return the schema of an upstream: its URL alone, or its keys; the prefix is the key by default."""
    properties = full["properties"]
    url = {key: value for key, value in properties["url"].items() if key != "description"}
    return {
        "description": full["description"],
        "anyOf": [
            {"description": "Only its URL.", **url},
            {
                **{key: value for key, value in full.items() if key != "required"},
                "oneOf": [{"required": ["url"]}, {"required": ["command"]}],
                "description": "All of its keys.",
            },
        ],
    }


def _auth(full: Schema) -> Schema:
    """Return the schema of `auth`: a bare word, or exactly one key."""
    properties = full["properties"]
    words = {
        "enum": ["none", "forward"],
        "description": "none = nothing; forward = the caller's own Authorization.",
    }
    bearer = properties["bearer"]
    kinds = [kind for kind in bearer["anyOf"] if kind.get("type") != "null"]
    headers = {key: value for key, value in properties["headers"].items() if key != "default"}
    token = {"description": bearer["description"], "anyOf": kinds}
    forms = [
        _one_key("bearer", token),
        _one_key("headers", {**headers, "minProperties": 1}),
        *(_one_key(key, _reference(properties[key])) for key in ("client_credentials", "token_exchange")),
    ]
    return {"description": full["description"], "anyOf": [words, {"$ref": "#/$defs/Variable"}, *forms]}


def _reference(member: Schema) -> Schema:
    """Return the schema of a part that may be left out, as one that is there."""
    (reference,) = (one for one in member["anyOf"] if "$ref" in one)
    return {"description": member["description"], **reference}


def _one_key(key: str, value: Schema) -> Schema:
    return {"type": "object", "properties": {key: value}, "required": [key], "additionalProperties": False}
