"""Translates the servers file of a desktop client or an editor into the gateway's own configuration.

Claude, Cursor, Windsurf, Gemini and others keep `mcpServers`, VS Code keeps `servers` and `inputs`, in its
settings below `mcp`. Each has variables of its own, so such a file is read as it stands, and what means a
variable in an editor is put in here; a `$$` is two dollars there.
"""

import glob
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path as FilePath
from typing import Final

from gateway.settings.document import MOST_BYTES, UNREADABLE, Document, Path, show_path
from gateway.settings.reading import content_of
from gateway.settings.values import slug

Warn = Callable[[str], None]

_SHELVES: tuple[Path, ...] = (("mcpServers",), ("servers",), ("mcp", "servers"), ("mcp", "mcpServers"))
_EDITOR_FOLDERS = frozenset({".vscode", ".cursor", ".gemini", ".mcp", ".roo", ".kiro", ".junie"})
"""Folders of a project in which its servers file lies."""
_URL_KEYS: Final = ("url", "httpUrl", "serverUrl")
_HTTP_TYPES = ("http", "streamable-http", "streamableHttp", "streamable_http")
_TYPE_KEYS = ("type", "transport", "transportType")
_DENIES = ("disabledTools", "excludeTools")
_ALLOWS = ("includeTools", "enabledTools")
_SAYS_NOTHING = frozenset({*_TYPE_KEYS, "disabled", "enabled", "description", "gallery", "version"})
_WHY_IGNORED: Mapping[str, str] = {
    "timeout": "clients do not agree on its unit; the gateway's `timeout` is 30s",
    "alwaysAllow": "the client asks its user, not the gateway",
    "autoApprove": "the client asks its user, not the gateway",
    "trust": "the client asks its user, not the gateway",
    "auth": "the gateway logs in nowhere by itself: give the server a token under headers",
    "oauth": "the gateway logs in nowhere by itself: give the server a token under headers",
    "headersHelper": "the gateway runs no program for them: give the server a token under headers",
}
_NAMED = 8

