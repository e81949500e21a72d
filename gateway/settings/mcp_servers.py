"""Translates a bare `mcpServers` file, as desktop clients keep it, into the gateway's own configuration."""

from collections.abc import Callable, Mapping

from gateway.settings.document import UNREADABLE, Document
from gateway.settings.values import slug

_URL_KEYS = ("url", "httpUrl", "serverUrl")
_HTTP_TYPES = ("http", "streamable-http", "streamableHttp", "streamable_http")
_NOT_YET = "is not supported by this version: give the server an http(s) URL"


def is_bare(data: object) -> bool:
    """Whether the data is an mcpServers file and no gateway configuration."""
    return isinstance(data, Mapping) and "mcpServers" in data and "upstreams" not in data


def translate(document: Document, own_keys: frozenset[str], warn: Callable[[str], None]) -> None:
    """Put the gateway's form of the servers in the place of the document's data."""
    data = document.data
    assert isinstance(data, Mapping)
    for key in data:
        if key in own_keys:
            document.report(
                (key,), "mcpServers stands alone: call it `upstreams` to use the gateway's own keys"
            )
        elif key not in ("mcpServers", "$schema"):
            warn(f"{key} is ignored: only mcpServers is read from such a file")
    servers = data["mcpServers"]
    if not isinstance(servers, Mapping):
        document.report(("mcpServers",), "expected a mapping of names to servers")
        servers = {}
    upstreams: dict[str, object] = {}
    for name, server in servers.items():
        if isinstance(server, Mapping) and server.get("disabled") is True:
            warn(f"mcpServers.{name} is disabled and left out")
            continue
        key = _key(name, upstreams)
        if key != name:
            warn(f"mcpServers.{name} becomes the upstream {key}: its tools are named after that")
        document.moved["upstreams", key] = ("mcpServers", name)
        upstreams[key] = _upstream(document, key, name, server, warn)
    document.moved["upstreams",] = ("mcpServers",)
    document.data = {"upstreams": upstreams}


def _key(name: str, taken: Mapping[str, object]) -> str:
    """Return a valid key that no other server has."""
    key = base = slug(name)
    number = 2
    while key in taken:
        key = f"{base[: 30 - len(str(number))]}-{number}"
        number += 1
    return key


def _upstream(document: Document, key: str, name: str, server: object, warn: Callable[[str], None]) -> object:
    place = ("mcpServers", name)
    if not isinstance(server, Mapping):
        return server
    kind = server.get("type", server.get("transport"))
    if "command" in server or kind == "stdio":
        document.report(place, f"a server that is started by `command` {_NOT_YET}")
        return UNREADABLE
    if kind is not None and kind not in _HTTP_TYPES:
        document.report(place, f"this `type` {_NOT_YET} that speaks Streamable HTTP")
        return UNREADABLE
    upstream: dict[str, object] = {}
    for member, value in server.items():
        if member in _URL_KEYS:
            upstream["url"] = value
            document.moved["upstreams", key, "url"] = (*place, member)
        elif member == "headers":
            if value:
                upstream["auth"] = {"headers": value}
                document.moved["upstreams", key, "auth"] = (*place, member)
                document.moved["upstreams", key, "auth", "headers"] = (*place, member)
        elif member not in ("type", "transport", "disabled"):
            warn(f"mcpServers.{name}.{member} is ignored")
    return upstream
