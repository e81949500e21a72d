"""Which command it is, and how each ends.

Exit codes: 0 fine, 1 found problems, 2 wrong usage or configuration. What a command answers goes to stdout,
what went wrong to stderr, and its last line says what to do next.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from gateway.commands import asking, looking, making, options, starting
from gateway.commands.application import App
from gateway.commands.given import NoToken, file_of
from gateway.commands.printing import PROBLEMS, WRONG, complain, wrong_config
from gateway.config import ConfigError


def run(argv: Sequence[str] | None, app: App | None) -> int:
    """Run a command and return its exit code; raises SystemExit for wrong usage."""
    arguments = options.parser().parse_args(argv)
    try:
        code = _chosen(arguments, app)
        sys.stdout.flush()
        return code
    except ConfigError as error:
        return wrong_config(error.problems, file_of(arguments))
    except NoToken as error:
        return complain(str(error), error.advice, code=WRONG)
    except BrokenPipeError:
        # The reader of a pipe such as `| head` has left; nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PROBLEMS
    except KeyboardInterrupt:
        return complain("interrupted", code=PROBLEMS)


def _chosen(arguments: argparse.Namespace, app: App | None) -> int:
    match arguments.command:
        case "serve":
            return starting.serve(arguments, app)
        case "stdio":
            return starting.stdio(arguments, app)
        case "check":
            return looking.check(arguments)
        case "init":
            return making.init(arguments)
        case "tools":
            return looking.tools(arguments, app)
        case "doctor":
            return looking.doctor(arguments)
        case "explain":
            return asking.explain(arguments)
        case "purge":
            return asking.purge(arguments)
        case "key":
            return making.key(arguments.name, as_json=arguments.json)
        case "schema":
            return making.schema()
        case _:
            return making.version(as_json=arguments.json)
