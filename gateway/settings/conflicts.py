"""Finds what is wrong between parts of a configuration that are each well-formed. No model, no file."""

from collections.abc import Iterator, Mapping

from gateway.settings.document import Path as YamlPath
from gateway.settings.explain import nearest
from gateway.settings.values import is_loopback


def conflicts(data: Mapping[str, object]) -> Iterator[tuple[YamlPath, str]]:
    """Yield what is wrong between parts that are each well-formed; parts that are not are passed over."""
    upstreams, endpoints = data.get("upstreams"), data.get("endpoints", {"/mcp": {}})
    if isinstance(upstreams, Mapping) and not upstreams:
        yield ("upstreams",), "expected at least one upstream: NAME: http://host:port/mcp"
    if isinstance(endpoints, Mapping) and not endpoints:
        yield ("endpoints",), "expected at least one path, or leave `endpoints` out for /mcp"
    if isinstance(upstreams, Mapping) and isinstance(endpoints, Mapping):
        prefixes = {
            name: upstream.get("prefix") if isinstance(upstream, Mapping) else None
            for name, upstream in upstreams.items()
        }
        yield from _long_prefixes(prefixes, data.get("names"))
        chosen = {
            path: endpoint.get("upstreams") if isinstance(endpoint, Mapping) else None
            for path, endpoint in endpoints.items()
        }
        yield from _odd_choices(chosen, list(upstreams))
        yield from _strangers(data.get("access"), list(upstreams), list(endpoints))
        yield from _shared_prefixes(chosen, prefixes)
    cache, secrets = data.get("cache"), data.get("secrets")
    sealed = isinstance(secrets, Mapping) and secrets.get("keys")
    if isinstance(cache, Mapping) and cache.get("redis") is not None and not sealed:
        yield ("cache", "redis"), "needs secrets.keys: what lies in Redis is sealed, for all replicas alike"
    limits = data.get("limits")
    together = isinstance(limits, Mapping) and limits.get("rates_in") == "redis"
    if together and not (isinstance(cache, Mapping) and cache.get("redis") is not None):
        yield ("limits", "rates_in"), "needs cache.redis: that is where replicas count together"
    listen, admin = data.get("listen", "127.0.0.1:8080"), data.get("admin", "127.0.0.1:9090")
    yield from _unnamed(data, str(listen))
    yield from _unshown(data)
    if listen == admin and not str(listen).endswith(":0"):
        yield ("admin",), f"{admin} is where the endpoints are served: choose another port, or off"


def _unnamed(data: Mapping[str, object], listen: str) -> Iterator[tuple[YamlPath, str]]:
    """Yield a gateway that takes tokens and does not know which: they name the URL they are for (Z-06)."""
    authentication = data.get("authentication")
    tokens = isinstance(authentication, Mapping) and authentication.get("tokens")
    if not tokens or data.get("public_url") is not None:
        return
    place: YamlPath = ("authentication", "tokens")
    needs = "needs `public_url`: a token names the URL that it is for"
    if not is_loopback(f"http://{listen}"):
        yield place, f"{needs}, and {listen} is not where clients are"
    elif data.get("trusted_proxies"):
        yield place, f"{needs}, which is that of the proxy here"
    elif data.get("hosts"):
        yield place, f"{needs}, and `hosts` says that clients know another"


def _unshown(data: Mapping[str, object]) -> Iterator[tuple[YamlPath, str]]:
    """Yield certificates that are to say who calls, and that nobody can show."""
    authentication, tls = data.get("authentication"), data.get("tls")
    certificates = authentication.get("certificates") if isinstance(authentication, Mapping) else None
    source = certificates.get("source") if isinstance(certificates, Mapping) else None
    place: YamlPath = ("authentication", "certificates", "source")
    if source == "tls" and not (isinstance(tls, Mapping) and tls.get("client_ca_file")):
        yield place, "needs tls.client_ca_file: without it no client is asked for a certificate"
    if source == "header" and not data.get("trusted_proxies"):
        yield place, "needs `trusted_proxies`: from anybody else the header counts for nothing"


def _long_prefixes(prefixes: Mapping[str, object], names: object) -> Iterator[tuple[YamlPath, str]]:
    """Yield prefixes that leave less than 16 characters for a name and the hash of what was cut."""
    rules = names if isinstance(names, Mapping) else {}
    separator, most = rules.get("separator", "__"), rules.get("max_length", 64)
    if not isinstance(separator, str) or not isinstance(most, int) or most < 32:
        return
    for name, prefix in prefixes.items():
        if isinstance(prefix, str) and prefix and len(prefix) + len(separator) + 16 > most:
            message = f"its prefix leaves less than 16 of names.max_length {most}: write a shorter `prefix`"
            yield ("upstreams", name, "prefix"), message


def _odd_choices(chosen: Mapping[str, object], upstreams: list[str]) -> Iterator[tuple[YamlPath, str]]:
    for path, names in chosen.items():
        place: YamlPath = ("endpoints", path, "upstreams")
        if not isinstance(names, list):
            continue
        if not names:
            yield place, "expected at least one upstream, or leave the key out for all of them"
        for index, name in enumerate(names):
            if isinstance(name, str) and name not in upstreams:
                yield (*place, index), f"there is no upstream `{name}`{nearest(name, upstreams)}"
            elif name in names[:index]:
                yield (*place, index), f"`{name}` is in this list already"


def _strangers(access: object, upstreams: list[str], endpoints: list[str]) -> Iterator[tuple[YamlPath, str]]:
    """Yield what rules of access name and nobody has: a rule that was mistyped would protect nothing."""
    rules = access.get("rules") if isinstance(access, Mapping) else None
    for index, rule in enumerate(rules if isinstance(rules, list) else []):
        for key, known in (("upstreams", upstreams), ("endpoints", endpoints)):
            named = rule.get(key) if isinstance(rule, Mapping) else None
            for place, name in enumerate(named if isinstance(named, list) else []):
                if isinstance(name, str) and name not in known:
                    path: YamlPath = ("access", "rules", index, key, place)
                    yield path, f"there is no {key[:-1]} `{name}`{nearest(name, known)}"


def _shared_prefixes(
    chosen: Mapping[str, object], prefixes: Mapping[str, object]
) -> Iterator[tuple[YamlPath, str]]:
    """Yield upstreams whose names would collide with another's of the same endpoint (F-05)."""
    known: set[tuple[str, str]] = set()
    for path, names in chosen.items():
        owner: dict[str, str] = {}
        for name in names if isinstance(names, list) else prefixes:
            prefix = prefixes.get(name) if isinstance(name, str) else None
            if not isinstance(prefix, str) or owner.setdefault(prefix, name) == name:
                continue
            if (name, owner[prefix]) not in known:
                known.add((name, owner[prefix]))
                message = f'"{prefix}" is the prefix of `{owner[prefix]}` too, and {path} serves both'
                yield ("upstreams", name, "prefix"), message


def long_forms(upstreams: object) -> object:
    if not isinstance(upstreams, Mapping):
        return upstreams
    return {key: _long_form(key, one) for key, one in upstreams.items()}


def _long_form(key: object, upstream: object) -> object:
    """Return a bare URL as a mapping, with the key as the prefix unless another is written."""
    if isinstance(upstream, str):
        return {"url": upstream, "prefix": key}
    if isinstance(upstream, Mapping) or upstream is None:
        return {"prefix": key, **(upstream or {})}
    return upstream
