"""Asks the operators' listener of a running gateway; blocking, for the command line.

Goes through no proxy: the address is this gateway's own, and a caller's token may be on the way.
"""

import http.client
import json
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import urlencode

from gateway import config

_PATIENCE = 10.0
_LARGEST = 16 * 2**20
_WILDCARDS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_SAME = "give the --config that it was started with, and the same --admin where it had one"

Reply: TypeAlias = tuple[int, Mapping[str, Any]]
"""An HTTP status and the JSON object that came with it."""


class Unreachable(Exception):
    """Nobody can be asked; `advice` says what would help, `settled` that the configuration rules it out."""

    def __init__(self, message: str, advice: str, *, settled: bool = False) -> None:
        super().__init__(message)
        self.advice = advice
        self.settled = settled


def explain(settings: config.Config, question: Mapping[str, str], authorization: str | None) -> Reply:
    """Return status and answer to a question about the cache; raises Unreachable."""
    headers = {} if authorization is None else {"Authorization": authorization}
    return _ask(settings.admin, "GET", f"/explain?{urlencode(question)}", headers)


def purge(settings: config.Config, wish: Mapping[str, object], authorization: str | None = None) -> Reply:
    """Return status and answer to a wish to forget something; raises Unreachable."""
    headers = {"Content-Type": "application/json"}
    if authorization is not None:
        headers["Authorization"] = authorization
    return _ask(settings.admin, "POST", "/purge", headers, json.dumps(wish).encode())


def _ask(admin: str, verb: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> Reply:
    host, port = _where(admin)
    connection = http.client.HTTPConnection(host, port, timeout=_PATIENCE)
    try:
        connection.request(verb, path, body, dict(headers))
        response = connection.getresponse()
        answer = json.loads(response.read(_LARGEST))
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise Unreachable(
            f"no gateway answers at {admin}: {reason}",
            f"start it with `mcp-gateway serve`, or {_SAME}",
        ) from None
    except ValueError:
        answer = None
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise Unreachable(f"what answers at {admin} is no MCP Gateway", _SAME)
    return response.status, answer


def _where(admin: str) -> tuple[str, int]:
    if admin == "off":
        raise Unreachable(
            "the configuration says `admin: off`",
            "set `admin` to an address and restart, or name where it listens by --admin",
            settled=True,
        )
    at = config.parse_address(admin)
    if at.port == 0:
        raise Unreachable(
            "`admin` has port 0, which is another port at each start",
            "choose a port and restart, or name the one that it has by --admin",
            settled=True,
        )
    return _WILDCARDS.get(at.host, at.host), at.port
