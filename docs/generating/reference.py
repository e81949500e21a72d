"""Makes docs/reference.md of the configuration's JSON Schema: every key, its values, default and meaning."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gateway.config import schema
from gateway.reloading import applies_at_once
from gateway.settings.values import DURATION_PATTERN, SIZE_PATTERN

Schema: TypeAlias = Mapping[str, Any]  # a JSON Schema has no narrower type

_HEAD = """\
# Configuration reference

<!-- Written by `make docs` from the models of the configuration: change it there. -->

Every key of the configuration file. [configuration.md](configuration.md) says what belongs together and why,
[`config/gateway.example.yaml`](../config/gateway.example.yaml) holds every key at its place, and
`mcp-gateway schema` prints the same for editors.

A key is written with its path: `cache.memory` is `memory` below `cache`. `NAME` is a name of your choice, and
`[]` one element of a list. Durations are written `250ms`, `30s`, `5m` or `24h`, sizes `512B`, `64KiB` or
`64MiB`, rates `100/s`, `600/m`, `1000/h` or `10000/d`. A secret is text, best as `${VARIABLE}`, or
`{file: /run/secrets/x}`; `${VARIABLE}` works in every other value, too. A section that is left out, or empty,
means its defaults.

*Reload* says whether a reload applies a change of the key: *no* is what a process keeps until it is started again, and
*yes, but with Redis* what it keeps where `cache.redis` is set. What waits is named in the log and the status.
"""
_PLAIN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9 ._:/-]*")
_NUMBER = re.compile(r"[0-9.]+")
"""A text that YAML would take for a number."""


@dataclass(slots=True)
class Section:
    """One table: what stands below a path."""

    path: str
    about: str
    rows: list[tuple[str, str, str, str, str]] = field(default_factory=list)


def page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *(_table(section) for section in sections(schema()))])


def sections(whole: Schema) -> Iterator[Section]:
    """Yield the tables, a part's own before those of what stands below it."""
    yield from _Reader(whole["$defs"]).sections("", whole)


