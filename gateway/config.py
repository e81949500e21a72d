"""How a file becomes a configuration, and how the rest of the gateway calls its parts.

The models are in `settings/models`, and in what that names.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from gateway.settings import mcp_servers
from gateway.settings.callers import (
    KEY_PREFIX,
    Access,
    AccessRule,
    ApiKey,
    Authentication,
    Certificates,
    ServerTls,
    TokenIssuer,
)
from gateway.settings.confidential import confidential
from gateway.settings.conflicts import conflicts, long_forms
from gateway.settings.document import (
    MASKED_FROM,
    MOST_BYTES,
    TOO_LARGE,
    ConfigError,
    Problem,
    bare_variables,
    read,
)
from gateway.settings.draft import FIRST, Draft, draft
from gateway.settings.explain import explain
from gateway.settings.json_schema import json_schema
from gateway.settings.limits import Limits, Subscriptions
from gateway.settings.model import TlsFiles
from gateway.settings.models import (
    Cache,
    Config,
    Cors,
    Endpoint,
    Identity,
    Log,
    Names,
    RedisTls,
    Secrets,
    Tracing,
    contradictions,
)
from gateway.settings.outgoing import ClientCredentials, TokenClient, TokenExchange
from gateway.settings.reading import content_of
from gateway.settings.redis_url import RedisAddress, parse_redis_url
from gateway.settings.rules import nobody, odd_rules, strange_callers
from gateway.settings.signing import read_signing_key
from gateway.settings.upstreams import (
    Auth,
    Breaker,
    CachedCall,
    Tls,
    ToolRules,
    Upstream,
    UpstreamCache,
)
from gateway.settings.values import Address, FromFile, Rate, is_loopback, parse_address, shown_url

__all__ = [
    "FIRST",
    "KEY_PREFIX",
    "MASKED_FROM",
    "VERSION",
    "Access",
    "AccessRule",
    "Address",
    "ApiKey",
    "Auth",
    "Authentication",
    "Breaker",
    "Cache",
    "CachedCall",
    "Certificates",
    "ClientCredentials",
    "Config",
    "ConfigError",
    "Cors",
    "Draft",
    "Endpoint",
    "Identity",
    "Limits",
    "Log",
    "Names",
    "Problem",
    "Rate",
    "RedisAddress",
    "RedisTls",
    "Secrets",
    "ServerTls",
    "Subscriptions",
    "Tls",
    "TlsFiles",
    "TokenClient",
    "TokenExchange",
    "TokenIssuer",
    "ToolRules",
    "Tracing",
    "Upstream",
    "UpstreamCache",
    "confidential",
    "draft_file",
    "is_loopback",
    "load",
    "load_file",
    "nobody",
    "parse_address",
    "parse_redis_url",
    "read_signing_key",
    "schema",
    "shown_url",
    "text_in",
]

VERSION = version("mcp-caching-gateway")

_NOT_YET = "not supported by this version"
_STAND_IN = "a-value-for-a-variable"


_LATER: Mapping[tuple[str, ...], str] = {
    ("upstreams", "*", "forward_headers"): f"passing on headers of the caller is {_NOT_YET}",
}


def load_file(
    path: str | Path,
    *,
    instead: Mapping[str, str] = MappingProxyType({}),
    warn: Callable[[str], None] = lambda _: None,
    named: Callable[[Path], None] = lambda _: None,
) -> Config:
    """Return the configuration in a file; raises ConfigError with everything that is wrong with it."""
    folder = Path(path).absolute().parent
    return load(text_in(path), file=str(path), folder=folder, instead=instead, warn=warn, named=named)


def draft_file(path: str | Path, *, keep_secrets: bool = False, env: Mapping[str, str] = os.environ) -> Draft:
    """Return the configuration that an editor's servers file comes to, and what there is to say of it.

    A variable that is not set yet counts as set. Raises ConfigError for a file that cannot be read, or that
    no editor wrote.
    """
    file, folder = str(path), Path(path).absolute().parent
    document = read(text_in(path), file=file, env=env, verbatim=mcp_servers.is_bare)
    if not mcp_servers.is_bare(document.data):
        raise ConfigError(
            [Problem(file, 1, "", "expected the servers file of an editor: mcpServers or servers")]
        )
    around = mcp_servers.surroundings(document.data, env, folder)
    made = draft(document, around, frozenset(Config.model_fields), keep_secrets=keep_secrets)
    given = {**dict.fromkeys(made.variables, _STAND_IN), **env}
    try:
        load(made.text, folder=folder, env=given, warn=made.remarks.append)
    except ConfigError as error:
        made.problems += [f"{one.path}: {one.message}" for one in error.problems if made.taken]
    return made


def text_in(path: str | Path) -> str:
    """Return the text of a file; raises ConfigError."""
    try:
        content = content_of(Path(path), MOST_BYTES)
        text = "" if len(content) > MOST_BYTES else content.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError([Problem(str(path), 0, "", "the file is not UTF-8 text")]) from None
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise ConfigError([Problem(str(path), 0, "", reason)]) from None
    if len(content) > MOST_BYTES:
        raise ConfigError([Problem(str(path), 0, "", TOO_LARGE)])
    return text


def load(
    text: str,
    *,
    file: str = "config",
    folder: Path = Path(),
    env: Mapping[str, str] = os.environ,
    instead: Mapping[str, str] = MappingProxyType({}),
    warn: Callable[[str], None] = lambda _: None,
    named: Callable[[Path], None] = lambda _: None,
) -> Config:
    """Return the configuration that a YAML text or an editor's mcpServers file holds.

    `file` is what messages call it, `folder` where its relative paths start, `instead` holds values of the
    command line, which come before the file's. Raises ConfigError with all
    problems at once; `warn` is handed what is allowed but worth a second look, `named` every file that holds
    a part of it.
    """
    document = read(text, file=file, env=env, verbatim=mcp_servers.is_bare)
    if mcp_servers.is_bare(document.data):
        mcp_servers.translate(document, frozenset(Config.model_fields), warn, env=env, folder=folder)
    data = document.data
    if not isinstance(data, dict):
        raise ConfigError([Problem(file, 1, "", "expected a mapping of keys such as `upstreams`")])
    data.pop("$schema", None)
    data.update(instead)
    config = None
    try:
        config = Config.model_validate(data, context=FromFile(folder, named))
    except ValidationError as error:
        explain(error, document, Config, _LATER)
    for path, message in conflicts({**data, "upstreams": long_forms(data.get("upstreams"))}):
        document.report(path, message)
    for path, message in () if config is None else (*contradictions(config), *strange_callers(config)):
        document.report(path, message)
    if document.problems or config is None:
        raise ConfigError(document.mistakes())
    for message in (*bare_variables(document, env), *_worth_a_look(config)):
        warn(message)
    return config


def schema() -> dict[str, object]:
    """Return the JSON Schema of a configuration file, short forms included, for editors."""
    return json_schema(Config)


def _worth_a_look(config: Config) -> Iterator[str]:
    yield from _odd_trust(config.cache)
    if not (config.hosts or is_loopback(f"http://{config.listen}")):
        yield f"listen: {config.listen} answers to any Host header; name under `hosts` how clients reach it"
    yield from _odd_callers(config)
    yield from _odd_entrance(config)
    yield from odd_rules(config)
    for name, upstream in config.upstreams.items():
        place = f"upstreams.{name}"
        if upstream.tls.insecure_skip_verify:
            yield f"{place}.tls.insecure_skip_verify: anyone on the way can read and change all traffic"
        if upstream.tls != Tls() and not (upstream.url or "").lower().startswith("https:"):
            yield f"{place}.tls has no effect: the URL is not https"
        if upstream.auth.kind != "none" and _in_the_clear(upstream):
            yield f"{place}.auth: the credential travels unencrypted: the URL is http and leaves this machine"
        yield from (f"{place}.cache.{text}" for text in _bold_rules(upstream))
        if upstream.auth.personal and "share_public" not in upstream.cache.model_fields_set:
            yield (
                f"{place}.cache.share_public: results it marks public are shared among all callers, although "
                "each presents a token of their own; write share_public: true or false to settle it"
            )
        client = upstream.auth.client_credentials
        if client is not None and client.client_secret and not (client.issuer or client.token_url):
            yield (
                f"{place}.auth.client_credentials: client_secret is shown to the authorization server that "
                "the upstream names; write its issuer, so that it is shown to no other"
            )
    yield from _claimed_twice(config)
    for index, key in enumerate(config.secrets.keys):
        if len(key.get_secret_value()) < 16:
            yield f"secrets.keys[{index}] is shorter than 16 characters: whoever guesses it forges cursors"

    for place, length in _lengths_of_secrets(config):
        if length < MASKED_FROM:
            yield (
                f"{place} is shorter than {MASKED_FROM} characters: anyone guesses it, and the log hides it "
                "only where it stands alone"
            )


def _lengths_of_secrets(config: Config) -> Iterator[tuple[str, int]]:
    """Yield how long each credential is that the log must not show, and where it is written."""
    if config.cache.redis is not None:
        password = parse_redis_url(config.cache.redis.get_secret_value()).password
        if password is not None:
            yield "the password in cache.redis", len(password)
    for name, upstream in config.upstreams.items():
        place = f"upstreams.{name}.auth"
        if upstream.auth.bearer is not None:
            yield f"{place}.bearer", len(upstream.auth.bearer.get_secret_value())
        for header, value in upstream.auth.headers.items():
            yield f"{place}.headers.{header}", len(value.get_secret_value())
        client = upstream.auth.obtained
        if client is not None and client.client_secret is not None:
            yield f"{place}.{upstream.auth.kind}.client_secret", len(client.client_secret.get_secret_value())


def _claimed_twice(config: Config) -> Iterator[str]:
    """Yield the methods that the same endpoint would hand to two upstreams: the first gets them."""
    for path in config.endpoints:
        holder: dict[str, str] = {}
        for name in config.behind(path):
            for pattern in config.upstreams[name].methods:
                first = holder.setdefault(pattern, name)
                if first != name:
                    yield f"upstreams.{name}.methods: {pattern} goes to `{first}`, the first in {path}"


def _odd_entrance(config: Config) -> Iterator[str]:
    """Yield what looks like a door and is none, or leads to another one."""
    authentication, public = config.authentication, config.public_url or ""
    if not (authentication.on or is_loopback(f"http://{config.listen}")):
        yield (
            f"listen: {config.listen} lets in everybody who reaches it, and nobody is verified: "
            "`authentication` says how callers prove who they are"
        )
    if authentication.tokens and public.lower().startswith("http:") and not is_loopback(public):
        yield f"public_url: tokens for {public} travel unencrypted, and clients may refuse to send any there"
    for name, upstream in config.upstreams.items():
        if upstream.cache.partition == "subject" and not authentication.on:
            yield f"upstreams.{name}.cache.partition has no effect: nobody is verified"


def _odd_callers(config: Config) -> Iterator[str]:
    """Yield what lets others hear, or be, a caller."""
    everybody = [text for text in config.trusted_proxies if text.endswith("/0")]
    if everybody:
        yield f"trusted_proxies: {everybody[0]} is everybody: whoever calls says where from, and who"
    secured = config.tls.cert_file is not None or config.trusted_proxies
    if config.authentication.on and not secured and not is_loopback(f"http://{config.listen}"):
        yield (
            f"listen: {config.listen} is neither TLS (tls.cert_file) nor behind one of `trusted_proxies`: "
            "credentials travel unencrypted"
        )
    shown = config.tls.client_ca_file is not None
    if (
        shown
        and config.tls.client_certificates == "optional"
        and config.authentication.certificates.source != "tls"
    ):
        yield (
            "tls.client_ca_file has no effect: certificates are optional, and authentication.certificates "
            "does not ask who shows one"
        )


def _odd_trust(cache: Cache) -> Iterator[str]:
    tls = cache.redis_tls
    if tls.insecure_skip_verify:
        yield "cache.redis_tls.insecure_skip_verify: anyone on the way can read and change all traffic"
    encrypted = cache.redis is not None and parse_redis_url(cache.redis.get_secret_value()).tls
    if tls != RedisTls() and not encrypted:
        yield "cache.redis_tls has no effect: cache.redis is no rediss:// address"


def _in_the_clear(upstream: Upstream) -> bool:
    url = upstream.url or ""
    return url.lower().startswith("http:") and not is_loopback(url)


def _bold_rules(upstream: Upstream) -> Iterator[str]:
    """Yield the rules that share more than the upstream said, or that undo each other (C-24)."""
    cache = upstream.cache
    if cache.scope == "public" and upstream.isolated:
        yield "scope has no effect: with `isolation` each caller has a process, whose results are its own"
    elif cache.scope == "public" and cache.share_public:
        yield "scope: what it marks private is shared among all callers as well"
    narrowed = not cache.share_public or cache.scope == "private" or upstream.isolated
    for tool, call in cache.calls.items():
        if call.scope == "public" and narrowed:
            yield f"calls: results of {tool} are not shared: {_narrows(upstream)} forbids that"


def _narrows(upstream: Upstream) -> str:
    return "isolation" if upstream.isolated else "share_public or scope beside it"
