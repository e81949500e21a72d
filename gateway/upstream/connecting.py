"""How an upstream is reached: which certificates are trusted and shown, and through which proxy (B49)."""

import ipaddress
import logging
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from gateway import config
from gateway.protocol.call import UpstreamName
from gateway.support.trust import trust

log = logging.getLogger(__name__)


def trust_for(name: UpstreamName, settings: config.Upstream, proxy: str | None) -> ssl.SSLContext | bool:
    """Return what verifies this upstream; plain http needs none, and reading it takes 50 ms."""
    secure = any(url.startswith("https:") for url in ((settings.url or "").lower(), proxy or ""))
    return ssl_context(name, settings.tls) if secure or settings.tls != config.Tls() else True


def ssl_context(name: UpstreamName, tls: config.Tls) -> ssl.SSLContext:
    """Return what verifies this upstream; raises ValueError, naming the setting, for an unusable file."""
    context = trust(f"upstreams.{name}.tls", tls)
    if tls.insecure_skip_verify:
        log.warning("upstream %s: any certificate is accepted (tls.insecure_skip_verify)", name)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def proxy_for(settings: config.Upstream, environ: Mapping[str, str]) -> str | None:
    """Return the proxy that leads to this upstream, None for a direct connection.

    The environment counts only with `trust_env`, and never for a loopback address.
    """
    if settings.proxy is not None:
        return settings.proxy
    url = urlsplit(settings.url or "")
    host = (url.hostname or "").lower()
    if not settings.trust_env or is_loopback(host):
        return None
    named = {key.lower(): text for key, text in sorted(environ.items())}  # lower case comes last and wins
    if _bypassed(host, url.port, named.get("no_proxy", "")):
        return None
    proxy = named.get(f"{url.scheme}_proxy") or named.get("all_proxy") or None
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its spelling."""
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def shown_url(url: str) -> str:
    """Return a URL as a log may show it: without userinfo, query and fragment (B42)."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{'' if parts.port is None else f':{parts.port}'}{parts.path}"


def _bypassed(host: str, port: int | None, rules: str) -> bool:
    address = _address(host)
    for rule in rules.replace(",", " ").lower().split():
        if rule == "*":
            return True
        if address is not None and "/" in rule:
            try:
                if address in ipaddress.ip_network(rule, strict=False):
                    return True
            except ValueError:
                continue
        name, _, wanted = rule.rpartition(":") if rule.count(":") == 1 else (rule, "", "")
        if wanted and wanted != str(port):
            continue
        name = name.strip("[]").removeprefix("*").lstrip(".")
        if name and (host == name or (address is None and host.endswith("." + name))):
            return True
    return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
