"""The commands of the console script `mcp-gateway`: words and exit codes around gateway.config and .app.

Exit codes: 0 fine, 1 found problems, 2 wrong usage or configuration. What a command answers goes to stdout,
what went wrong to stderr, and its last line says what to do next.
"""

import argparse
import errno
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Coroutine, Sequence, Sized
from dataclasses import asdict
from typing import TYPE_CHECKING, NoReturn, Protocol

from gateway import config
from gateway.config import Config, ConfigError, Problem

if TYPE_CHECKING:
    from gateway.app import Addresses, ToolListing

FINE, PROBLEMS, WRONG = 0, 1, 2

_EXAMPLES = """\
examples:
  mcp-gateway check gateway.yaml           is this file right?
  mcp-gateway serve --config gateway.yaml  start the gateway
  mcp-gateway serve mcp.json               the same with the mcpServers file of a desktop client
  mcp-gateway tools --config gateway.yaml  what will a client see?
  mcp-gateway schema > gateway.schema.json let the editor check the file

exit codes: 0 fine, 1 found problems, 2 wrong usage or configuration
"""


class App(Protocol):
    """What this module needs of gateway.app, which is only imported by the commands that run something."""

    def serve(self, config: Config, *, ready: "Callable[[Addresses], None] | None" = None) -> int: ...

    def list_tools(self, config: Config, endpoint: str) -> "Coroutine[None, None, ToolListing]": ...


def main(argv: Sequence[str] | None = None, *, app: App | None = None) -> int:
    """Run one command and return its exit code; raises SystemExit for wrong usage, as argparse does."""
    arguments = _parser().parse_args(argv)
    try:
        code = _run(arguments, app)
        sys.stdout.flush()
        return code
    except ConfigError as error:
        return _wrong_config(error.problems)
    except BrokenPipeError:
        # The reader of a pipe such as `| head` has left; nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PROBLEMS
    except KeyboardInterrupt:
        return _complain("interrupted", code=PROBLEMS)


def _run(arguments: argparse.Namespace, app: App | None) -> int:
    match arguments.command:
        case "serve":
            return _serve(arguments, app)
        case "check":
            return _check(arguments)
        case "tools":
            return _tools(arguments, app)
        case "schema":
            print(json.dumps(config.schema(), indent=2, ensure_ascii=False))
            return FINE
        case _:
            return _version(as_json=arguments.json)


def _serve(arguments: argparse.Namespace, app: App | None) -> int:
    settings = _load(arguments)

    def announce(addresses: "Addresses") -> None:
        print(_where(settings, addresses, as_json=arguments.json), flush=True)

    try:
        return (app or _app()).serve(settings, ready=announce)
    except OSError as error:
        return _cannot_start(settings, error)


def _where(settings: Config, addresses: "Addresses", *, as_json: bool) -> str:
    """Return where everything is, as bound, and what stands behind it; one line of JSON for a program."""
    urls = dict(zip(settings.endpoints, addresses.endpoints, strict=True))
    if as_json:
        places = {"endpoints": urls, "admin": addresses.admin, "upstreams": list(settings.upstreams)}
        return json.dumps(places, ensure_ascii=False)
    rows = [("endpoint", url, ", ".join(_behind(settings, path))) for path, url in urls.items()]
    if addresses.admin:
        rows.append(("admin", addresses.admin, "/healthz /readyz /metrics /status.json"))
    for name, upstream in settings.upstreams.items():
        details = f"prefix {upstream.prefix or 'none'}, auth {upstream.auth.kind}"
        rows.append((f"upstream {name}", config.shown_url(upstream.url), details))
    return f"MCP Gateway {config.VERSION}\n{_table(rows)}"


def _behind(settings: Config, path: str) -> list[str]:
    return settings.endpoints[path].upstreams or list(settings.upstreams)


