"""Turns the text of a configuration file into plain data that knows the line of every value.

The text is parsed first and variables are put into its strings afterwards, once, so that no value of a
variable can become YAML or name another variable (B41). Every problem is collected, none stops the reading.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gateway.settings import syntax

Path: TypeAlias = tuple[str | int, ...]

MOST_BYTES = 2**20
"""The largest file that is read: parsing takes a minute for every few megabytes."""
TOO_LARGE = "the file is larger than 1 MiB: that is no configuration of this gateway"
MASKED_FROM = 6
"""Characters from which a secret is hidden wherever it stands in a text, inside a word, too."""
_MOST_NODES = 200_000  # aliases of aliases would otherwise grow without bound
_TAG = "tag:yaml.org,2002:"
_CREDENTIALS = frozenset({"auth", "headers", "secrets"})
_ODD_NUMBER = re.compile(r"[-+]?(?:0[0-9A-Za-z_]+|[0-9]+_[0-9_]*)")
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_EXTRA_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LETTERS = re.compile(r"[\W_]+")
_WORD = re.compile(r"[^\s`'\"(),:;/]+")
_BARE = re.compile(r"(?<![^ ])\$([A-Za-z_][A-Za-z0-9_]*)(?![^ ])")
_VARIABLE = re.compile(
    r"\$\$"
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<fallback>:-(?P<default>(?:\$\$|\$(?![{$])|[^$}])*))?\}"
    r"|(?P<odd>\$\{)"
)


_CREDENTIAL = re.compile(
    r"(?i)mcpgw_|\beyJ[A-Za-z0-9_-]{6}|\b(?:bearer|basic|dpop)\s+\S|://[^\s/]*@|://\S*\?"
    r"|(?-i:-----BEGIN )"
)
_RANDOM = re.compile(r"(?=[A-Za-z_.+/=-]*[0-9])(?=[0-9_.+/=-]*[A-Za-z])[A-Za-z0-9_.+/=-]{20,}")
"""A word that long, of letters and digits, is seldom one that somebody made up."""


def is_like_a_secret(text: str) -> bool:
    """Whether a text may be a credential that was pasted in a wrong place, by its looks (B42)."""
    return bool(_CREDENTIAL.search(text) or _RANDOM.search(text))


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a file, said so that it can be mended."""

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


class ConfigError(Exception):
    """A configuration that cannot be used, with everything that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class Unreadable:
    """Stands where a value could not be read; its problem is already known."""


UNREADABLE = Unreadable()


@dataclass(slots=True)
class Document:
    """A file's data, where each part of it stands, and what is wrong so far."""

    file: str
    data: object = None
    problems: list[Problem] = field(default_factory=list)
    lines: dict[Path, int] = field(default_factory=dict)
    sources: dict[Path, str] = field(default_factory=dict)
    """Path of a scalar -> its text before variables were put in."""
    moved: dict[Path, Path] = field(default_factory=dict)
    """Path in the data -> where that part stands in the file, when it was translated."""
    variables: dict[str, str] = field(default_factory=dict)
    """The variables that were put in, with their values."""

    def report(self, path: Path, message: str) -> None:
        """Note what is wrong at a path of the data."""
        place = self.written(path)
        problem = Problem(self.file, self.lines.get(place, 1), show_path(place), message)
        if problem not in self.problems:
            self.problems.append(problem)

    def mistakes(self) -> list[Problem]:
        """Return what is wrong, from top to bottom, with names of variables in the place of values (B42).

        A value may have become a part of a key, or of what a message quotes.
        """
        return [
            replace(problem, path=self._unfilled(problem.path), message=self._unfilled(problem.message))
            for problem in sorted(self.problems, key=lambda problem: problem.line)
        ]

    def _unfilled(self, text: str) -> str:
        for name, value in sorted(self.variables.items(), key=lambda one: -len(one[1])):
            if len(value) >= MASKED_FROM:
                text = _without(text, value, f"${{{name}}}")
        return text

    def written(self, path: Path) -> Path:
        """Return the deepest part of a path that stands in the file."""
        path = self._in_file(path)
        while path and path not in self.lines:
            path = path[:-1]
        return path

    def source(self, path: Path) -> str | None:
        """Return the text of a scalar as the file has it, with the names of its variables."""
        return self.sources.get(self._in_file(path))

    def _in_file(self, path: Path) -> Path:
        for end in range(len(path), 0, -1):
            if path[:end] in self.moved:
                return self.moved[path[:end]] + path[end:]
        return path

    def is_unreadable(self, path: Path) -> bool:
        """Whether a value at a path, above it or right inside it could not be read: no more is said then."""
        value = self.data
        for part in path:
            if isinstance(value, Mapping) and isinstance(part, str):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int):
                value = value[part]
            else:
                break
        inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        return value is UNREADABLE or any(one is UNREADABLE for one in inside)


