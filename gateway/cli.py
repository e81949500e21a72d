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
import secrets
import shlex
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence, Sized
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from gateway import config
from gateway.config import FIRST, Config, ConfigError, Problem, parse_address

if TYPE_CHECKING:
    from gateway.app import ToolListing
    from gateway.reloader import Origin
    from gateway.server import Addresses
    from gateway.supervisor.crew import Source
    from gateway.supervisor.station import Station

FINE, PROBLEMS, WRONG = 0, 1, 2
_LONGEST_ARGUMENTS = 64 * 1024
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


class App(Protocol):
    """What this module needs of gateway.app, which is only imported by the commands that run something."""

    def serve(
        self,
        config: Config,
        *,
        ready: "Callable[[Addresses], None] | None" = None,
        warnings: Sequence[str] = (),
        origin: "Origin | None" = None,
        station: "Station | None" = None,
    ) -> int: ...

    def supervise(
        self,
        config: Config,
        workers: int,
        text: str,
        source: "Source",
        *,
        ready: "Callable[[Addresses], None]",
        warnings: Sequence[str] = (),
    ) -> int: ...

    def serve_stdio(
        self,
        config: Config,
        endpoint: str,
        *,
        authorization: str | None = None,
        warnings: Sequence[str] = (),
        origin: "Origin | None" = None,
    ) -> int: ...

    def list_tools(
        self,
        config: Config,
        endpoint: str,
        *,
        caller: str | None = None,
        scopes: Sequence[str] = (),
        claims: Mapping[str, object] | None = None,
    ) -> "Coroutine[None, None, ToolListing]": ...


def main(argv: Sequence[str] | None = None, *, app: App | None = None) -> int:
    """Run one command and return its exit code; raises SystemExit for wrong usage, as argparse does."""
    arguments = _parser().parse_args(argv)
    try:
        code = _run(arguments, app)
        sys.stdout.flush()
        return code
    except ConfigError as error:
        return _wrong_config(error.problems, _file_of(arguments))
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
        case "stdio":
            return _stdio(arguments, app)
        case "check":
            return _check(arguments)
        case "init":
            return _init(arguments)
        case "tools":
            return _tools(arguments, app)
        case "doctor":
            return _doctor(arguments)
        case "explain":
            return _explain(arguments)
        case "purge":
            return _purge(arguments)
        case "key":
            return _key(arguments.name, as_json=arguments.json)
        case "schema":
            print(json.dumps(config.schema(), indent=2, ensure_ascii=False))
            return FINE
        case _:
            return _version(as_json=arguments.json)


def _serve(arguments: argparse.Namespace, app: App | None) -> int:
    warnings: list[str] = []
    places = {"listen": arguments.listen, "admin": arguments.admin}
    instead = {key: place for key, place in places.items() if place is not None}
    for key, place in instead.items():
        if (key, place) != ("admin", "off") and (refusal := _no_address(key, place)) is not None:
            return refusal
    if arguments.worker is not None:
        return _work(arguments, instead, app)
    try:
        settings, text = _read(arguments, instead, warnings.append)
    except ConfigError:
        for warning in warnings:
            _warn(warning)
        raise

    def announce(addresses: "Addresses") -> None:
        print(_where(settings, addresses, as_json=arguments.json), flush=True)

    try:
        if arguments.workers > 1:
            if (refusal := _no_crew(settings)) is not None:
                return refusal
            from gateway.supervisor.crew import Source

            source = Source(_same_command(arguments), partial(_read, arguments, instead, _ignored))
            return (app or _app()).supervise(
                settings, arguments.workers, text, source, ready=announce, warnings=warnings
            )
        from gateway.reloader import Origin

        origin = Origin(arguments.config or arguments.file, instead)
        return (app or _app()).serve(settings, ready=announce, warnings=warnings, origin=origin)
    except OSError as error:
        return _cannot_start(settings, error)


def _no_address(option: str, place: str) -> int | None:
    """Say what is wrong with an address that an option names, if it is."""
    try:
        parse_address(place)
    except ValueError as error:
        return _complain(f"--{option}: {error}", f"use --{option} 127.0.0.1:8081", code=WRONG)
    return None


