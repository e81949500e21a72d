"""Writes a configuration for people to go on with: a first one, or one made of an editor's servers file.

Secrets are not copied: whatever looks like one becomes `${VAR}`, and the head of the file says which
variables to set. A word too many is taken for a secret rather than one too few.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from gateway.settings import secrets
from gateway.settings.document import Document, show_path
from gateway.settings.mcp_servers import VARIABLE, Server, Surroundings, Variable, servers, unknown

FIRST: Final = """\
# A configuration of MCP Gateway. `mcp-gateway check` says whether it is right, `mcp-gateway doctor --config`
# how the servers behind it are, `mcp-gateway serve --config` starts it. `mcp-gateway schema` knows every key.

# Where clients reach the gateway: http://127.0.0.1:8080/mcp
listen: 127.0.0.1:8080
# Health, metrics and questions of operators; "off" = nowhere.
admin: 127.0.0.1:9090

# The servers behind it. The key is the prefix of a server's tools: search of `time` is time__search.
upstreams:
  # One line is enough for a server that is reached over HTTP.
  time: http://127.0.0.1:9001/mcp
  # One with a credential; ${VAR} reads the environment, {file: /run/secrets/gh} a file.
  # gh:
  #   url: https://gh.example/mcp
  #   auth: {bearer: "${GH_TOKEN}"}
  # A program that the gateway starts and speaks with over stdin and stdout.
  # files:
  #   command: npx
  #   args: ["-y", "@modelcontextprotocol/server-filesystem", "/data"]
"""

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_LONGEST_NAME = 64
_FIRST_MARK = 0xF0000
_ODD = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")

_Called: TypeAlias = Callable[[secrets.Secret], tuple[str, str]]
"""Says how the variable for a secret should be named, and where the secret was."""


@dataclass(slots=True)
class Draft:
    """A configuration as text, and what to tell whoever asked for it."""

    text: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    """Variable to be set -> what it is for."""
    remarks: list[str] = field(default_factory=list)
    """What was changed, or left out for a reason that is no mistake."""
    problems: list[str] = field(default_factory=list)
    """Servers that were not taken over, and why."""
    taken: int = 0
    """How many servers were."""


def draft(
    document: Document, around: Surroundings, own_keys: frozenset[str], *, keep_secrets: bool = False
) -> Draft:
    """Return the configuration that the editor's file in a document comes to; nothing in it is refused."""
    made = Draft()
    beside: list[str] = []
    found = list(servers(document, around, own_keys, beside.append))
    variables = _Variables(around, found, keep=keep_secrets)
    blocks = []
    made.remarks += beside
    for server in found:
        place = show_path(server.place)
        wrong, body = _body(document, server, place, variables)
        made.taken += not wrong
        made.remarks += server.remarks
        made.problems += [f"{place} is not taken over: {message}" for message in wrong]
        blocks.append("\n".join(_block(server, place, wrong, body)))
    made.variables = variables.needed
    notes = [f"  # {_comment(one)}" for one in beside]
    made.text = "\n".join(
        [*_head(document.file, made.variables, keep_secrets), "upstreams:", *notes, *blocks, ""]
    )
    return made


def _head(file: str, variables: Mapping[str, str], keep_secrets: bool) -> Iterator[str]:
    yield f"# Written by `mcp-gateway init` from {_comment(file)}."
    yield "# `mcp-gateway check` says whether it is right, `mcp-gateway doctor --config` how the servers are,"
    yield "# `mcp-gateway schema` knows every key."
    if variables:
        yield "#"
        yield "# Set these variables before the start; " + (
            "the file has no value for them:" if keep_secrets else "no secret was copied into this file:"
        )
        width = max(map(len, variables))
        for name, what in variables.items():
            yield f"#   {name:<{width}}  {_comment(what)}"
    yield ""
    yield "# Where clients reach the gateway: http://127.0.0.1:8080/mcp"
    yield "listen: 127.0.0.1:8080"
    yield '# Health, metrics and questions of operators; "off" = nowhere.'
    yield "admin: 127.0.0.1:9090"
    yield ""
    yield "# The servers behind it; a server's key is the prefix of its tools."


def _body(
    document: Document, server: Server, place: str, variables: "_Variables"
) -> tuple[list[str], list[str]]:
    """Return what is wrong with a server, or the lines below its key."""
    wrong = [one.message for one in document.problems if f"{one.path}.".startswith(f"{place}.")]
    members = {"url": server.upstream} if isinstance(server.upstream, str) else server.upstream
    if wrong:
        return wrong, []
    if not isinstance(members, Mapping):
        return ["expected a mapping"], []
    needed = dict(variables.needed)
    try:
        return [], list(_members(server, members, variables))
    except ValueError as error:
        variables.needed = needed
        return [str(error)], []