def _without(text: str, value: str, name: str) -> str:
    """Return a text with a name in the place of a value, and of words that were made of it or are a part.

    A message may propose what a good name would be: in another case, with other signs, or cut.
    """
    whole = _LETTERS.sub("", value).casefold()

    def put_in(word: re.Match[str]) -> str:
        letters = _LETTERS.sub("", word[0]).casefold()
        told = len(whole) >= MASKED_FROM and whole in letters
        return name if told or (len(letters) >= 2 * MASKED_FROM and letters in whole) else word[0]

    return _WORD.sub(put_in, text.replace(value, name))


def show_path(path: Path) -> str:
    """Return a YAML path for people: `upstreams.gh.tools.allow[0]`."""
    text = ""
    for index, part in enumerate(path):
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = part if re.fullmatch(r"[\w/$-]+", part) else json.dumps(part, ensure_ascii=False)
            of_a_key = path[index - 1] == "keys" if index else False
            if "://" in part or _CREDENTIAL.search(part) or (of_a_key and _RANDOM.search(part)):
                shown = '"…"'  # in the place of a key it may be a credential all the same (B42)
            text += f".{shown}" if text else shown
    return text


def bare_variables(document: Document, env: Mapping[str, str]) -> Iterator[str]:
    """Yield what to say about credentials with a `$NAME` in them, which without braces is no variable.

    A name that is not set may be a part of the secret: it is not repeated (B42).
    """
    for path, text in document.sources.items():
        hit = _BARE.search(text) if _CREDENTIALS.intersection(path) else None
        if hit:
            name = hit[1] if hit[1] in env else "NAME"
            yield f"{show_path(path)}: `${name}` without braces is text; did you mean ${{{name}}}?"


def read(
    text: str, *, file: str, env: Mapping[str, str], verbatim: Callable[[object], bool] = lambda _: False
) -> Document:
    """Return the document that a YAML or JSON text is; raises ConfigError when it is neither.

    `verbatim` says of the data whether its variables are somebody else's: then they stay as they are written.
    """
    if len(text) > MOST_BYTES or len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise ConfigError([Problem(file, 0, "", TOO_LARGE)])
    yaml = YAML(typ="safe", pure=True)
    source = _as_yaml(text)
    try:
        root = yaml.compose(source)
    except MarkedYAMLError as error:
        if json_says := syntax.said_of_json(_EXTRA_COMMA.sub(_blanked, _COMMENT.sub(_blanked, source))):
            line, reason = json_says
            raise ConfigError([Problem(file, line, "", f"not valid JSON: {reason}")]) from None
        line, reason = syntax.said(error, source)
        raise ConfigError([Problem(file, line, "", f"not valid YAML: {reason}")]) from None
    except (YAMLError, UnicodeError):
        raise ConfigError(
            [Problem(file, 0, "", "the text holds characters that YAML does not allow")]
        ) from None
    except RecursionError:
        raise ConfigError([Problem(file, 0, "", "the file nests too deep")]) from None
    if root is None:
        raise ConfigError([Problem(file, 0, "", "the file is empty: it needs at least `upstreams`")])
    document = Document(file)
    document.data = _Reader(document, None, yaml).value(root, ())
    if not verbatim(document.data):
        document = Document(file)
        document.data = _Reader(document, env, yaml).value(root, ())
    return document


def _as_yaml(text: str) -> str:
    """Return JSON in the subset that YAML reads the same way; other text as it is.

    Editors allow comments and commas too many in their JSON: those become spaces, so that lines stay lines.
    """
    text = text.removeprefix("\ufeff")
    if text.lstrip()[:1] not in ("{", "/"):
        return text
    plain = _EXTRA_COMMA.sub(_blanked, _COMMENT.sub(_blanked, text))
    if not plain.lstrip().startswith("{"):
        return text
    try:
        json.loads(plain)
    except (ValueError, RecursionError):
        return plain if text.lstrip().startswith("/") else text
    text = plain
    # In valid JSON a raw tab is always space between tokens, and these characters only stand inside strings.
    return re.sub(
        "[\x7f-\x9f\u2028\u2029\ufeff]", lambda hit: f"\\u{ord(hit[0]):04x}", text.replace("\t", " ")
    )


def _blanked(hit: re.Match[str]) -> str:
    """Return spaces for what is no string, line breaks kept."""
    return hit[0] if hit[0].startswith('"') else re.sub(r"[^\n]", " ", hit[0])