def _work(arguments: argparse.Namespace, instead: Mapping[str, str], app: App | None) -> int:
    """Be one worker of several; what it needs beside its arguments comes from the supervisor."""
    from gateway.reloader import Origin
    from gateway.supervisor.station import Station

    station = Station(arguments.worker)
    file = arguments.config or arguments.file
    folder = Path(file).absolute().parent
    settings = config.load(station.order.text, file=file, folder=folder, instead=instead)
    try:
        return (app or _app()).serve(settings, origin=Origin(file, instead, watched=False), station=station)
    except OSError as error:
        return _cannot_start(settings, error)


def _read(
    arguments: argparse.Namespace,
    instead: Mapping[str, str],
    warn: Callable[[str], None],
    named: Callable[[Path], None] = lambda _: None,
) -> tuple[Config, str]:
    """Return the configuration and its text, and name every file it is in; raises ConfigError."""
    file = arguments.config or arguments.file
    named(Path(file).absolute())
    text = config.text_in(file)
    folder = Path(file).absolute().parent
    return config.load(text, file=file, folder=folder, instead=instead, warn=warn, named=named), text


def _ignored(warning: str) -> None:
    """Leave a warning to the workers, who read the same."""


def _no_crew(settings: Config) -> int | None:
    """Say why there cannot be several workers, if that is so."""
    from gateway.supervisor.places import POSSIBLE

    if not POSSIBLE:
        advice = "leave --workers out here, and run several gateways behind a load balancer"
        return _complain("--workers: this system cannot share an address among processes", advice, code=WRONG)
    if settings.cache.redis is None:
        advice = (
            "set `cache.redis` and `secrets.keys`, as for several replicas; or leave --workers out: "
            "one process needs no Redis"
        )
        return _complain("--workers: several processes meet at a Redis, and none is set", advice, code=WRONG)
    return None


def _same_command(arguments: argparse.Namespace) -> list[str]:
    """Return what starts one process of what this one was started for."""
    own = len(sys.argv) - 1
    begin = sys.orig_argv[1 : len(sys.orig_argv) - own]  # options of Python, and how it came here
    command = [sys.executable, *begin, "serve", "--config", arguments.config or arguments.file]
    for key in ("listen", "admin"):
        if (place := getattr(arguments, key)) is not None:
            command += [f"--{key}", place]
    return command


def _stdio(arguments: argparse.Namespace, app: App | None) -> int:
    """Be a server over stdin and stdout; all that is not a message of the protocol goes to stderr."""
    warnings: list[str] = []
    settings = _load(arguments, warn=warnings.append)
    endpoint = arguments.endpoint or next(iter(settings.endpoints))
    if endpoint not in settings.endpoints:
        return _no_endpoint(settings, endpoint)
    try:
        authorization = None if arguments.token_env is None else _authorization(arguments.token_env)
        from gateway.reloader import Origin

        admin = {"admin": _admin(settings, arguments.admin)}
        return (app or _app()).serve_stdio(
            settings.model_copy(update=admin),
            endpoint,
            authorization=authorization,
            warnings=warnings,
            origin=Origin(arguments.config or arguments.file, admin),
        )
    except _NoToken as error:
        return _complain(str(error), error.advice, code=WRONG)
    except ValueError as error:
        return _complain(f"--admin: {error}", "use --admin 127.0.0.1:9090", code=WRONG)
    except OSError as error:
        return _cannot_start(settings, error)


def _admin(settings: Config, wanted: str | None) -> str:
    """Return where the admin listener is: nowhere unless asked for, as a client may start many of us.

    Without an address it is the configuration's. Raises ValueError for what is no address.
    """
    if wanted is None or wanted == "off":
        return "off"
    address = wanted or settings.admin
    parse_address(address)
    return address


def _no_endpoint(settings: Config, endpoint: str) -> int:
    known = " or ".join(f"--endpoint {path}" for path in settings.endpoints)
    return _complain(f"there is no endpoint {endpoint}", f"use {known}", code=WRONG)


