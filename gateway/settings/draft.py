"""Writes a configuration for people to go on with: a first one, or one made of an editor's servers file.

Secrets are not copied: whatever looks like one becomes `${VAR}`, and the head of the file says which
variables to set. A word too many is taken for a secret rather than one too few.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

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

_SECRET_NAME = re.compile(
    r"(?i)token|secret|passw|pwd|api[-_]?key|access[-_]?key|(?:^|[-_])key$|credential|auth|cookie|private"
    r"|(?:^|[-_])(?:pat|dsn|sid|pin)$|conn(?:ection)?[-_]?str|session"
)
_SECRET_VALUE = re.compile(
    r"(?i)(?:^|[\s=:])(?:bearer|basic)\s+\S|^authorization\s*[:=]"
    r"|\b(?:sk|pk|rk)[-_][A-Za-z0-9]|\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|npg_|nvapi-|hf_|AKIA|AIza)"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.|-----BEGIN|://[^/\s:@]*:[^/\s@]+@"
)
_RANDOM = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_~+=-]{20,}")
_HARMLESS = re.compile(r"(?i)|true|false|on|off|yes|no|[0-9]{1,5}|\*")
_PLAIN_HEADER = re.compile(r"[A-Za-z0-9,;*/. _-]{0,15}")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_ODD = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
_OPTION = re.compile(r"(--?[A-Za-z][A-Za-z0-9_.-]*)=(.*)", re.DOTALL)


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
        yield f"    command: {_quoted(variables.plain(_text(members['command'], 'command')))}"
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
        if name in server.from_file:
            return self._moved(server, name, value, f"in the file {server.env_file}")
        secret = _is_secret(name, value)
        return self._moved(server, name, value, f"env.{name}") if secret else self.plain(value)

    def header(self, server: Server, name: str, value: str) -> str:
        harmless = _PLAIN_HEADER.fullmatch(value) and not _SECRET_NAME.search(name)
        if _has_variable(value) or (harmless and not _SECRET_VALUE.search(value)):
            return self.plain(value)
        return self._moved(server, f"{server.key}_{name}", value, f"headers ({name})")

    def args(self, server: Server, args: list[str]) -> Iterator[str]:
        before = ""
        for text in args:
            option = _OPTION.fullmatch(text)
            if option and _is_secret(option[1], option[2]):
                yield f"{option[1]}={self._argument(server, option[1], option[2])}"
            elif _is_secret("", text) or (before.startswith("-") and _is_secret(before, text)):
                yield self._argument(server, before if before.startswith("-") else "ARGUMENT", text)
            else:
                yield self.plain(text)
            before = text

    def url(self, server: Server, url: str) -> str:
        """Return a URL without the secrets that may stand in its path and query."""
        try:
            userinfo = "@" in urlsplit(url).netloc
        except ValueError:
            userinfo = True
        if userinfo:
            raise ValueError("a URL with a password in it is refused: write a header under `auth`")
        head, mark, query = url.partition("?")
        pairs = []
        for pair in query.split("&"):
            name, is_set, value = pair.partition("=")
            if is_set and _is_secret(name, value):
                pairs.append(f"{name}={self._moved(server, f'{server.key}_{name}', value, f'url ({name})')}")
            else:
                pairs.append(self.plain(pair))
        start, slashes, rest = head.partition("://")
        segments = [
            self._moved(server, f"{server.key}_path", one, "a part of url")
            if number and _RANDOM.fullmatch(one)
            else self.plain(one)
            for number, one in enumerate(rest.split("/"))
        ]
        return f"{self.plain(start)}{slashes}{'/'.join(segments)}{mark}{'&'.join(pairs)}"

    def _argument(self, server: Server, option: str, value: str) -> str:
        name = option.strip("-")
        return self._moved(server, f"{server.key}_{name}", value, f"args ({name})")

    def _variable(self, inside: str) -> str:
        meant = self._around.meant(inside)
        if meant is None:
            raise ValueError(unknown(inside))
        if isinstance(meant, str):
            return _escaped(meant)
        if meant.default is not None:
            return f"${{{meant.name}:-{meant.default.replace('$', '$$')}}}"
        asked = f", the input {meant.asked} that the editor asks for" if meant.asked else ""
        self.needed.setdefault(meant.name, f"the file names it{asked}")
        return f"${{{meant.name}}}"

    def _moved(self, server: Server, wish: str, value: str, where: str) -> str:
        """Return a variable in the place of a secret, whose name no other value has."""
        if self._keep or _has_variable(value):
            return _escaped(value) if self._keep and not _has_variable(value) else self.plain(value)
        base = name = _variable_name(wish)
        number = 1
        while self._values.get(name, value) != value:
            number += 1
            own = _variable_name(server.key)
            name = f"{own}_{base}" if number == 2 and not base.startswith(own) else f"{base}_{number}"
        self._values[name] = value
        self.needed.setdefault(name, f"{show_path(server.place)}: {where}")
        return f"${{{name}}}"


def _is_secret(name: str, value: str) -> bool:
    if _HARMLESS.fullmatch(value):
        return False
    return bool(
        _SECRET_NAME.search(name.lstrip("-")) or _SECRET_VALUE.search(value) or _RANDOM.fullmatch(value)
    )


def _has_variable(text: str) -> bool:
    return VARIABLE.search(text) is not None


def _variable_name(wish: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", wish).strip("_").upper()
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
