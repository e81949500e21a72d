"""The commands that are the gateway: `serve`, one worker of several, and `stdio`."""

import argparse
import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gateway import config
from gateway.commands.application import App, cannot_start, the_app
from gateway.commands.given import header_of, load, no_address, no_endpoint, read
from gateway.commands.printing import WRONG, complain, count, table, warn
from gateway.config import Config, ConfigError, parse_address

if TYPE_CHECKING:
    from gateway.server import Addresses


def serve(arguments: argparse.Namespace, app: App | None) -> int:
    """Serve until a signal stops it, in one process or as several."""
    warnings: list[str] = []
    places = {"listen": arguments.listen, "admin": arguments.admin}
    instead = {key: place for key, place in places.items() if place is not None}
    for key, place in instead.items():
        if (key, place) != ("admin", "off") and (refusal := no_address(key, place)) is not None:
            return refusal
    if arguments.worker is not None:
        return _work(arguments, instead, app)
    try:
        settings, text = read(arguments, instead, warnings.append)
    except ConfigError:
        for warning in warnings:
            warn(warning)
        raise

    def announce(addresses: "Addresses") -> None:
        print(_where(settings, addresses, as_json=arguments.json), flush=True)

    try:
        if arguments.workers > 1:
            if (refusal := _no_crew(settings)) is not None:
                return refusal
            from gateway.supervisor.crew import Source

            source = Source(_same_command(arguments), partial(read, arguments, instead, _ignored))
            return (app or the_app()).supervise(
                settings, arguments.workers, text, source, ready=announce, warnings=warnings
            )
        from gateway.reloader import Origin

        origin = Origin(arguments.config or arguments.file, instead)
        return (app or the_app()).serve(settings, ready=announce, warnings=warnings, origin=origin)
    except OSError as error:
        return cannot_start(settings, error)


def _work(arguments: argparse.Namespace, instead: Mapping[str, str], app: App | None) -> int:
    """Be one worker of several; what it needs beside its arguments comes from the supervisor."""
    from gateway.reloader import Origin
    from gateway.supervisor.station import Station

    station = Station(arguments.worker)
    file = arguments.config or arguments.file
    folder = Path(file).absolute().parent
    settings = config.load(station.order.text, file=file, folder=folder, instead=instead)
    try:
        return (app or the_app()).serve(
            settings, origin=Origin(file, instead, watched=False), station=station
        )
    except OSError as error:
        return cannot_start(settings, error)


def _ignored(warning: str) -> None:
    """Leave a warning to the workers, who read the same."""


def _no_crew(settings: Config) -> int | None:
    """Say why there cannot be several workers, if that is so."""
    from gateway.supervisor.places import POSSIBLE

    if not POSSIBLE:
        advice = "leave --workers out here, and run several gateways behind a load balancer"
        return complain("--workers: this system cannot share an address among processes", advice, code=WRONG)
    if settings.cache.redis is None:
        advice = (
            "set `cache.redis` and `secrets.keys`, as for several replicas; or leave --workers out: "
            "one process needs no Redis"
        )
        return complain("--workers: several processes meet at a Redis, and none is set", advice, code=WRONG)
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


def stdio(arguments: argparse.Namespace, app: App | None) -> int:
    """Be a server over stdin and stdout; all that is not a message of the protocol goes to stderr."""
    warnings: list[str] = []
    settings = load(arguments, warn=warnings.append)
    endpoint = arguments.endpoint or next(iter(settings.endpoints))
    if endpoint not in settings.endpoints:
        return no_endpoint(settings, endpoint)
    try:
        authorization = None if arguments.token_env is None else header_of(arguments.token_env)
        from gateway.reloader import Origin

        admin = {"admin": _admin(settings, arguments.admin)}
        return (app or the_app()).serve_stdio(
            settings.model_copy(update=admin),
            endpoint,
            authorization=authorization,
            warnings=warnings,
            origin=Origin(arguments.config or arguments.file, admin),
        )
    except ValueError as error:
        return complain(f"--admin: {error}", "use --admin 127.0.0.1:9090", code=WRONG)
    except OSError as error:
        return cannot_start(settings, error)


def _admin(settings: Config, wanted: str | None) -> str:
    """Return where the admin listener is: nowhere unless asked for, as a client may start many of us.

    Without an address it is the configuration's. Raises ValueError for what is no address.
    """
    if wanted is None or wanted == "off":
        return "off"
    address = wanted or settings.admin
    parse_address(address)
    return address


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
    rows = [("endpoint", url, ", ".join(settings.behind(path))) for path, url in urls.items()]
    rows.append(("callers", *_who_comes_in(settings)))
    if addresses.admin:
        rows.append(
            ("admin", addresses.admin, "/status /status.json /metrics /healthz /readyz /explain /purge")
        )
    for name, upstream in settings.upstreams.items():
        details = f"prefix {upstream.prefix or 'none'}, auth {upstream.auth.kind}"
        rows.append((f"upstream {name}", upstream.place, details))
    return f"MCP Gateway {config.VERSION}\n{table(rows)}"


def _who_comes_in(settings: Config) -> tuple[str, str]:
    """Return whether and how callers are verified, and whether rules say what they may do."""
    ways, access = settings.authentication, settings.access
    known = []
    if ways.tokens:
        known.append(f"tokens of {', '.join(ways.tokens)}")
    if ways.keys:
        known.append(count(ways.keys, "API key"))
    if ways.certificates.source is not None:
        known.append("certificates")
    if ways.on:
        who = f"verified by {' or '.join(known)}{'; others are anonymous' if ways.anonymous else ''}"
    else:
        who = "not verified: everybody comes in"
    otherwise = "denied" if access.denies else "allowed"
    what = f"{count(access.rules, 'rule')} of access, else {otherwise}" if access.on else "may use everything"
    return who, what
