"""All that a configuration file may say, as pydantic models on one page, and how a file becomes one."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gateway.protocol.methods import METHODS

VERSION = version("mcp-caching-gateway")


@dataclass(frozen=True, slots=True)
class FromFile:
    """The validation context of a file: relative paths start at its folder, and every duration has a unit."""

    folder: Path


# What a value may be. A message says what was expected and never repeats the value: it may be a secret (B42).

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d{1,12})(B|KiB|MiB|GiB)")
_SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NAMESPACE = re.compile(r"[a-z][a-z0-9-]{0,30}")
_PATH = re.compile(r"/|(?:/[A-Za-z0-9._~-]+)+")


def parse_duration(value: object, info: ValidationInfo) -> object:
    """Return the seconds that `250ms`, `30s`, `5m` or `24h` stand for; plain numbers only from Python code."""
    if value in (0, "0") and not isinstance(value, bool):
        return 0.0
    if isinstance(value, str):
        hit = _DURATION.fullmatch(value.strip())
        if hit:
            return float(hit[1]) * _DURATION_UNITS[hit[2]]
    elif not isinstance(value, bool) and not isinstance(info.context, FromFile):
        return value
    raise ValueError("expected a number with a unit: 250ms, 30s, 5m or 24h")


def parse_size(value: object) -> object:
    """Return the bytes that `64KiB` or `64MiB` stand for; a plain integer is bytes."""
    if isinstance(value, str):
        hit = _SIZE.fullmatch(value.strip())
        if hit:
            return int(hit[1]) * _SIZE_UNITS[hit[2]]
        if value.strip().isdecimal():
            return int(value)
    elif not isinstance(value, bool):
        return value
    raise ValueError("expected a number with a unit: 512B, 64KiB, 64MiB or 1GiB")


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a whole number")
    return value


def _read_secret(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, Mapping):
        return value
    if set(value) != {"file"} or not isinstance(value["file"], str):
        raise ValueError("expected text or {file: /path/to/the/secret}")
    path = _absolute(value["file"], info)
    try:
        return path.read_text("utf-8").rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"cannot read the secret file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the secret file {path} is not UTF-8 text") from None


def _sound_secret(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text.strip():
        raise ValueError("the secret is empty")
    if not text.isascii() or not text.isprintable():
        raise ValueError("the secret holds a line break or another character that no header can carry")
    return value


def _absolute(path: str, info: ValidationInfo) -> Path:
    folder = info.context.folder if isinstance(info.context, FromFile) else Path()
    return (folder / Path(path).expanduser()).absolute()


def _readable_file(value: str, info: ValidationInfo) -> str:
    path = _absolute(value, info)
    try:
        with path.open("rb"):
            return str(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None


def _split_url(value: str, schemes: tuple[str, ...] = ("http", "https")) -> SplitResult:
    if re.search(r"[\s\x00-\x1f\x7f]", value):
        raise ValueError("a URL holds no spaces and no control characters")
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        raise ValueError("expected a URL: http://host:port/path, an IPv6 address in [brackets]") from None
    if url.scheme not in schemes or not url.hostname or port == 0:
        raise ValueError(
            f"expected a URL that starts with {' or '.join(f'{s}://' for s in schemes)} and a host"
        )
    return url


def _upstream_url(value: str) -> str:
    url = _split_url(value)
    if url.username is not None or url.password is not None:
        raise ValueError(
            'credentials do not belong into a URL: use auth: {headers: {Authorization: "Basic …"}}'
        )
    if "#" in value:
        raise ValueError("a URL that is requested has no #fragment")
    return value


def _proxy_url(value: str) -> str:
    url = _split_url(value)
    if url.username is not None or url.password is not None:
        raise ValueError("a proxy that asks for credentials is not supported by this version")
    if url.path.strip("/") or url.query or url.fragment:
        raise ValueError("expected the proxy's http://host:port and nothing behind it")
    return value


def _public_url(value: str) -> str:
    url = _split_url(value)
    if url.username is not None or "?" in value or "#" in value:
        raise ValueError("expected https://host or https://host/path without credentials, query and fragment")
    return value.rstrip("/")


def _origin(value: str) -> str:
    url = _split_url(value)
    if url.username is not None or url.path or "?" in value or "#" in value:
        raise ValueError("expected an origin: https://host or https://host:port, nothing behind it")
    return value.lower()


def _host(value: str) -> str:
    if not re.fullmatch(r"(?:\*\.)?[A-Za-z0-9._-]+(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?", value):
        raise ValueError(
            "expected a host name as in the Host header: mcp.example.com or mcp.example.com:8443"
        )
    return value.lower()


def _network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError:
        raise ValueError("expected an address or a network: 10.1.2.3, 10.0.0.0/8, fd00::/8") from None


def _header_name(value: str) -> str:
    if not _HEADER_NAME.fullmatch(value):
        raise ValueError("a header name holds letters, digits and -")
    low = value.lower()
    if low in _OWN_HEADERS or low.startswith("mcp-"):
        raise ValueError("the gateway writes this header itself")
    return value


_OWN_HEADERS = frozenset(
    "accept accept-encoding connection content-encoding content-length content-type expect host keep-alive "
    "last-event-id proxy-authorization proxy-connection te trailer transfer-encoding upgrade".split()
)


def _forwarded_header(value: str) -> str:
    if value.lower() == "authorization":
        raise ValueError("the caller's Authorization is passed on by `auth: forward`, not by forward_headers")
    return _header_name(value)


def _cacheable_method(value: str) -> str:
    known = [name for name, method in METHODS.items() if method.cacheable]
    if value not in known:
        raise ValueError(f"expected a method whose results are cached: {', '.join(known)}")
    return value


def _glob(value: str) -> str:
    if not value:
        raise ValueError('expected a name or a shell pattern such as "get_*"')
    return value


def _exposed_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", value):
        raise ValueError("expected a tool name: 1 to 128 characters of A-Z a-z 0-9 _ - .")
    return value


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(value: str) -> Address:
    """Return the address that `host:port` or `[::1]:port` stands for."""
    hit = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([A-Za-z0-9._-]+)):(\d{1,5})", value)
    if hit and int(hit[3]) <= 65535:
        return Address(hit[1] or hit[2], int(hit[3]))
    port = re.fullmatch(r":?(\d{1,5})", value)
    if port:
        raise ValueError(
            f"expected host:port: write 127.0.0.1:{port[1]} for this machine only or 0.0.0.0:{port[1]} for all"
        )
    raise ValueError("expected host:port or [::1]:port with a port up to 65535")


def _address(value: str) -> str:
    return str(parse_address(value))


def _admin_address(value: object) -> object:
    if value is False or value == "off":  # YAML 1.1 reads a bare off as false
        return "off"
    return _address(value) if isinstance(value, str) else value


Duration = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=10 * 365 * 86400)]
"""Seconds inside, `250ms 30s 5m 24h` in the file."""
Wait = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=10 * 365 * 86400)]
"""A Duration that must not be zero."""
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]
"""Bytes inside, `64KiB 64MiB` in the file."""
Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
Secret = Annotated[SecretStr, BeforeValidator(_read_secret), AfterValidator(_sound_secret)]
"""Text or `{file: /run/secrets/x}`; never printed."""
FilePath = Annotated[str, AfterValidator(_readable_file)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
Glob = Annotated[str, AfterValidator(_glob)]
OriginText = Annotated[str, AfterValidator(_origin)]


class Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_means_default(cls, data: object) -> object:
        return {} if data is None else data  # `cache:` with every line below it commented out


class Identity(Model):
    """What the gateway calls itself to clients and upstreams."""

    name: Annotated[str, Field(min_length=1)] = "mcp-gateway"
    """serverInfo.name and clientInfo.name."""
    title: str | None = None
    """The name for people."""


class ToolRules(Model):
    """Which tools are shown and may be called, and under what name."""

    allow: list[Glob] = ["*"]
    """Shell patterns; a tool must match one of them."""
    deny: list[Glob] = []
    """Shell patterns; a tool that matches one is hidden and refused, whatever `allow` says."""
    rename: Mapping[str, Annotated[str, AfterValidator(_exposed_name)]] = {}
    """Name here -> name that clients see."""
    describe: Mapping[str, str] = {}
    """Name here -> description that clients see."""

    @field_validator("rename")
    @classmethod
    def _rename_apart(cls, rename: Mapping[str, str]) -> Mapping[str, str]:
        seen: dict[str, str] = {}
        for old, new in rename.items():
            if new in seen:
                raise ValueError(f"{seen[new]} and {old} cannot both become {new}")
            seen[new] = old
        return rename


class UpstreamCache(Model):
    """How far this upstream's own cache hints are followed."""

    share_public: bool = True
    """Share results that the upstream marks `public` among all callers; this trusts its classification."""
    min_ttl: Mapping[Annotated[str, AfterValidator(_cacheable_method)], Duration] = {}
    """Method -> a floor under its ttlMs; a result that lives by the floor alone stays private unless `scope`
    says otherwise."""
    max_ttl: Duration | None = None
    """A ceiling over every ttlMs of this upstream, instead of the gateway's."""
    scope: Literal["public", "private"] | None = None
    """Overrides the cacheScope of every result."""