def _where(settings: Config, addresses: "Addresses", *, as_json: bool) -> str:
    """Return where everything is, as bound, and what stands behind it; one line of JSON for a program."""
    urls = dict(zip(settings.endpoints, addresses.endpoints, strict=True))
    if as_json:
        ways = settings.authentication
        places = {
            "endpoints": urls,
            "admin": addresses.admin,
            "upstreams": list(settings.upstreams),
            "verified": ways.on,
            "anonymous": ways.anonymous or not ways.on,
        }
        return json.dumps(places, ensure_ascii=False)
    rows = [("endpoint", url, ", ".join(_behind(settings, path))) for path, url in urls.items()]
    rows.append(("callers", *_who_comes_in(settings)))
    if addresses.admin:
        rows.append(
            ("admin", addresses.admin, "/status /status.json /metrics /healthz /readyz /explain /purge")
        )
    for name, upstream in settings.upstreams.items():
        details = f"prefix {upstream.prefix or 'none'}, auth {upstream.auth.kind}"
        rows.append((f"upstream {name}", upstream.place, details))
    return f"MCP Gateway {config.VERSION}\n{_table(rows)}"


def _who_comes_in(settings: Config) -> tuple[str, str]:
    """Return whether and how callers are verified, and whether rules say what they may do."""
    ways, access = settings.authentication, settings.access
    known = []
    if ways.tokens:
        known.append(f"tokens of {', '.join(ways.tokens)}")
    if ways.keys:
        known.append(_count(ways.keys, "API key"))
    if ways.certificates.source is not None:
        known.append("certificates")
    if ways.on:
        who = f"verified by {' or '.join(known)}{'; others are anonymous' if ways.anonymous else ''}"
    else:
        who = "not verified: everybody comes in"
    otherwise = "denied" if access.denies else "allowed"
    what = (
        f"{_count(access.rules, 'rule')} of access, else {otherwise}" if access.on else "may use everything"
    )
    return who, what


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
        return _wrong_config(problems, arguments.file)
    parts = f"{_count(settings.upstreams, 'upstream')}, {_count(settings.endpoints, 'endpoint')}"
    print(f"{arguments.file}: fine, {parts}")
    return FINE


def _init(arguments: argparse.Namespace) -> int:
    """Write a first configuration, or one made of an editor's file; what is there already stays."""
    source, target = arguments.source, arguments.target
    if source is None:
        return _written(target, FIRST, "check it with", code=FINE)
    made = config.draft_file(source, keep_secrets=arguments.keep_secrets)
    for remark in made.remarks:
        _warn(remark)
    for problem in made.problems:
        print(f"problem: {_plain(problem)}", file=sys.stderr)
    if not made.taken:
        advice = "mend the above and run this again; `mcp-gateway init` alone writes an example"
        return _complain(f"{source} holds no server that can be taken over", advice, code=WRONG)
    first = f"set {', '.join(made.variables)}, and then try" if made.variables else "check it with"
    return _written(target, made.text, first, code=PROBLEMS if made.problems else FINE)


def _written(target: str, text: str, advice: str, *, code: int) -> int:
    """Write a new file, readable by its owner alone as it may come to hold a secret; `-` is stdout."""
    if target == "-":
        print(text, end="")
        return code
    try:
        with open(target, "x", encoding="utf-8", opener=lambda path, how: os.open(path, how, 0o600)) as file:
            file.write(text)
    except FileExistsError:
        advice = "choose another name for the new file, or - for stdout"
        return _complain(f"{target} is there already and stays as it is", advice, code=WRONG)
    except OSError as error:
        return _complain(f"cannot write {target}: {error.strerror or error}", code=WRONG)
    print(f"{target}: written")
    print(f"next: {advice} `mcp-gateway check {shlex.quote(target)}`", file=sys.stderr)
    return code