def _block(server: Server, place: str, wrong: list[str], body: list[str]) -> Iterator[str]:
    """Yield the lines of one server: comments alone when something is wrong."""
    if wrong:
        yield f"  # {_comment(place)} is not taken over:"
        yield from (f"  #   {_comment(message)}" for message in wrong)
        return
    yield f"  # {_comment(place)}: its tools are named {server.key}__…"
    yield from (f"  # {_comment(remark)}" for remark in server.remarks)
    yield f"  {server.key}:"
    yield from body


def _members(server: Server, members: Mapping[str, object], variables: "_Variables") -> Iterator[str]:
    """Yield the lines below an upstream's key; raises ValueError for what cannot be written."""
    if "url" in members:
        yield f"    url: {_quoted(variables.url(server, _text(members['url'], 'url')))}"
    if "command" in members:
        yield "    # a program: the gateway starts it and speaks with it over stdin and stdout"
        command = next(variables.args(server, [_text(members["command"], "command")]))
        yield f"    command: {_quoted(command)}"
    if "args" in members:
        args = list(variables.args(server, _texts(members["args"], "args")))
        yield f"    args: [{', '.join(map(_quoted, args))}]"
    if "cwd" in members:
        yield f"    cwd: {_quoted(variables.folder(_text(members['cwd'], 'cwd')))}"
    if "env" in members and members["env"] != {}:
        yield "    # its environment, beside PATH, HOME and what else any program needs; nothing is inherited"
        yield "    env:"
        for name, value in _named(members["env"], "env").items():
            yield f"      {_key(name)}: {_quoted(variables.env(server, name, value))}"
    if "era" in members:
        yield "    # HTTP+SSE, the transport of 2024-11-05; `auto` would ask it every time it is back"
        yield f"    era: {members['era']}"
    if "auth" in members:
        auth = members["auth"]
        assert isinstance(auth, Mapping)
        yield from _auth(server, _named(auth["headers"], "headers"), variables)
    if tools := members.get("tools"):
        assert isinstance(tools, Mapping)
        yield "    tools:"
        for rule, names in tools.items():
            yield f"      {rule}: [{', '.join(map(_quoted, _texts(names, rule)))}]"


def _auth(server: Server, headers: Mapping[str, str], variables: "_Variables") -> Iterator[str]:
    """Yield the credential of a server; one `Authorization: Bearer` is written as what it is."""
    yield "    # what the gateway presents to it, whoever calls"
    if len(headers) == 1:
        name, value = next(iter(headers.items()))
        scheme, _, token = value.partition(" ")
        if name.lower() == "authorization" and scheme.lower() == "bearer" and " " not in token.strip():
            yield f"    auth: {{bearer: {_quoted(variables.header(server, 'TOKEN', token.strip()))}}}"
            return
    yield "    auth:"
    yield "      headers:"
    for name, value in headers.items():
        yield f"        {_key(name)}: {_quoted(variables.header(server, name, value))}"


@dataclass(frozen=True, slots=True)
class _Marked:
    """A text with one private character for each variable in it, so that nothing looks into those."""

    text: str
    inside: Mapping[str, str]
    """Character -> what stands between the braces."""

    @classmethod
    def of(cls, text: str) -> "_Marked":
        free = (char for char in map(chr, itertools.count(_FIRST_MARK)) if char not in text)
        inside: dict[str, str] = {}

        def mark(hit: re.Match[str]) -> str:
            char = next(free)
            inside[char] = hit[1]
            return char

        return cls(VARIABLE.sub(mark, text), inside)

    def meant(self, part: str) -> str:
        """Return a part as it was written."""
        return "".join(f"${{{self.inside[char]}}}" if char in self.inside else char for char in part)

    def pieces(self, part: str) -> Iterator[str]:
        """Yield a part in pieces that are one variable each, or have none."""
        begun = ""
        for char in part:
            if char in self.inside:
                if begun:
                    yield begun
                yield char
                begun = ""
            else:
                begun += char
        if begun:
            yield begun