VARIABLE: Final = re.compile(
    r"\$\{(input:[^${}\n]*|/|[A-Za-z_][A-Za-z0-9_]*(?::-[^${}\n]*|:[A-Za-z0-9_./-]*(?::-[^${}\n]*)?)?)\}"
)
"""What some client takes for a variable; anything else between the braces is text, of a password maybe."""
_NAME = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?")
_WORD = re.compile(r"[A-Za-z0-9_.@+-]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SHELL = re.compile(r"[\"'`|&;<>*?]")
_ENV_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=(.*)")


@dataclass(frozen=True, slots=True)
class Variable:
    """What `${…}` stands for in an editor's file: a variable, or a question that the editor asks its user."""

    name: str
    """The variable that the gateway reads; for a question it is named after its id."""
    default: str | None = None
    asked: str | None = None
    """The id of the question."""


@dataclass(slots=True)
class Server:
    """One server of such a file: `upstream` is what the gateway calls it, with its variables still in it."""

    name: str
    key: str
    place: Path
    upstream: object
    from_file: frozenset[str] = frozenset()
    """Names in its `env` that come from its envFile: their values hold no variables."""
    env_file: str | None = None
    remarks: list[str] = field(default_factory=list)
    """What was changed or left out, each with the path it is about."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an editor's variables are about."""

    env: Mapping[str, str]
    workspace: FilePath
    inputs: Mapping[str, str | None]
    """Id of a question -> its default."""

    def meant(self, inside: str) -> str | Variable | None:
        """Return what `${inside}` means: a text, a variable, or None for what only the editor knows."""
        match inside:
            case "workspaceFolder" | "workspaceRoot":
                return str(self.workspace)
            case "workspaceFolderBasename":
                return self.workspace.name
            case "userHome":
                return str(FilePath.home())
            case "pathSeparator" | "/":
                return "/"
        if inside.startswith("input:"):
            id = inside.removeprefix("input:")
            return Variable(input_variable(id), self.inputs.get(id), id)
        name = _NAME.fullmatch(inside)
        return None if name is None else Variable(name[1], name[2])

    def filled(self, text: str, *, credential: bool = False) -> str:
        """Return a text with its variables put in; raises ValueError with what is wrong, without values."""
        complaints: list[str] = []

        def put_in(hit: re.Match[str]) -> str:
            meant = self.meant(hit[1])
            if meant is None:
                complaints.append(unknown(hit[1]))
                return ""
            if isinstance(meant, str):
                return meant
            value = self.env.get(meant.name) or (self.env.get(meant.name) if meant.default is None else None)
            if value is None:
                value = meant.default
            if value is None:
                complaints.append(_unset(meant))
                return ""
            if not value and credential:
                complaints.append(
                    f"the variable {meant.name} is empty: a credential made of it would be no credential"
                )
            return value

        result = VARIABLE.sub(put_in, text)
        if complaints:
            raise ValueError("; ".join(dict.fromkeys(complaints)))
        return result


def unknown(inside: str) -> str:
    """Return what to say of a variable that only the editor knows."""
    return f"${{{inside[:64]}}} is known to the editor only: write what it stands for"


def _unset(variable: Variable) -> str:
    if variable.asked is not None:
        return (
            f"the editor asks its user for the input {variable.asked}; the gateway reads the variable "
            f"{variable.name}: set it"
        )
    return f"the variable {variable.name} is not set: set it, or write ${{{variable.name}:-default}}"


def input_variable(id: str) -> str:
    """Return the variable that is read where an editor would ask its user: `github-token` -> GITHUB_TOKEN."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", id).strip("_").upper() or "INPUT"
    return name if name[0].isalpha() else f"INPUT_{name}"


def shelf(data: object) -> Path | None:
    """Return where the servers stand in the data, None when it is no editor's file."""
    if not isinstance(data, Mapping) or "upstreams" in data:
        return None
    for path in _SHELVES:
        inside: object = data
        for name in path:
            inside = inside[name] if isinstance(inside, Mapping) and name in inside else UNREADABLE
        if isinstance(inside, Mapping) or (inside is not UNREADABLE and path == ("mcpServers",)):
            return path
    return None


def is_bare(data: object) -> bool:
    """Whether the data is an editor's file and no configuration of the gateway."""
    return shelf(data) is not None


def translate(
    document: Document,
    own_keys: frozenset[str],
    warn: Warn,
    *,
    env: Mapping[str, str],
    folder: FilePath,
) -> None:
    """Put the gateway's form of the servers, variables put in, in the place of the document's data."""
    around = surroundings(document.data, env, folder)
    found = list(servers(document, around, own_keys, warn))
    for server in found:
        for remark in server.remarks:
            warn(remark)
        _fill(document, server, around)
    document.moved["upstreams",] = shelf(document.data) or ()
    document.data = {"upstreams": {server.key: server.upstream for server in found}}


def surroundings(data: object, env: Mapping[str, str], folder: FilePath) -> Surroundings:
    """Return what the variables of a file in this folder are about."""
    folder = folder.absolute()
    workspace = folder.parent if folder.name in _EDITOR_FOLDERS else folder
    inputs: dict[str, str | None] = {}
    for one in _questions(data):
        if isinstance(one, Mapping) and isinstance(id := one.get("id"), str):
            default = one.get("default")
            inputs[id] = default if isinstance(default, str) and default else None
    return Surroundings(env, workspace, inputs)


def _questions(data: object) -> list[object]:
    """Return the `inputs` that stand beside the servers."""
    place = shelf(data)
    beside: object = data
    for name in () if place is None else place[:-1]:
        beside = beside[name] if isinstance(beside, Mapping) else None
    found = beside.get("inputs") if isinstance(beside, Mapping) else None
    return found if isinstance(found, list) else []


def servers(
    document: Document, around: Surroundings, own_keys: frozenset[str], warn: Warn
) -> Iterator[Server]:
    """Yield the servers that are not disabled, in the file's order; what is wrong goes to the document."""
    place = shelf(document.data)
    assert place is not None
    found = document.data
    _look_beside(document, place, own_keys, warn)
    for name in place:
        assert isinstance(found, Mapping)
        found = found[name]
    if not isinstance(found, Mapping):
        document.report(place, "expected a mapping of names to servers")
        return
    taken: set[str] = set()
    for name, server in found.items():
        at = (*place, name)
        if isinstance(server, Mapping) and (server.get("disabled") is True or server.get("enabled") is False):
            warn(f"{show_path(at)} is disabled and left out")
            continue
        key = _key(name, taken)
        taken.add(key)
        document.moved["upstreams", key] = at
        one = _server(document, Server(name, key, at, server), around)
        if key != name:
            one.remarks.insert(
                0, f"{show_path(at)} becomes the upstream {key}: its tools are named after that"
            )
        yield one


def _look_beside(document: Document, place: Path, own_keys: frozenset[str], warn: Warn) -> None:
    """Say what else the file holds that is not read."""
    assert isinstance(document.data, Mapping)
    ignored = []
    for key in document.data:
        if key in own_keys:
            document.report(
                (key,), f"{place[0]} stands alone: call it `upstreams` to use the gateway's own keys"
            )
        elif key not in (place[0], "inputs", "$schema"):
            ignored.append(show_path((key,)))
    if ignored:
        more = f" and {len(ignored) - _NAMED} more" if len(ignored) > _NAMED else ""
        verb = "is" if len(ignored) == 1 else "are"
        shown = ", ".join(ignored[:_NAMED])
        warn(f"{shown}{more} {verb} ignored: only {show_path(place)} is read from such a file")


def _key(name: str, taken: set[str]) -> str:
    """Return a valid key that no other server has."""
    key = base = slug(name)
    number = 2
    while key in taken:
        key = f"{base[: 30 - len(str(number))]}-{number}"
        number += 1
    return key


def _server(document: Document, server: Server, around: Surroundings) -> Server:
    """Return a server with its members turned into those of an upstream."""
    members = server.upstream
    if not isinstance(members, Mapping):
        return server
    kind = next((members[key] for key in _TYPE_KEYS if key in members), None)
    if kind not in (None, "stdio", "sse", *_HTTP_TYPES):
        document.report(server.place, "this `type` is not known: expected stdio, http or sse")
        server.upstream = UNREADABLE
        return server
    if kind == "stdio" and "command" not in members:
        document.report(server.place, "expected a `command`, as its `type` is stdio")
        server.upstream = UNREADABLE
        return server
    upstream: dict[str, object] = {}
    if kind == "sse" and "command" not in members:
        upstream["era"] = "legacy"
    for member, value in members.items():
        _member(document, server, upstream, member, value)
    if "command" in upstream:
        _split_command(document, server, upstream)
        _read_env_file(document, server, upstream, members.get("envFile"), around)
    server.upstream = upstream
    return server


def _member(
    document: Document, server: Server, upstream: dict[str, object], member: str, value: object
) -> None:
    """Take over one member of a server, or say why not."""
    place, started = (*server.place, member), "command" in _members(server)
    into: Path | None = None
    match member:
        case "url" | "httpUrl" | "serverUrl" if value is not None and value != "":
            into, upstream["url"] = ("url",), value
        case "headers" if not started:
            if value:
                into, upstream["auth"] = ("auth",), {"headers": value}
                document.moved["upstreams", server.key, "auth", "headers"] = place
        case "command":
            into, upstream["command"] = ("command",), value
        case "args" if started:
            args = [_as_text(one) for one in value] if isinstance(value, list) else value
            into, upstream["args"] = ("args",), [] if value is None else args
        case "env" if started:
            into, upstream["env"] = ("env",), _environment(value)
        case "cwd" if started and value is not None:
            into, upstream["cwd"] = ("cwd",), value
        case "envFile" if started:
            pass
        case _ if member in _DENIES or member in _ALLOWS:
            rules = upstream.setdefault("tools", {})
            assert isinstance(rules, dict)
            names = [glob.escape(name) if isinstance(name, str) else name for name in _listed(value)]
            if names:
                rules["deny" if member in _DENIES else "allow"] = names
            into = ("tools",)
        case "args" | "env" | "cwd" | "envFile" | "headers" if not value:
            pass  # some clients write all members, empty ones too
        case "args" | "env" | "cwd" | "envFile":
            server.remarks.append(f"{show_path(place)} is ignored: it goes with `command`")
        case "headers":
            server.remarks.append(f"{show_path(place)} is ignored: a program has none")
        case _ if member not in _SAYS_NOTHING and member not in _URL_KEYS:
            why = _WHY_IGNORED.get(member)
            server.remarks.append(f"{show_path(place)} is ignored{f': {why}' if why else ''}")
    if into is not None:
        document.moved["upstreams", server.key, *into] = place


def _members(server: Server) -> Mapping[str, object]:
    assert isinstance(server.upstream, Mapping)
    return server.upstream


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _environment(value: object) -> object:
    """Return `env` with texts for values: JSON has numbers, too, and null for a variable that is not set."""
    if not isinstance(value, Mapping):
        return {} if value is None else value
    return {name: _as_text(one) for name, one in value.items() if one is not None}


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _split_command(document: Document, server: Server, upstream: dict[str, object]) -> None:
    """Take a command with its arguments inside apart, where it can be read in one way only."""
    command, args = upstream["command"], upstream.get("args", [])
    place = (*server.place, "command")
    words = command if isinstance(command, list) else command.split() if isinstance(command, str) else []
    if words and isinstance(words[0], str) and _ASSIGNMENT.match(words[0]):
        document.report(place, "expected the program first: its variables belong into `env`")
        upstream["command"] = UNREADABLE
        return
    if isinstance(command, list) and words:
        upstream["command"], upstream["args"] = words[0], [*words[1:], *_listed(args)]
        return
    if not isinstance(command, str) or len(words) < 2:
        return
    plain = _SHELL.search(command) is None and "\\" not in command
    if plain and _WORD.fullmatch(words[0]) and isinstance(args, list):
        upstream["command"], upstream["args"] = words[0], [*words[1:], *args]
        server.remarks.append(
            f"{show_path(place)} holds arguments: the program is {words[0]}, what follows goes before `args`"
        )
    elif _WORD.fullmatch(words[0]) or _SHELL.search(command) or any(word[0] == "-" for word in words[1:]):
        document.report(
            place, "expected the program alone: its arguments belong into `args`, one text for each"
        )
        upstream["command"] = UNREADABLE


def _read_env_file(
    document: Document, server: Server, upstream: dict[str, object], named: object, around: Surroundings
) -> None:
    """Put the variables of an envFile below those of `env`."""
    place = (*server.place, "envFile")
    if not isinstance(named, str) or not named:
        return
    try:
        path = around.workspace / FilePath(around.filled(named)).expanduser()
        content = content_of(path, MOST_BYTES)
        if len(content) > MOST_BYTES:
            raise ValueError("the file is larger than 1 MiB: that is no list of variables")
        text = content.decode("utf-8")
    except OSError as error:
        document.report(place, f"the file cannot be read: {error.strerror or error}")
        return
    except UnicodeDecodeError:
        document.report(place, "the file is not UTF-8 text")
        return
    except ValueError as error:
        document.report(place, str(error))
        return
    if odd := ", ".join(map(str, islice(_odd_lines(text), _NAMED))):
        server.remarks.append(f"{show_path(place)}: passed over what is no NAME=VALUE, on line {odd}")
    own = upstream.get("env", {})
    if isinstance(own, Mapping):
        found = dict(env_lines(text))
        server.from_file = frozenset(found.keys() - own.keys())
        server.env_file = named
        upstream["env"] = {**found, **own}


def _odd_lines(text: str) -> Iterator[int]:
    """Yield the numbers of the lines of a .env file that set nothing and are no comments."""
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if line.strip() and not line.strip().startswith("#") and not _ENV_LINE.fullmatch(line.strip()):
            yield number


def env_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the variables of a .env file: NAME=VALUE, quotes and `export` allowed, # begins a comment."""
    for line in text.removeprefix("\ufeff").splitlines():
        hit = _ENV_LINE.fullmatch(line.strip())
        if hit is None:
            continue
        value = hit[2].strip()
        if value[:1] in ("'", '"') and (end := value.find(value[0], 1)) > 0:
            inner = value[1:end]
            value = inner.replace("\\n", "\n") if value[0] == '"' else inner
        else:
            value = re.split(r"\s#", value, maxsplit=1)[0].rstrip()
        yield hit[1], value


def _fill(document: Document, server: Server, around: Surroundings) -> None:
    """Put in the variables of a server, and start its relative folder at the workspace."""
    if not isinstance(server.upstream, Mapping):
        if isinstance(server.upstream, str):
            server.upstream = _filled(document, ("upstreams", server.key), server.upstream, around)
        return
    upstream: dict[str, object] = {}
    for member, value in server.upstream.items():
        path: Path = ("upstreams", server.key, member)
        if member == "env" and isinstance(value, Mapping):
            upstream[member] = {
                name: one if name in server.from_file else _filled(document, (*path, name), one, around)
                for name, one in value.items()
            }
        else:
            upstream[member] = _filled(document, path, value, around)
    if isinstance(upstream.get("cwd"), str):
        upstream["cwd"] = str(around.workspace / FilePath(str(upstream["cwd"])).expanduser())
    server.upstream = upstream


def _filled(document: Document, path: Path, value: object, around: Surroundings) -> object:
    if isinstance(value, Mapping):
        return {name: _filled(document, (*path, name), one, around) for name, one in value.items()}
    if isinstance(value, list):
        return [_filled(document, (*path, index), one, around) for index, one in enumerate(value)]
    if not isinstance(value, str):
        return value
    try:
        return around.filled(value, credential="headers" in path)
    except ValueError as error:
        document.report(path, str(error))
        return UNREADABLE