def _tools(arguments: argparse.Namespace, app: App | None) -> int:
    settings = _load(arguments)
    endpoint = arguments.endpoint or next(iter(settings.endpoints))
    if endpoint not in settings.endpoints:
        return _no_endpoint(settings, endpoint)
    import asyncio  # only here, as gateway.app: the quick commands start without either

    try:
        claims = _claims(arguments)
    except ValueError as error:
        return _complain(str(error), "such as --as corp:alice --scopes 'read write'", code=WRONG)
    try:
        listing = asyncio.run(
            (app or _app()).list_tools(
                settings,
                endpoint,
                caller=arguments.caller,
                scopes=(arguments.scopes or "").split(),
                claims=claims,
            )
        )
    except OSError as error:
        return _cannot_start(settings, error)
    code = PROBLEMS if listing.problems else FINE
    strange = None if arguments.caller is None else config.nobody(arguments.caller, settings)
    if strange is not None and not arguments.json:
        _warn(strange)
    if arguments.json:
        report = {"endpoint": endpoint, "tools": [asdict(tool) for tool in listing.tools]}
        if arguments.caller is not None:
            report["kept"] = [{"name": name, "why": why} for name, why in listing.kept]
        if strange is not None:
            report["warning"] = strange
        print(json.dumps({**report, "problems": list(listing.problems)}, ensure_ascii=False))
        return code
    rows = [
        (tool.name, f"{tool.upstream}: {tool.original}", _first_line(tool.description))
        for tool in listing.tools
    ]
    print(_table(rows) if rows else f"{endpoint} shows no tools")
    for name, why in listing.kept:
        print(f"{_plain(name)}: {why}")
    for problem in listing.problems:
        print(f"problem: {_plain(problem)}", file=sys.stderr)
    if listing.problems:
        return _complain("the list is not complete", "mend the above and run this again", code=code)
    return code


def _claims(arguments: argparse.Namespace) -> Mapping[str, object]:
    """Return what the token says of the caller whom the command names; raises ValueError."""
    if arguments.caller is None and (arguments.scopes is not None or arguments.claims is not None):
        raise ValueError("--scopes and --claims are those of the caller that --as names")
    claims = {} if arguments.claims is None else json.loads(arguments.claims)
    if not isinstance(claims, dict):
        raise ValueError("--claims is a JSON object, as a token holds them")
    return claims


def _doctor(arguments: argparse.Namespace) -> int:
    settings = _load(arguments)
    variables: list[str] = arguments.token_env or []
    if arguments.endpoint is not None and arguments.endpoint not in settings.endpoints:
        return _no_endpoint(settings, arguments.endpoint)
    if len(variables) > (2 if arguments.audit else 1):
        most = "two callers are compared" if arguments.audit else "one token will do; two go with --audit"
        return _complain("that is too many --token-env", most, code=WRONG)
    import asyncio

    from gateway.doctor.asking import Token
    from gateway.doctor.examine import examine
    from gateway.doctor.findings import document
    from gateway.doctor.text import summary, tables

    try:
        tokens = [Token(variable, _authorization(variable)) for variable in variables]
        if len({token.authorization for token in tokens}) < len(tokens):
            advice = "give those of two callers who may see different things"
            return _complain("both variables hold the same token", advice, code=WRONG)
        report = asyncio.run(
            examine(
                settings,
                endpoint=arguments.endpoint,
                tokens=tokens,
                audited=arguments.audit,
                max_reads=arguments.max_reads,
                say=lambda text: print(f"... {_plain(text)}", file=sys.stderr, flush=True),
            )
        )
    except _NoToken as error:
        return _complain(str(error), error.advice, code=WRONG)
    except OSError as error:
        return _cannot_start(settings, error)
    except ValueError as error:
        return _complain(_plain(str(error)), "correct this setting", code=PROBLEMS)
    if arguments.json:
        print(json.dumps(document(report), ensure_ascii=False))
    else:
        for heading, rows in tables(report):
            print(f"{_plain(heading)}\n{_table(rows)}")
        print(_plain(summary(report)))
    count = report.found + (len(report.warnings) if arguments.strict else 0)
    if count:
        found = f"{count} thing{'' if count == 1 else 's'} to be mended"
        return _complain(found, "do what the lines beginning with next say", code=PROBLEMS)
    return FINE


