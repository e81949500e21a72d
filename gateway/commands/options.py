"""The commands and their options, as argparse knows them and `--help` shows them."""

import argparse
from typing import NoReturn

from gateway import config
from gateway.commands.printing import WRONG

_MOST_WORKERS = 256
_EXAMPLES = """\
examples:
  mcp-gateway check gateway.yaml           is this file right?
  mcp-gateway serve --config gateway.yaml  start the gateway
  mcp-gateway serve mcp.json               the same with the mcpServers file of a desktop client
  mcp-gateway stdio mcp.json               the same as a program that a desktop client starts
  mcp-gateway init --from mcp.json         make a commented gateway.yaml of such a file
  mcp-gateway tools --config gateway.yaml  what will a client see?
  mcp-gateway doctor --config gateway.yaml  what is wrong with the servers behind it?
  mcp-gateway explain --config gateway.yaml tools/list
                                           why was this not cached?
  mcp-gateway key ci                       make an API key for a caller
  mcp-gateway schema > gateway.schema.json let the editor check the file

exit codes: 0 fine, 1 found problems, 2 wrong usage or configuration
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"error: {message}\nnext: `{self.prog} --help` shows what is possible\n")


def parser() -> argparse.ArgumentParser:
    """Return what knows every command and its options."""
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
    serve.add_argument(
        "--listen", metavar="HOST:PORT", help="where endpoints are served, whatever the file says"
    )
    serve.add_argument(
        "--admin", metavar="HOST:PORT", help='where operators ask, whatever the file says; or "off"'
    )
    serve.add_argument(
        "--workers",
        metavar="N",
        type=_positive,
        default=1,
        help="processes that serve the address together; more than one need `cache.redis`; default: 1",
    )
    serve.add_argument("--worker", metavar="FD", type=_natural, help=argparse.SUPPRESS)

    stdio = commands.add_parser("stdio", help="serve one client over stdin and stdout; listens nowhere")
    _add_config(stdio)
    stdio.add_argument("--endpoint", metavar="PATH", help="which endpoint, such as /mcp; default: the first")
    stdio.add_argument(
        "--admin",
        nargs="?",
        const="",
        metavar="HOST:PORT",
        help="serve health, metrics and questions of operators; default: where the configuration says",
    )
    stdio.add_argument(
        "--token-env",
        metavar="VAR",
        help="the variable that holds the token for `auth: forward` or `token_exchange`",
    )

    check = commands.add_parser("check", help="say whether a file is right; starts nothing")
    check.add_argument("file", metavar="FILE", help="a YAML configuration or an mcpServers JSON file")
    check.add_argument("--json", action="store_true", help="answer as JSON")

    init = commands.add_parser("init", help="write a commented configuration to begin with")
    init.add_argument(
        "target",
        nargs="?",
        default="gateway.yaml",
        metavar="FILE",
        help="the new file, or - for stdout; default: gateway.yaml",
    )
    init.add_argument(
        "--from",
        dest="source",
        metavar="MCP.JSON",
        help="the servers file of Claude, Cursor, VS Code or another client, whose servers are taken over",
    )
    init.add_argument(
        "--keep-secrets",
        action="store_true",
        help="copy secrets, too; otherwise a variable takes the place of each",
    )

    tools = commands.add_parser("tools", help="ask the upstreams and show the tools that a client will see")
    _add_config(tools)
    tools.add_argument("--endpoint", metavar="PATH", help="which endpoint, such as /mcp; default: the first")
    tools.add_argument("--json", action="store_true", help="answer as JSON")
    tools.add_argument(
        "--as",
        dest="caller",
        metavar="CALLER",
        help="what the rules of `access` show this caller, such as corp:alice, and which rules keep the rest",
    )
    tools.add_argument(
        "--scopes", metavar="S", help="what such a caller's token grants, beside what a key does"
    )
    tools.add_argument("--claims", metavar="JSON", help="what such a caller's token says")

    doctor = commands.add_parser("doctor", help="reach every upstream and say what is wrong; starts nothing")
    _add_config(doctor)
    doctor.add_argument(
        "--endpoint", metavar="PATH", help="only what is behind this one; default: all of them"
    )
    doctor.add_argument("--json", action="store_true", help="answer as JSON")
    doctor.add_argument(
        "--strict", action="store_true", help="end with 1 where there are warnings, too, not only problems"
    )
    doctor.add_argument(
        "--token-env",
        metavar="VAR",
        action="append",
        help="the variable with a caller's token, for `auth: forward`, `token_exchange`; twice with --audit",
    )
    doctor.add_argument(
        "--audit", action="store_true", help="compare what is called public, as two callers are given it"
    )
    doctor.add_argument(
        "--max-reads", metavar="N", type=_natural, default=100, help="resources read by --audit; default: 100"
    )

    explain = commands.add_parser("explain", help="say why an answer is cached or not; asks no upstream")
    _add_running(explain)
    explain.add_argument(
        "--endpoint", metavar="PATH", help="which endpoint, such as /mcp; default: the first"
    )
    explain.add_argument("--token-env", metavar="VAR", help="the variable that holds the caller's token")
    explain.add_argument(
        "--as", dest="caller", metavar="CALLER", help="for whom the rules of `access` take the caller"
    )
    explain.add_argument("--scopes", metavar="S", help="what such a caller's token grants")
    explain.add_argument("--capabilities", metavar="JSON", help="what the client declares; default: {}")
    explain.add_argument(
        "--arguments", metavar="JSON", help="those of a call of a tool; left out: a call that has none"
    )
    explain.add_argument("method", metavar="METHOD", help="such as tools/list or resources/read")
    explain.add_argument("target", nargs="?", metavar="NAME|URI", help="as clients see it")

    purge = commands.add_parser("purge", help="make a running gateway forget answers; default: all of them")
    _add_running(purge)
    purge.add_argument(
        "--token-env",
        metavar="VAR",
        help="only what is private to the caller whose token this variable holds",
    )
    purge.add_argument("upstream", nargs="?", metavar="UPSTREAM", help="of this upstream only")
    purge.add_argument("--method", metavar="M", help="of this method only, such as tools/list")
    purge.add_argument("--uri", metavar="U", help="of this resource only, as clients or its upstream see it")

    key = commands.add_parser("key", help="make an API key for a caller, and the hash that knows it again")
    key.add_argument("name", nargs="?", default="caller", metavar="NAME", help="whose; default: caller")
    key.add_argument("--json", action="store_true", help="answer as JSON")

    commands.add_parser("schema", help="print the JSON Schema of the configuration, for editors")
    version = commands.add_parser("version", help="print the version")
    version.add_argument("--json", action="store_true", help="answer as JSON")
    return parser


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number, found {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to {_MOST_WORKERS}, found {text!r}")
    return int(text)


def _add_running(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config", "-c", metavar="FILE", required=True, help="what the running gateway was started with"
    )
    command.add_argument(
        "--admin", metavar="HOST:PORT", help="where it listens for operators, if it was started with --admin"
    )
    command.add_argument("--json", action="store_true", help="answer as JSON")
    command.set_defaults(file="")


def _add_config(command: argparse.ArgumentParser) -> None:
    file = command.add_mutually_exclusive_group(required=True)
    file.add_argument(
        "--config", "-c", metavar="FILE", help="a YAML configuration or an mcpServers JSON file"
    )
    file.add_argument("file", nargs="?", metavar="FILE", help="the same, without --config before it")