def _table(section: Section) -> str:
    lines = [f"## {f'`{section.path}`' if section.path else 'At the top'}", ""]
    if section.path:
        lines += [section.about, ""]
    lines += ["| Key | Value | Default | Meaning | Reload |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in section.rows]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


class _Reader:
    """Follows the references of a schema."""

    def __init__(self, definitions: Schema) -> None:
        self._definitions = definitions

    def sections(self, path: str, part: Schema) -> Iterator[Section]:
        section = Section(path, part["description"])
        below: list[tuple[str, Schema]] = []
        required = part.get("required", ())
        for name, member in self._members(part).items():
            if name == "$schema":
                continue
            place = f"{path}.{name}" if path else name
            inner = self._inner(member)
            default = "required" if name in required else _default(member)
            value = self._value(member)
            if inner is not None:
                where = place + inner[0]
                value = f"{value}, [below](#{_anchor(where)})" if inner[0] else f"[below](#{_anchor(where)})"
                below.append((where, inner[1]))
                default = default if inner[0] or default == "required" else ""
            applied = "" if inner is not None and not inner[0] else _applied(place)
            section.rows.append((f"`{place}`", value, default, member["description"], applied))
        yield section
        for place, one in below:
            yield from self.sections(place, one)

    def _members(self, part: Schema) -> Schema:
        """Return the keys of a part; of forms that exclude each other, those of all."""
        if "properties" in part:
            members: Schema = part["properties"]
            return members
        return {
            name: member
            for form in part["anyOf"]
            for name, member in self._resolved(form).get("properties", {}).items()
        }

    def _inner(self, member: Schema) -> tuple[str, Schema] | None:
        """Return the part with fixed keys that a key leads to, and what stands between."""
        if "patternProperties" in member:
            (element,) = member["patternProperties"].values()
            inner = self._inner(element)
            return inner and (".NAME" + inner[0], inner[1])
        if isinstance(member.get("additionalProperties"), Mapping):
            inner = self._inner(member["additionalProperties"])
            return inner and (".NAME" + inner[0], inner[1])
        if "items" in member:
            inner = self._inner(member["items"])
            return inner and ("[]" + inner[0], inner[1])
        if "$ref" in member and not _is_variable(member):
            return "", self._resolved(member)
        return None

    def _resolved(self, part: Schema) -> Schema:
        if "$ref" in part:
            found: Schema = self._definitions[part["$ref"].removeprefix("#/$defs/")]
            return found
        return part

    def _value(self, member: Schema) -> str:
        """Return in words what a key takes."""
        if "anyOf" in member:
            if _is_secret(member):
                return "secret"
            kinds = [
                self._value(one) for one in member["anyOf"] if not _is_variable(one) and not _is_null(one)
            ]
            *others, last = dict.fromkeys(kinds)
            return f"{', '.join(others)} or {last}" if others else last
        if "enum" in member:
            return ", ".join(f"`{one}`" for one in member["enum"])
        pattern = member.get("pattern")
        if pattern == DURATION_PATTERN:
            return "duration"
        if pattern == SIZE_PATTERN:
            return "size"
        match member.get("type"):
            case "boolean":
                return "`true`, `false`"
            case "integer" | "number":
                return f"number{_bounds(member)}"
            case "array":
                return f"list of {_plural(self._value(member['items']))}"
            case "object":
                return self._mapping(member)
            case "string" if pattern is not None:
                return _text(pattern)
        return "section" if "$ref" in member else "text"

    def _mapping(self, member: Schema) -> str:
        inside = member.get("patternProperties") or {"": member.get("additionalProperties")}
        (element,) = inside.values()
        value = self._value(element) if isinstance(element, Mapping) else "text"
        return f"mapping of names to {_plural(value)}"


def _text(pattern: str) -> str:
    """Return what a text with a pattern is, where there is a word for it."""
    words = {"[hH][tT][tT][pP]": "URL", "[0-9]+/[smhd]": "rate"}
    return next((word for start, word in words.items() if pattern.startswith(f"^(?:{start}")), "text")


def _plural(value: str) -> str:
    plurals = {
        "text": "texts",
        "section": "sections",
        "secret": "secrets",
        "duration": "durations",
        "URL": "URLs",
    }
    return plurals.get(value, value)


def _bounds(member: Schema) -> str:
    least, most = member.get("minimum"), member.get("maximum")
    if least is None:
        return ""
    return f" {least} to {most}" if most is not None else f", at least {least}"


def _default(member: Schema) -> str:
    if "default" not in member:
        return ""
    return "" if (value := member["default"]) is None else f"`{_shown(value)}`"


def _applied(path: str) -> str:
    """Return what a reload does about a key."""
    if applies_at_once(path, redis=True):
        return "yes"
    return "yes, but with Redis" if applies_at_once(path) else "no"


def _shown(value: object) -> str:
    """Return a value as YAML has it."""
    match value:
        case bool():
            return str(value).lower()
        case list():
            return f"[{', '.join(_shown(one) for one in value)}]"
        case dict():
            return f"{{{', '.join(f'{key}: {_shown(one)}' for key, one in value.items())}}}"
        case str() if not _PLAIN.fullmatch(value) or _NUMBER.fullmatch(value):
            return f'"{value}"'
    return str(value)


def _anchor(path: str) -> str:
    """Return the anchor that a heading with this path gets."""
    return "".join(letter for letter in path.lower() if letter.isalnum() or letter in "-_")


def _is_variable(part: Schema) -> bool:
    return bool(part.get("$ref") == "#/$defs/Variable")


def _is_null(part: Schema) -> bool:
    return bool(part.get("type") == "null")


def _is_secret(member: Schema) -> bool:
    return any("file" in form.get("properties", {}) for form in member["anyOf"])