def _explain(arguments: argparse.Namespace) -> int:
    if arguments.admin is not None and (refusal := _no_address("admin", arguments.admin)) is not None:
        return refusal
    settings = _load(arguments, instead={} if arguments.admin is None else {"admin": arguments.admin})
    question = {"method": arguments.method}
    if arguments.endpoint is not None:
        question["endpoint"] = arguments.endpoint
    if arguments.target is not None:
        question["uri" if arguments.method == "resources/read" else "name"] = arguments.target
    if arguments.capabilities is not None:
        question["capabilities"] = arguments.capabilities
    if arguments.arguments is not None:
        if len(arguments.arguments.encode(errors="surrogateescape")) > _LONGEST_ARGUMENTS:
            return _complain(
                "no call with arguments as long as these is kept", "ask about others", code=WRONG
            )
        question["arguments"] = arguments.arguments
    if arguments.caller is not None:
        question["caller"] = arguments.caller
    if arguments.scopes is not None:
        question["scopes"] = arguments.scopes
    from gateway import admin_client

    try:
        authorization = None if arguments.token_env is None else _authorization(arguments.token_env)
        status, answer = admin_client.explain(settings, question, authorization)
    except _NoToken as error:
        return _complain(str(error), error.advice, code=WRONG)
    except admin_client.Unreachable as error:
        return _complain(str(error), error.advice, code=WRONG if error.settled else PROBLEMS)
    if status != 200:
        return _refused(status, answer)
    code = PROBLEMS if "problem" in answer else FINE
    if "warning" in answer and not arguments.json:
        _warn(str(answer["warning"]))
    if arguments.json:
        print(json.dumps(answer, ensure_ascii=False))
        return code
    print(_explained(answer))
    if code:
        advice = "ask the gateway for the list first; explain fetches nothing"
        return _complain(_plain(str(answer["problem"])), advice, code=code)
    return code


def _explained(answer: Mapping[str, Any]) -> str:
    """Return the parts of an answer as lines: what each would do and why, and what its key is made of."""
    head = f"{answer['endpoint']} {answer['method']} for {answer['caller']}: {_judged(answer)}"
    rows: list[tuple[str, str, str]] = []
    if (view := answer["view"]) is not None:
        details = f"{view['scope']}, {_times(view)}" if view["remembered"] else "not remembered"
        rows.append(("joined answer", "", details))
    for part in answer["parts"]:
        allowed = part["access"]["why"] if "access" in part else ""
        rows.append((part["upstream"], _judged(part), part.get("note", allowed)))
        for page, lookup in enumerate(part["lookups"], 1):
            rows.append(
                (f"  page {page}" if len(part["lookups"]) > 1 else "", _judged(lookup), _stored(lookup))
            )
            key = ", ".join(f"{name} {text}" for name, text in lookup["key"].items() if text is not None)
            rows.append(("", "key", key))
    return f"{_plain(head)}\n{_table(rows)}" if rows else _plain(head)


def _judged(said: Mapping[str, Any]) -> str:
    return f"{said['verdict']} {said['reason']}" if "verdict" in said else "-"


def _stored(lookup: Mapping[str, Any]) -> str:
    if "arm" not in lookup:
        return "nothing is kept"
    by_rule = f", by {' and '.join(lookup['overrides'])}" if lookup["overrides"] else ""
    return f"{lookup['arm']} arm, scope {lookup['scope']}, {_times(lookup)}, {lookup['bytes']} bytes{by_rule}"


def _times(said: Mapping[str, Any]) -> str:
    whole = f" of {said['ttl']:g}s" if "ttl" in said else ""
    return f"age {said['age']:.1f}s, {said['remaining']:.1f}s left{whole}"


def _purge(arguments: argparse.Namespace) -> int:
    if arguments.admin is not None and (refusal := _no_address("admin", arguments.admin)) is not None:
        return refusal
    settings = _load(arguments, instead={} if arguments.admin is None else {"admin": arguments.admin})
    if arguments.upstream is not None and arguments.upstream not in settings.upstreams:
        known = ", ".join(settings.upstreams)
        return _complain(f"there is no upstream {arguments.upstream}", f"choose one of {known}", code=WRONG)
    named = {"upstream": arguments.upstream, "method": arguments.method, "uri": arguments.uri}
    wish: dict[str, object] = {name: text for name, text in named.items() if text is not None}
    from gateway import admin_client

    try:
        authorization = None
        if arguments.token_env is not None:
            authorization, wish["caller"] = _authorization(arguments.token_env), True
        status, answer = admin_client.purge(settings, wish or {"all": True}, authorization)
    except _NoToken as error:
        return _complain(str(error), error.advice, code=WRONG)
    except admin_client.Unreachable as error:
        return _complain(str(error), error.advice, code=WRONG if error.settled else PROBLEMS)
    if status != 200:
        return _refused(status, answer)
    if arguments.json:
        print(json.dumps(answer, ensure_ascii=False))
        return FINE
    purged: list[dict[str, str | None]] = answer["purged"]
    print("forgotten:")
    print(_table([(one["upstream"] or "", one["method"] or "everything", _just(one)) for one in purged]))
    return FINE