class Auth(Model):
    """What the gateway presents to an upstream: a bare word (none, forward) or one key."""

    kind: Literal["none", "forward", "bearer", "headers"] = "none"
    """Follows from what is written."""
    bearer: Secret | None = None
    """A token sent as `Authorization: Bearer …`."""
    headers: Mapping[HeaderName, Secret] = {}
    """Headers sent with every request."""

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: object, info: ValidationInfo) -> object:
        if isinstance(data, Auth):
            return data
        if data in ("none", "forward"):
            return {"kind": data}
        if data in ("bearer", "headers"):
            raise ValueError(f"`{data}` needs its value: auth: {{{data}: …}}")
        if data in _LATER_AUTH:
            raise ValueError(f"`{data}` is not supported by this version")
        if not isinstance(data, Mapping):
            raise ValueError(_AUTH_FORMS)  # the word itself may be a token: it is not repeated
        later = [key for key in data if key in _LATER_AUTH]
        if later:
            raise ValueError(f"`{later[0]}` is not supported by this version")
        if not isinstance(info.context, FromFile) and ("kind" in data or not data):
            return data
        if len(data) != 1 or not set(data) <= {"bearer", "headers"}:
            raise ValueError(_AUTH_FORMS)
        return {"kind": next(iter(data)), **data}

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        if (self.kind == "bearer") != (self.bearer is not None) or (self.kind == "headers") != bool(
            self.headers
        ):
            raise ValueError(_AUTH_FORMS)
        return self

    @field_validator("bearer")
    @classmethod
    def _token_alone(cls, token: SecretStr | None) -> SecretStr | None:
        if token and " " in token.get_secret_value():
            raise ValueError("expected the token alone, without `Bearer` before it")
        return token