class _Variables:
    """Puts variables in the gateway's spelling into texts, and in the place of secrets."""

    def __init__(self, around: Surroundings, found: list[Server], *, keep: bool) -> None:
        self.needed: dict[str, str] = {}
        self._around = around
        self._keep = keep
        self._values: dict[str, str | None] = {}
        """Variable -> the secret that it stands for, None for one of the file's own."""
        for server in found:
            for text in _all_texts(server.upstream):
                for hit in VARIABLE.finditer(text):
                    meant = around.meant(hit[1])
                    if isinstance(meant, Variable):
                        self._values[meant.name] = None

    def plain(self, text: str) -> str:
        """Return a text that is no secret; raises ValueError for a variable that only the editor knows."""
        parts, end = [], 0
        for hit in VARIABLE.finditer(text):
            parts += [_escaped(text[end : hit.start()]), self._variable(hit[1])]
            end = hit.end()
        return "".join([*parts, _escaped(text[end:])])

    def folder(self, text: str) -> str:
        """Return a folder; a relative one starts where the editor's project is."""
        if text.startswith(("~", "${", "/")):
            return self.plain(text)
        return f"{_escaped(str(self._around.workspace))}/{self.plain(text)}"

    def env(self, server: Server, name: str, value: str) -> str:
        where = f"env.{name}"
        if name in server.from_file:
            return self._moved(server, name, value, f"in the file {server.env_file}")
        return self._written(value, partial(secrets.in_value, name), lambda part: (part.name, where), server)

    def header(self, server: Server, name: str, value: str) -> str:
        where = f"headers ({name})"
        wish = f"{server.key}_{name}"
        return self._written(value, partial(secrets.in_header, name), lambda part: (wish, where), server)

    def args(self, server: Server, args: list[str]) -> Iterator[str]:
        marked = [_Marked.of(text) for text in args]
        found = secrets.in_arguments(one.text for one in marked)
        for one, parts in zip(marked, found, strict=True):
            yield self._joined(one, parts, lambda part: self._named_in("args", server, part), server)

    def url(self, server: Server, url: str) -> str:
        """Return a URL without the secrets that may stand in its path and query."""
        if secrets.has_login(url):
            raise ValueError("a URL with a password in it is refused: write a header under `auth`")
        return self._written(url, secrets.in_url, lambda part: self._named_in("url", server, part), server)

    @staticmethod
    def _named_in(member: str, server: Server, part: secrets.Secret) -> tuple[str, str]:
        name = part.name.strip("-")
        return f"{server.key}_{name}", f"a part of {member}" if name == "path" else f"{member} ({name})"

    def _written(
        self, text: str, find: Callable[[str], list[secrets.Part]], called: _Called, server: Server
    ) -> str:
        """Return a text with its variables spelled as the gateway's, and variables for its secrets."""
        marked = _Marked.of(text)
        return self._joined(marked, find(marked.text), called, server)

    def _joined(self, marked: "_Marked", parts: list[secrets.Part], called: _Called, server: Server) -> str:
        written = []
        for part in parts:
            if isinstance(part, str) or self._keep:
                written.append(self.plain(marked.meant(part if isinstance(part, str) else part.value)))
                continue
            wish, where = called(part)
            for piece in marked.pieces(part.value):
                if inside := marked.inside.get(piece):
                    written.append(self._variable(inside, secret=part.named))
                elif piece == part.value or not secrets.is_shown(piece, part):
                    written.append(self._moved(server, wish, piece, where))
                else:
                    written.append(_escaped(piece))
        return "".join(written)

    def _variable(self, inside: str, *, secret: bool = False) -> str:
        meant = self._around.meant(inside)
        if meant is None:
            raise ValueError(unknown(inside))
        if isinstance(meant, str):
            return _escaped(meant)
        default = meant.default
        if default is not None and not self._keep and (secret or secrets.is_secret(meant.name, default)):
            default = None
        if default is not None:
            return f"${{{meant.name}:-{default.replace('$', '$$')}}}"
        asked = f", the input {meant.asked} that the editor asks for" if meant.asked else ""
        self.needed.setdefault(meant.name, f"the file names it{asked}")
        return f"${{{meant.name}}}"

    def _moved(self, server: Server, wish: str, value: str, where: str) -> str:
        """Return a variable in the place of a secret, whose name no other value has."""
        if self._keep:
            return _escaped(value)
        base = name = _variable_name(wish)
        number = 1
        while self._values.get(name, value) != value:
            number += 1
            own = _variable_name(server.key)
            name = f"{own}_{base}" if number == 2 and not base.startswith(own) else f"{base}_{number}"
        self._values[name] = value
        self.needed.setdefault(name, f"{show_path(server.place)}: {where}")
        return f"${{{name}}}"


def _variable_name(wish: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", wish)[:_LONGEST_NAME].strip("_").upper()
    return name if name[:1].isalpha() else f"SECRET_{name}"


def _escaped(text: str) -> str:
    return text.replace("$", "$$")


def _all_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _all_texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _all_texts(one)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text for {what}")
    return value


def _texts(value: object, what: str) -> list[str]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list of texts for {what}")
    return [_text(one, what) for one in value]


def _named(value: object, what: str) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping of names to texts for {what}")
    return {name: _text(one, what) for name, one in value.items()}


def _quoted(text: str) -> str:
    """Return a text as YAML; JSON's form is YAML's, but for a few characters that only YAML minds."""
    return _ODD.sub(lambda hit: f"\\u{ord(hit[0]):04x}", json.dumps(text, ensure_ascii=False))


def _key(name: str) -> str:
    plain = _PLAIN_KEY.fullmatch(name) and name.lower() not in _YAML_WORDS
    return name if plain else _quoted(_escaped(name))


def _comment(text: str) -> str:
    """Return a text on one line: nothing of an editor's file may end a comment."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