def _just(purged: Mapping[str, str | None]) -> str:
    """Return what else narrowed a purge."""
    return purged["uri"] or (f"of caller {purged['caller']}" if purged.get("caller") else "")


def _refused(status: int, answer: Mapping[str, Any]) -> int:
    """Say why the running gateway did not do it; 400 means that it was asked for what cannot be."""
    reason = _plain(str(answer.get("error", f"status {status}")))
    return _complain(f"the gateway refused: {reason}", code=WRONG if status == 400 else PROBLEMS)


def _key(name: str, *, as_json: bool) -> int:
    """Make a key for a caller; only its hash is for the configuration, and the key itself is kept nowhere."""
    key = f"{config.KEY_PREFIX}{secrets.token_urlsafe(32)}"
    hashed = f"sha256:{sha256(key.encode()).hexdigest()}"
    try:
        config.Authentication.model_validate({"keys": {name: {"hash": hashed}}})
    except ValueError:
        advice = "take 1 to 64 characters of A-Z a-z 0-9 _ - ."
        return _complain("this is no name for a caller", advice, code=WRONG)
    if as_json:
        print(json.dumps({"name": name, "key": key, "hash": hashed}))
        return FINE
    print(f"# the key of key:{name}, which is shown this once:\n{key}\n")
    print("# and what knows it again, for the configuration:")
    print(f"authentication:\n  keys:\n    {json.dumps(name)}:\n      hash: {hashed}")
    print("      # scopes: [read]          # what it grants\n      # expires: 2027-01-31     # its last day")
    print("next: give the key to its caller, who sends it as `Authorization: Bearer KEY`", file=sys.stderr)
    return FINE


def _version(*, as_json: bool) -> int:
    if as_json:
        facts = {"name": "mcp-gateway", "version": config.VERSION, "python": platform.python_version()}
        print(json.dumps(facts))
    else:
        print(f"mcp-gateway {config.VERSION}")
    return FINE


class _NoToken(Exception):
    """A variable that should hold a token does not; what it holds is not repeated."""

    def __init__(self, variable: str) -> None:
        super().__init__(f"the variable {variable} holds no token")
        self.advice = f"export {variable}=TOKEN, without quotes or line breaks in it"


def _authorization(variable: str) -> str:
    """Return the header for the token in a variable, which may be the whole of it; raises _NoToken."""
    token = os.environ.get(variable, "").strip()
    if not token or not (token.isascii() and token.isprintable()):
        raise _NoToken(variable)
    return token if " " in token else f"Bearer {token}"


def _file_of(arguments: argparse.Namespace) -> str:
    named = (getattr(arguments, name, None) for name in ("config", "file", "source"))
    return next((name for name in named if name), "")


def _load(
    arguments: argparse.Namespace,
    *,
    instead: Mapping[str, str] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Config:
    file = arguments.config or arguments.file
    return config.load_file(file, instead=instead or {}, warn=warn or _warn)


def _app() -> App:
    from gateway import app

    return app


def _wrong_config(problems: Sequence[Problem], file: str) -> int:
    for problem in problems:
        print(_plain(str(problem)), file=sys.stderr)
    again = f"mcp-gateway check {shlex.quote(_plain(file))}"
    advice = f"mend this and try `{again}`; `mcp-gateway schema` prints every key"
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


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of equally many columns, each as wide as its widest but for the last."""
    plain = [list(map(_plain, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*plain, strict=True)][:-1]
    padded = (
        [text.ljust(width) for text, width in zip(row, widths, strict=False)] + row[-1:] for row in plain
    )
    return "\n".join(f"  {'  '.join(row)}".rstrip() for row in padded)


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
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _positive(text: str) -> int:
    number = int(text)
    if not 1 <= number <= _MOST_WORKERS:
        raise ValueError
    return number


_positive.__name__ = f"number from 1 to {_MOST_WORKERS}"
_natural.__name__ = "number"  # what argparse calls it when it is none


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
