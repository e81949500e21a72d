"""Says under which URLs the endpoints are known, and who gives out tokens for them (RFC 9728).

A proxy in front may keep the path of `public_url` or take it away, and clients look below the host or below
what they take for our root: each place where a document may be asked for is known here (B37).
"""

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from gateway.config import Config
from gateway.protocol.jsonrpc import encode

WELL_KNOWN = "/.well-known/oauth-protected-resource"

_DEFAULT_PORTS = {"http": 80, "https": 443}
_LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


def canonical(url: str) -> str:
    """Return the one spelling of a URL that stands for a resource (Z-06).

    Scheme and host are lower-case; a default port, a fragment and a slash at the end are left out.
    """
    parts = urlsplit(url)
    scheme, host = parts.scheme.lower(), (parts.hostname or "").lower()
    name = f"[{host}]" if ":" in host else host
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(scheme)) else f":{parts.port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{name}{port}{parts.path.rstrip('/')}{query}"


def metadata_url(resource: str) -> str:
    """Return where the document about a resource is: the well-known segment stands before its path."""
    parts = urlsplit(resource)
    return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path}"


class Resources:
    """The endpoints of one configuration as clients know them; without `public_url` as they are bound."""

    def __init__(self, settings: Config, endpoints: Iterable[str], bound: Sequence[tuple[str, int]]) -> None:
        paths = {endpoint: endpoint.rstrip("/") for endpoint in endpoints}
        self._settings = settings
        self._base, local = _bases(settings, bound)
        self._urls = {endpoint: canonical(self._base + path) for endpoint, path in paths.items()}
        self._local = {
            host: {endpoint: canonical(base + path) for endpoint, path in paths.items()}
            for host, base in local.items()
        }
        self._asked = _places(urlsplit(self._base).path, paths) if settings.authentication.tokens else {}
        self._scopes = list(
            dict.fromkeys([*settings.authentication.scopes, *settings.authentication.scopes_supported])
        )

    def __repr__(self) -> str:
        return f"<Resources {', '.join(self._urls.values())}>"

    def url(self, endpoint: str, host: str) -> str:
        """Return the URL of an endpoint, as a client that wrote this Host header has it."""
        urls = self._local.get(host, self._urls) if self._local else self._urls
        return urls[endpoint]

    def metadata(self, endpoint: str, host: str) -> str | None:
        """Return where the document about an endpoint is; None where nobody gives out tokens for it."""
        return metadata_url(self.url(endpoint, host)) if self._asked else None

    def asked(self, path: str) -> str | None:
        """Return the endpoint whose document is looked for at this path."""
        return self._asked.get(path.rstrip("/"))

    def document(self, endpoint: str, host: str) -> bytes:
        """Return what clients need to know to get a token for an endpoint (Z-03)."""
        authentication, identity = self._settings.authentication, self._settings.identity
        said: dict[str, object] = {
            "resource": self.url(endpoint, host),
            "authorization_servers": [issuer.issuer for issuer in authentication.tokens.values()],
            "bearer_methods_supported": ["header"],
            "resource_name": identity.title or identity.name,
        }
        if self._scopes:
            said["scopes_supported"] = self._scopes
        if authentication.documentation is not None:
            said["resource_documentation"] = authentication.documentation
        return encode(said)


def _bases(settings: Config, bound: Sequence[tuple[str, int]]) -> tuple[str, Mapping[str, str]]:
    """Return how every URL begins, and how else by the Host header where that may decide.

    It may on loopback alone, and only between the names of this machine: the port is ours, or a token for
    another server of this machine would be good here.
    """
    if settings.public_url is not None:
        return canonical(settings.public_url), {}
    scheme = "http" if settings.tls.cert_file is None else "https"
    host, port = bound[0] if bound else ("127.0.0.1", 0)
    base = canonical(f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")
    if not all(name in _LOCAL for name, _ in bound):
        return base, {}
    ours = {name: canonical(f"{scheme}://{name}:{port}") for name in _LOCAL_NAMES}
    return base, {**ours, **{f"{name}:{port}": url for name, url in ours.items()}}


def _places(prefix: str, paths: Mapping[str, str]) -> Mapping[str, str]:
    """Return every path at which a document may be looked for; what is said in challenges comes first."""
    places: dict[str, str] = {}
    for before, behind in (("", prefix), ("", ""), (prefix, "")):
        for endpoint, path in paths.items():
            places.setdefault(f"{before}{WELL_KNOWN}{behind}{path}", endpoint)
    first = next(iter(paths), None)
    if first is not None:
        for root in (WELL_KNOWN, prefix + WELL_KNOWN, WELL_KNOWN + prefix):
            places.setdefault(root, first)
    return places