class _Reader:
    """One walk over the nodes of a file; without an `env` the variables stay as they are written."""

    def __init__(self, document: Document, env: Mapping[str, str] | None, yaml: YAML) -> None:
        self._document = document
        self._env = env
        self._yaml = yaml
        self._seen = 0
        self._open: set[int] = set()

    def value(self, node: Node, path: Path) -> object:
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        self._seen += 1
        if self._seen > _MOST_NODES:
            raise ConfigError([Problem(self._document.file, 0, "", "the file is too large")])
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            self._document.report(path, "an alias stands inside what it refers to")
            return UNREADABLE
        self._open.add(id(node))
        try:
            if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
                return self._mapping(node, path)
            if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
                return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))
        self._document.report(path, "a YAML tag (!…) means nothing here")
        return UNREADABLE

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, object]:
        members: dict[str, object] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            line = key_node.start_mark.line + 1
            if key in first:
                place = show_path((*path, key))
                self._document.problems.append(
                    Problem(self._document.file, line, place, f"the key stands on line {first[key]} already")
                )
                continue
            first[key] = line
            self._document.lines[(*path, key)] = line
            members[key] = self.value(value_node, (*path, key))
        for key, value_node in self._merged(node, path):
            if key not in members:
                members[key] = self.value(value_node, (*path, key))
        return members

    def _merged(self, node: MappingNode, path: Path) -> Iterator[tuple[str, Node]]:
        """Yield what `<<: *anchor` brings in, nearest first; a key of the mapping itself goes before it."""
        for key_node, value_node in node.value:
            if key_node.tag != f"{_TAG}merge":
                continue
            sources = value_node.value if isinstance(value_node, SequenceNode) else [value_node]
            for source in sources:
                if not isinstance(source, MappingNode) or id(source) in self._open:
                    self._document.report(path, "expected an alias of a mapping behind <<")
                    continue
                self._open.add(id(source))
                try:
                    for inner, inner_value in source.value:
                        if inner.tag != f"{_TAG}merge" and (key := self._key(inner, path)) is not None:
                            yield key, inner_value
                    yield from self._merged(source, path)
                finally:
                    self._open.discard(id(source))

    def _key(self, node: Node, path: Path) -> str | None:
        if not isinstance(node, ScalarNode):
            self._document.report(path, "expected a plain key")
            return None
        key = self._interpolated(node.value, path)
        return key if isinstance(key, str) else None

    def _scalar(self, node: ScalarNode, path: Path) -> object:
        self._document.sources[path] = node.value
        kind = str(node.tag).removeprefix(_TAG)
        try:
            match kind:
                case "str" | "timestamp":
                    return self._interpolated(node.value, path)
                case "null":
                    return None
                case "bool":
                    return bool(self._yaml.constructor.construct_yaml_bool(node))
                case "int" if _ODD_NUMBER.fullmatch(node.value):
                    return self._interpolated(node.value, path)  # no size or count is meant by 0x10 or 010
                case "int":
                    return int(self._yaml.constructor.construct_yaml_int(node))
                case "float":
                    return float(self._yaml.constructor.construct_yaml_float(node))
        except (ValueError, KeyError, YAMLError):
            self._document.report(path, "this is no number" if kind != "bool" else "expected true or false")
            return UNREADABLE
        self._document.report(path, "a YAML tag (!…) means nothing here")
        return UNREADABLE

    def _interpolated(self, text: str, path: Path) -> str | Unreadable:
        """Return a string with its variables put in."""
        complaints: list[str] = []
        if _SURROGATE.search(text):
            # JSON writes an emoji as two escapes, which YAML takes for two characters.
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
            if _SURROGATE.search(text):
                complaints.append("half a surrogate pair (\\ud800 to \\udfff) is no text")

        env = self._env
        if env is None:
            for complaint in complaints:
                self._document.report(path, complaint)
            return UNREADABLE if complaints else text

        def put_in(hit: re.Match[str]) -> str:
            if hit[0] == "$$":
                return "$"
            if hit["odd"]:
                complaints.append(
                    "after ${ expected NAME} or NAME:-default}, a default without ${; $${ is a literal ${"
                )
                return ""
            name = hit["name"]
            value = env.get(name)
            if hit["fallback"] and not value:
                return hit["default"].replace("$$", "$")
            if value is None:
                complaints.append(f"the variable {name} is not set: set it, or write ${{{name}:-default}}")
                return ""
            if _SURROGATE.search(value):
                complaints.append(f"the variable {name} is not valid text")
                return ""
            if not value and _CREDENTIALS.intersection(path):
                complaints.append(
                    f"the variable {name} is empty: a credential made of it would be no credential"
                )
            self._document.variables[name] = value
            return value

        result = _VARIABLE.sub(put_in, text)
        for complaint in complaints:
            self._document.report(path, complaint)
        return UNREADABLE if complaints else result
