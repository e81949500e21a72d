"""Where metadata stands: the well-known places of what has a URL (RFC 9728, RFC 8414, OpenID Connect)."""

from yarl import URL

DEFAULT_PORTS = {"https": 443, "http": 80}
_RESOURCE, _OAUTH = "oauth-protected-resource", "oauth-authorization-server"
_OPENID = "openid-configuration"


def resource_places(url: str) -> tuple[str, ...]:
    """Return where an MCP server's metadata may be: with its path inserted, then at the root."""
    return tuple(dict.fromkeys((_inserted(url, _RESOURCE), _at(url, f"/.well-known/{_RESOURCE}"))))


def issuer_places(issuer: str) -> tuple[str, ...]:
    """Return where an authorization server's metadata may be, in the order of the search (Z-11)."""
    path = _path(issuer)
    places = [_inserted(issuer, _OAUTH), _inserted(issuer, _OPENID)]
    if path:
        places.append(_at(issuer, f"{path}/.well-known/{_OPENID}"))
    return tuple(places)


def _inserted(url: str, document: str) -> str:
    return _at(url, f"/.well-known/{document}{_path(url)}")


def _path(url: str) -> str:
    return URL(url, encoded=True).raw_path.rstrip("/")


def _at(url: str, path: str) -> str:
    parts = URL(url, encoded=True)
    host = f"[{parts.raw_host}]" if ":" in (parts.raw_host or "") else parts.raw_host
    port = "" if parts.port in (None, DEFAULT_PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{path}"
