"""Reads the address of a Redis: one server, a unix socket, Sentinels that know it, or a Cluster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

Kind: TypeAlias = Literal["single", "unix", "sentinel", "cluster"]

FORMS = (
    "expected redis://host:6379/0, rediss://…, unix:///path, redis+sentinel://host:26379,host2:26379/NAME "
    "or redis+cluster://host:6379,host2:6379"
)

_SCHEMES: Mapping[str, tuple[Kind, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "unix": ("unix", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_PORTS: Mapping[Kind, int] = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
_SERVICE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_OPTIONS = frozenset({"db", "sentinel_username", "sentinel_password"})


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where a Redis is, and what it is told there."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    """The name Sentinels know the server by."""
    tls: bool = False
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        places = ",".join(f"{host}:{port}" for host, port in self.hosts) or self.path
        return f"{self.kind} {places}"


def parse_redis_url(text: str) -> RedisAddress:
    """Return the address a URL stands for; raises ValueError, which never repeats the URL (B42)."""
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise ValueError("a URL holds no spaces and no control characters")
    try:
        url = urlsplit(text)
        options = dict(parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query)))
        kind, tls = _SCHEMES[url.scheme]
    except (ValueError, KeyError):
        raise ValueError(FORMS) from None
    if url.fragment:
        raise ValueError(FORMS)
    if unknown := sorted(set(options) - _OPTIONS):
        if unknown[0].startswith("ssl_"):
            raise ValueError(
                f"unknown option `{unknown[0][:40]}`: what is trusted is said under `cache.redis_tls`"
            )
        raise ValueError(f"unknown option `{unknown[0][:40]}`; known are {', '.join(sorted(_OPTIONS))}")
    userinfo, _, places = url.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    service, db = _path(kind, url, options.pop("db", None))
    return RedisAddress(
        kind=kind,
        hosts=() if kind == "unix" else tuple(_host(one, _PORTS[kind]) for one in places.split(",")),
        path=unquote(url.path) if kind == "unix" else "",
        service=service,
        tls=tls,
        db=db,
        username=unquote(username) or None,
        password=unquote(password) or None,
        options=options,
    )


def _host(text: str, port: int) -> tuple[str, int]:
    hit = _HOST.fullmatch(text)
    if hit is None or not 0 < int(hit[3] or port) <= 65535:
        raise ValueError(FORMS)
    return hit[1] or hit[2], int(hit[3] or port)


def _path(kind: Kind, url: SplitResult, db: str | None) -> tuple[str, int]:
    """Return the service's name and the number of the database: behind the host, or `?db=`."""
    if kind == "unix":
        if url.netloc.rpartition("@")[2] or len(url.path) < 2:
            raise ValueError(FORMS)
        return "", _number(db or "0")
    parts = [part for part in url.path.split("/") if part]
    service = parts.pop(0) if kind == "sentinel" and parts else ""
    if (kind == "sentinel") != bool(_SERVICE.fullmatch(service)) or len(parts) > 1:
        raise ValueError(FORMS)
    number = _number(db or (parts[0] if parts else "0"))
    if kind == "cluster" and number:
        raise ValueError("a Redis Cluster has database 0 only")
    if kind == "single" and "," in url.netloc.rpartition("@")[2]:
        raise ValueError("several hosts are redis+sentinel:// or redis+cluster://")
    return service, number


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise ValueError("expected the number of the database: redis://host:6379/0")
    return int(text)