_AUTH_FORMS = "expected none, forward, {bearer: TOKEN} or {headers: {Name: VALUE}}"
_LATER_AUTH = ("client_credentials", "token_exchange")


class Tls(Model):
    """How an https upstream is trusted, beyond what the system trusts."""

    ca_file: FilePath | None = None
    """A PEM file of authorities trusted besides the system's."""
    client_cert: FilePath | None = None
    """A PEM file: the gateway's certificate for this upstream."""
    client_key: FilePath | None = None
    """A PEM file: the certificate's key, when it is not in the same file."""
    server_name: str | None = None
    """The name expected in the upstream's certificate, when it is not the URL's host."""
    insecure_skip_verify: bool = False
    """Accept any certificate. Anyone on the way can then read and change everything."""

    @model_validator(mode="after")
    def _key_has_a_certificate(self) -> Self:
        if self.client_key and not self.client_cert:
            raise ValueError("client_key needs client_cert beside it")
        return self


class Upstream(Model):
    """A server behind the gateway: its URL, or a mapping with these keys."""

    url: Annotated[str, AfterValidator(_upstream_url)]
    """The Streamable HTTP address; credentials belong into `auth`."""
    era: Literal["auto", "modern"] = "auto"
    """Which protocol the upstream speaks; auto asks it."""
    prefix: str
    """The namespace of its names and URIs; by default the key. "" = none."""
    auth: Auth = Auth()
    """What the gateway presents to it."""
    timeout: Wait = 30.0
    """The longest silence of a running call; progress resets it."""
    max_timeout: Wait = 600.0
    """The longest a call may take, whatever it reports."""
    list_timeout: Wait = 5.0
    """The longest a merged list waits for this upstream's part, retries included."""
    connections: Count = 100
    """How many calls run at once; the rest wait. Streams are counted apart."""
    forward_headers: list[Annotated[str, AfterValidator(_forwarded_header)]] = []
    """Names of the caller's headers that are passed on."""
    cache: UpstreamCache = UpstreamCache()
    """How far its cache hints are followed."""
    tools: ToolRules = ToolRules()
    """Which of its tools are shown, by the upstream's own names."""
    tls: Tls = Tls()
    """How an https address is trusted."""
    proxy: Annotated[str, AfterValidator(_proxy_url)] | None = None
    """The HTTP proxy that leads to it."""
    trust_env: bool = False
    """Follow HTTP_PROXY, HTTPS_PROXY and NO_PROXY; a loopback address is never proxied."""

    @field_validator("prefix")
    @classmethod
    def _prefix_spelling(cls, prefix: str) -> str:
        return prefix and namespace(prefix)


class Endpoint(Model):
    """A path served, with the upstreams behind it."""

    upstreams: list[str] | None = None
    """Keys of upstreams, in this order; left out = all of them."""
    tools: ToolRules = ToolRules()
    """Which tools this endpoint shows, by the names that clients see."""


class Cache(Model):
    """The response cache."""

    memory: Size = 64 * 2**20
    """How much the cache of this process may hold."""
    max_ttl: Duration = 86400.0
    """A ceiling over every ttlMs."""
    single_tenant: bool = False
    """Callers without a token are one person and share private results."""


