"""The commands that look for what is wrong before anybody is served: `check`, `tools` and `doctor`."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict

from gateway import config
from gateway.commands.application import App, cannot_start, the_app
from gateway.commands.given import header_of, load, no_endpoint
from gateway.commands.printing import (
    FINE,
    PROBLEMS,
    WRONG,
    complain,
    count,
    first_line,
    plain,
    table,
    warn,
    wrong_config,
)
from gateway.config import Config, ConfigError, Problem


def check(arguments: argparse.Namespace) -> int:
    """Say whether a file is right, and of every mistake where it stands."""
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
        warn(warning)
    if settings is None:
        return wrong_config(problems, arguments.file)
    parts = f"{count(settings.upstreams, 'upstream')}, {count(settings.endpoints, 'endpoint')}"
    print(f"{arguments.file}: fine, {parts}")
    return FINE


def tools(arguments: argparse.Namespace, app: App | None) -> int:
    """Ask the upstreams and print the tools that a client will see."""
    settings = load(arguments)
    endpoint = arguments.endpoint or next(iter(settings.endpoints))
    if endpoint not in settings.endpoints:
        return no_endpoint(settings, endpoint)
    import asyncio  # only here, as gateway.app: the quick commands start without either

    try:
        claims = _claims(arguments)
    except ValueError as error:
        return complain(str(error), "such as --as corp:alice --scopes 'read write'", code=WRONG)
    try:
        listing = asyncio.run(
            (app or the_app()).list_tools(
                settings,
                endpoint,
                caller=arguments.caller,
                scopes=(arguments.scopes or "").split(),
                claims=claims,
            )
        )
    except OSError as error:
        return cannot_start(settings, error)
    code = PROBLEMS if listing.problems else FINE
    strange = None if arguments.caller is None else config.nobody(arguments.caller, settings)
    if strange is not None and not arguments.json:
        warn(strange)
    if arguments.json:
        report = {"endpoint": endpoint, "tools": [asdict(tool) for tool in listing.tools]}
        if arguments.caller is not None:
            report["kept"] = [{"name": name, "why": why} for name, why in listing.kept]
        if strange is not None:
            report["warning"] = strange
        print(json.dumps({**report, "problems": list(listing.problems)}, ensure_ascii=False))
        return code
    rows = [
        (tool.name, f"{tool.upstream}: {tool.original}", first_line(tool.description))
        for tool in listing.tools
    ]
    print(table(rows) if rows else f"{endpoint} shows no tools")
    for name, why in listing.kept:
        print(f"{plain(name)}: {why}")
    for problem in listing.problems:
        print(f"problem: {plain(problem)}", file=sys.stderr)
    if listing.problems:
        return complain("the list is not complete", "mend the above and run this again", code=code)
    return code


def _claims(arguments: argparse.Namespace) -> Mapping[str, object]:
    """Return what the token says of the caller whom the command names; raises ValueError."""
    if arguments.caller is None and (arguments.scopes is not None or arguments.claims is not None):
        raise ValueError("--scopes and --claims are those of the caller that --as names")
    claims = {} if arguments.claims is None else json.loads(arguments.claims)
    if not isinstance(claims, dict):
        raise ValueError("--claims is a JSON object, as a token holds them")
    return claims


def doctor(arguments: argparse.Namespace) -> int:
    """Examine every upstream and print a verdict for each."""
    settings = load(arguments)
    variables: list[str] = arguments.token_env or []
    if arguments.endpoint is not None and arguments.endpoint not in settings.endpoints:
        return no_endpoint(settings, arguments.endpoint)
    if len(variables) > (2 if arguments.audit else 1):
        most = "two callers are compared" if arguments.audit else "one token will do; two go with --audit"
        return complain("that is too many --token-env", most, code=WRONG)
    import asyncio

    from gateway.doctor.asking import Token
    from gateway.doctor.examine import examine
    from gateway.doctor.findings import document
    from gateway.doctor.text import summary, tables

    try:
        tokens = [Token(variable, header_of(variable)) for variable in variables]
        if len({token.authorization for token in tokens}) < len(tokens):
            advice = "give those of two callers who may see different things"
            return complain("both variables hold the same token", advice, code=WRONG)
        report = asyncio.run(
            examine(
                settings,
                endpoint=arguments.endpoint,
                tokens=tokens,
                audited=arguments.audit,
                max_reads=arguments.max_reads,
                say=lambda text: print(f"... {plain(text)}", file=sys.stderr, flush=True),
            )
        )
    except OSError as error:
        return cannot_start(settings, error)
    except ValueError as error:
        return complain(plain(str(error)), "correct this setting", code=PROBLEMS)
    if arguments.json:
        print(json.dumps(document(report), ensure_ascii=False))
    else:
        for heading, rows in tables(report):
            print(f"{plain(heading)}\n{table(rows)}")
        print(plain(summary(report)))
    count = report.found + (len(report.warnings) if arguments.strict else 0)
    if count:
        found = f"{count} thing{'' if count == 1 else 's'} to be mended"
        return complain(found, "do what the lines beginning with next say", code=PROBLEMS)
    return FINE