def _cannot_start(settings: Config, error: OSError) -> int:
    """Say why the gateway cannot start and what would help."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        advice = "check that the file is there and that this user may read it"
        return _complain(f"cannot read {error.filename}: {reason}", advice, code=PROBLEMS)
    match error.errno:
        case errno.EADDRINUSE:
            advice = "stop the program that listens there, or choose another port; port 0 takes a free one"
        case errno.EACCES | errno.EPERM:
            advice = "choose a port above 1023, or give this user the right to bind lower ones"
        case errno.EADDRNOTAVAIL:
            advice = "choose an address of this machine: 127.0.0.1, or 0.0.0.0 for all of them"
        case _:
            advice = "choose an address of this machine and a free port for `listen` and `admin`"
    where = f"listen: {settings.listen}, admin: {settings.admin}"
    return _complain(f"cannot listen ({where}): {reason}", advice, code=PROBLEMS)


def _check(arguments: argparse.Namespace) -> int:
    warnings: list[str] = []
    problems: tuple[Problem, ...] = ()
    settings: Config | None = None
    try:
        settings = config.load_file(arguments.file, warn=warnings.append)
    except ConfigError as error:
        problems = error.problems
    if arguments.json:
        report = {"ok": not problems, "problems": [asdict(one) for one in problems], "warnings": warnings}
        print(json.dumps(report, ensure_ascii=False))
        return WRONG if problems else FINE
    for warning in warnings:
        _warn(warning)
    if settings is None:
        return _wrong_config(problems)
    parts = f"{_count(settings.upstreams, 'upstream')}, {_count(settings.endpoints, 'endpoint')}"
    print(f"{arguments.file}: fine, {parts}")
    return FINE


def _tools(arguments: argparse.Namespace, app: App | None) -> int:
    settings = _load(arguments)
    endpoint = arguments.endpoint or next(iter(settings.endpoints))
    if endpoint not in settings.endpoints:
        known = " or ".join(f"--endpoint {path}" for path in settings.endpoints)
        return _complain(f"there is no endpoint {endpoint}", f"use {known}", code=WRONG)
    import asyncio  # only here, as gateway.app: the quick commands start without either

    try:
        listing = asyncio.run((app or _app()).list_tools(settings, endpoint))
    except OSError as error:
        return _cannot_start(settings, error)
    code = PROBLEMS if listing.problems else FINE
    if arguments.json:
        report = {"endpoint": endpoint, "tools": [asdict(tool) for tool in listing.tools]}
        print(json.dumps({**report, "problems": list(listing.problems)}, ensure_ascii=False))
        return code
    rows = [
        (tool.name, f"{tool.upstream}: {tool.original}", _first_line(tool.description))
        for tool in listing.tools
    ]
    print(_table(rows) if rows else f"{endpoint} shows no tools")
    for problem in listing.problems:
        print(f"problem: {_plain(problem)}", file=sys.stderr)
    if listing.problems:
        return _complain("the list is not complete", "mend the above and run this again", code=code)
    return code


def _version(*, as_json: bool) -> int:
    if as_json:
        facts = {"name": "mcp-gateway", "version": config.VERSION, "python": platform.python_version()}
        print(json.dumps(facts))
    else:
        print(f"mcp-gateway {config.VERSION}")
    return FINE


def _load(arguments: argparse.Namespace) -> Config:
    return config.load_file(arguments.config or arguments.file, warn=_warn)


def _app() -> App:
    from gateway import app

    return app


def _wrong_config(problems: Sequence[Problem]) -> int:
    for problem in problems:
        print(_plain(str(problem)), file=sys.stderr)
    advice = "mend this and try `mcp-gateway check FILE`; docs/configuration.md lists every key"
    return _complain(f"{_count(problems, 'problem')} in the configuration", advice, code=WRONG)


def _complain(what: str, advice: str = "", *, code: int) -> int:
    print(f"error: {what}", file=sys.stderr)
    if advice:
        print(f"next: {advice}", file=sys.stderr)
    return code


def _warn(message: str) -> None:
    print(f"warning: {_plain(message)}", file=sys.stderr)


def _plain(text: str) -> str:
    """Return a text without control characters: what an upstream wrote must not steer the terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", " ", text)


def _first_line(text: str) -> str:
    line = _plain(text.strip().partition("\n")[0])
    return line if len(line) <= 100 else line[:99] + "…"


def _table(rows: Sequence[tuple[str, str, str]]) -> str:
    plain = [tuple(map(_plain, row)) for row in rows]
    first, second = (max(len(row[column]) for row in plain) for column in (0, 1))
    return "\n".join(f"  {a:<{first}}  {b:<{second}}  {c}".rstrip() for a, b, c in plain)


def _count(things: Sized, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"error: {message}\nnext: `{self.prog} --help` shows what is possible\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mcp-gateway",
        description="One MCP endpoint in front of many servers, with a response cache that is right.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mcp-gateway {config.VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="start the gateway and serve until a signal stops it")
    _add_config(serve)
    serve.add_argument("--json", action="store_true", help="say where it listens as one line of JSON")

    check = commands.add_parser("check", help="say whether a file is right; starts nothing")
    check.add_argument("file", metavar="FILE", help="a YAML configuration or an mcpServers JSON file")
    check.add_argument("--json", action="store_true", help="answer as JSON")

    tools = commands.add_parser("tools", help="ask the upstreams and show the tools that a client will see")
    _add_config(tools)
    tools.add_argument("--endpoint", metavar="PATH", help="which endpoint, such as /mcp; default: the first")
    tools.add_argument("--json", action="store_true", help="answer as JSON")

    commands.add_parser("schema", help="print the JSON Schema of the configuration, for editors")
    version = commands.add_parser("version", help="print the version")
    version.add_argument("--json", action="store_true", help="answer as JSON")
    return parser


def _add_config(command: argparse.ArgumentParser) -> None:
    file = command.add_mutually_exclusive_group(required=True)
    file.add_argument(
        "--config", "-c", metavar="FILE", help="a YAML configuration or an mcpServers JSON file"
    )
    file.add_argument("file", nargs="?", metavar="FILE", help="the same, without --config before it")