class Names(Model):
    """How names are made unique and palatable for model APIs."""

    separator: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,8}$")] = "__"
    """Between the prefix and the name."""
    max_length: Annotated[int, BeforeValidator(_no_bool), Field(ge=32, le=128)] = 64
    """Longer names are cut and end in a hash."""
    charset: Literal["strict", "spec"] = "strict"
    """strict = A-Z a-z 0-9 _ -, what model APIs accept; spec = "." too."""

    @model_validator(mode="after")
    def _separator_in_charset(self) -> Self:
        if self.charset == "strict" and "." in self.separator:
            raise ValueError('a separator with "." needs charset: spec')
        return self


class Limits(Model):
    """What one caller or one message may cost."""

    message: Annotated[Size, Field(ge=1)] = 32 * 2**20
    """The largest message, either way."""
    header: Annotated[Size, Field(ge=1)] = 64 * 2**10
    """The largest head of a request."""
    depth: Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=500)] = 200
    """How deep JSON may nest."""
    streams_per_caller: Count = 1000
    """Listen streams open at once per caller."""
    stalled_listener: Wait = 10.0
    """How long a listener may read nothing before its stream is cut."""
    page_size: Count = 1000
    """Elements in one page of a merged list."""
    list_pages: Count = 1000
    """Pages read of one upstream's list before it counts as endless."""
    list_items: Count = 100_000
    """Elements read of one upstream's list before it counts as endless."""
    keep_alive: Wait = 15.0
    """A comment is sent on a stream that was silent this long."""
    request_body: Wait = 30.0
    """The longest a request's body may take to arrive."""


class Cors(Model):
    """Which web pages may call the gateway from a browser."""

    origins: list[OriginText] = []
    """Origins such as https://app.example.com."""


class Log(Model):
    """What is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important level that is written."""
    format: Literal["text", "json"] = "text"
    """Lines for people or for programs."""


class Secrets(Model):
    """What cursors and other handed-out tokens are sealed with."""

    keys: list[Secret] = []
    """The first seals, all of them open; none = a random key per process, for a single replica."""


class Config(Model):
    """The configuration of MCP Gateway."""

    listen: Annotated[str, AfterValidator(_address)] = "127.0.0.1:8080"
    """Where the endpoints are served: host:port or [::1]:port."""
    admin: Annotated[str, BeforeValidator(_admin_address)] = "127.0.0.1:9090"
    """Where /healthz, /readyz, /metrics and /status.json are served; "off" = nowhere."""
    public_url: Annotated[str, AfterValidator(_public_url)] | None = None
    """How clients reach the gateway; every absolute URL starts with it."""
    identity: Identity = Identity()
    """What the gateway calls itself."""
    cache: Cache = Cache()
    """The response cache."""
    names: Names = Names()
    """How names are made unique."""
    endpoints: Mapping[str, Endpoint] = {"/mcp": Endpoint()}
    """Path -> what it serves; by default /mcp with every upstream."""
    upstreams: Mapping[str, Upstream]
    """Key -> a server behind the gateway: its URL or a mapping."""
    limits: Limits = Limits()
    """What one caller or one message may cost."""
    cors: Cors = Cors()
    """Which web pages may call from a browser."""
    origins: list[OriginText] = []
    """Origins accepted besides the gateway's own and those of `cors`."""
    hosts: list[Annotated[str, AfterValidator(_host)]] = []
    """Host headers accepted besides the gateway's own; the port may be left out."""
    trusted_proxies: list[Annotated[str, AfterValidator(_network)]] = []
    """Addresses and networks whose X-Forwarded-* headers are believed."""
    startup_wait: Duration = 5.0
    """How long readiness waits for upstreams that have not answered yet."""
    shutdown_grace: Duration = 10.0
    """How long running requests may finish after a signal to stop."""
    log: Log = Log()
    """What is written to stderr."""
    secrets: Secrets = Secrets()
    """What handed-out tokens are sealed with."""

    @model_validator(mode="before")
    @classmethod
    def _short_upstreams(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("upstreams"), Mapping):
            return data
        return {**data, "upstreams": {key: _full(key, one) for key, one in data["upstreams"].items()}}


def _full(key: object, upstream: object) -> object:
    """Return an upstream in its long form: a bare URL becomes a mapping, the prefix is the key by default."""
    if isinstance(upstream, str):
        return {"url": upstream, "prefix": key}
    if isinstance(upstream, Mapping):
        return {"prefix": key, **upstream}
    return upstream


def namespace(text: str) -> str:
    """Return the text if it may be an upstream's key or prefix (F-02); raises ValueError with a suggestion."""
    if _NAMESPACE.fullmatch(text):
        return text
    raise ValueError("expected a letter a-z, then up to 30 of a-z, 0-9 and -" + f': "{slug(text)}" would do')


def slug(text: str) -> str:
    """Return the valid namespace nearest to a text."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"u-{plain}"
    return plain[:31].strip("-")
