"""All that a configuration file may say, as pydantic models on one page, and how a file becomes one."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gateway.protocol.methods import TASKS, UI
from gateway.settings import mcp_servers
from gateway.settings.document import (
    MOST_BYTES,
    TOO_LARGE,
    ConfigError,
    Problem,
    bare_variables,
    read,
    show_path,
)
from gateway.settings.document import Path as YamlPath
from gateway.settings.draft import FIRST, Draft, draft
from gateway.settings.explain import DERIVED, explain, nearest
from gateway.settings.json_schema import json_schema
from gateway.settings.redis_url import RedisAddress, parse_redis_url
from gateway.settings.tls import check_pair
from gateway.settings.values import (
    Address,
    AddressOrOff,
    CachedMethod,
    CertificateFile,
    Count,
    Depth,
    Duration,
    EndpointPath,
    ExposedName,
    ExtensionId,
    FilePath,
    Flag,
    FromFile,
    HeaderName,
    HostText,
    KeyPrefix,
    Label,
    ListenAddress,
    MethodPattern,
    NameLength,
    Namespace,
    Network,
    OriginText,
    PositiveSize,
    Prefix,
    ProxyUrl,
    PublicUrl,
    RedisUrl,
    Secret,
    Separator,
    Size,
    StateSize,
    Text,
    UpstreamUrl,
    VariableText,
    Wait,
    is_loopback,
    parse_address,
    show_duration,
    shown_url,
)

__all__ = [
    "FIRST",
    "MASKED_FROM",
    "VERSION",
    "Address",
    "Auth",
    "Cache",
    "CachedCall",
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
    "RedisAddress",
    "RedisTls",
    "Secrets",
    "Tls",
    "ToolRules",
    "Upstream",
    "UpstreamCache",
    "draft_file",
    "load",
    "load_file",
    "parse_address",
    "parse_redis_url",
    "schema",
    "shown_url",
]

VERSION = version("mcp-caching-gateway")

MASKED_FROM = 6
"""Characters from which a secret is hidden wherever it stands in the log, inside a word, too."""

_NOT_YET = "not supported by this version"
_STAND_IN = "a-value-for-a-variable"


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

    name: Text = "mcp-gateway"
    """serverInfo.name and clientInfo.name."""
    title: str | None = None
    """The name for people."""


class ToolRules(Model):
    """Which tools are shown and may be called, and under what name."""

    allow: list[Text] = ["*"]
    """Shell patterns; a tool must match one of them."""
    deny: list[Text] = []
    """Shell patterns; a tool that matches one is hidden and refused, whatever `allow` says."""
    rename: Mapping[str, ExposedName] = {}
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


class CachedCall(Model):
    """How the results of one tool are kept, which by themselves never are."""

    ttl: Wait
    """How long a result answers calls with the same arguments."""
    scope: Literal["private", "public"] = "private"
    """private = for the caller who made the call; public = for every caller."""


class UpstreamCache(Model):
    """How far this upstream's own cache hints are followed."""

    share_public: Flag = True
    """Share results that the upstream marks `public` among all callers; this trusts its classification."""
    min_ttl: Mapping[CachedMethod, Duration] = {}
    """Method -> a floor under its ttlMs; a result that lives by the floor alone stays private unless `scope`
    says otherwise."""
    max_ttl: Duration | None = None
    """A lower ceiling over every ttlMs of this upstream; the gateway's holds as well."""
    scope: Literal["public", "private"] | None = None
    """Overrides the cacheScope of every result, but not `share_public: false`."""
    calls: Mapping[Text, CachedCall] = {}
    """Tool, by the upstream's own name -> how its results are kept; for tools that change nothing and whose
    answer depends on their arguments only."""
    partition: Literal["token"] = "token"
    """What private results are kept under: the caller's token itself."""

    @field_validator("partition", mode="before")
    @classmethod
    def _no_subject(cls, partition: object) -> object:
        if partition == "subject":
            raise ValueError(f"`subject` is {_NOT_YET}: it needs verified tokens")
        return partition


class Auth(Model):
    """What the gateway presents to an upstream: a bare word (none, forward) or one key."""

    kind: Literal["none", "forward", "bearer", "headers"] = Field(default="none", json_schema_extra=DERIVED)
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
        text = token.get_secret_value() if token else ""
        if text.lower().startswith("bearer "):
            raise ValueError("expected the token alone, without `Bearer` before it")
        if " " in text:
            raise ValueError(
                "a bearer token holds no spaces: is it whole, and nothing beside it? Another scheme than "
                "Bearer goes under {headers: {Authorization: …}}"
            )
        return token


_AUTH_FORMS = "expected none, forward, {bearer: TOKEN} or {headers: {Name: VALUE}}"
_LATER_AUTH = ("client_credentials", "token_exchange")


class TlsFiles(Model):
    """Who is trusted beyond what the system trusts, and what the gateway shows of itself."""

    ca_file: CertificateFile | None = None
    """A PEM file of authorities trusted besides the system's."""
    client_cert: CertificateFile | None = None
    """A PEM file: the gateway's certificate."""
    client_key: FilePath | None = None
    """A PEM file: the certificate's key, when it is not in the same file."""

    @model_validator(mode="after")
    def _key_has_a_certificate(self) -> Self:
        if self.client_key and not self.client_cert:
            raise ValueError("client_key needs client_cert beside it")
        if self.client_cert and not self.client_key:
            check_pair(self.client_cert, None)
        return self

    @field_validator("client_key")
    @classmethod
    def _key_opens(cls, key: str | None, info: ValidationInfo) -> str | None:
        certificate = info.data.get("client_cert")
        if key and certificate:
            check_pair(certificate, key)
        return key


class Tls(TlsFiles):
    """How an https upstream is trusted."""

    server_name: str | None = None
    """The name expected in the upstream's certificate, when it is not the URL's host."""
    insecure_skip_verify: Flag = False
    """Accept any certificate. Anyone on the way can then read and change everything."""


class RedisTls(TlsFiles):
    """How a rediss:// server is trusted; with Sentinels or a Cluster, every one of them."""

    check_hostname: Flag = True
    """The certificate must name the host; off for servers that are known by addresses it does not hold."""
    insecure_skip_verify: Flag = False
    """Accept any certificate. Anyone on the way can then read and change everything."""


class Upstream(Model):
    """A server behind the gateway: its URL, or a mapping with these keys, `url` or `command` among them."""

    url: UpstreamUrl | None = Field(default=None, repr=False)
    """The address of a server that is reached over HTTP; credentials belong under `auth`."""
    command: Text | None = None
    """The program of a server that is started by the gateway and speaks over its stdin and stdout."""
    args: list[str] = Field(default=[], repr=False)
    """The program's arguments."""
    env: Mapping[Text, VariableText] = {}
    """The program's environment, beside PATH, HOME and what else any program needs; nothing is inherited."""
    cwd: Text | None = None
    """The folder the program is started in; by default the gateway's own."""
    era: Literal["auto", "modern", "legacy"] = "auto"
    """Which protocol it speaks: modern is 2026-07-28, legacy the initialize handshake; auto asks it."""
    isolation: Literal["shared", "caller", "session"] | None = None
    """Who shares a session of a server of an older protocol, or the process of a program: everybody, the
    requests of one caller's token, or those of one client's session; by default caller for a URL and shared
    for a command."""
    sessions: Count | None = None
    """Sessions, or processes, of such a server at once; beyond it the one idle longest ends. By default 1000
    sessions, and 50 processes of a program."""
    sessions_per_caller: Count = 10
    """The most of them that one caller, or one client's session, may have: one for each set of what its
    clients can be asked. Beyond it the caller's own one idle longest ends."""
    session_idle: Wait = 600.0
    """How long one of them may be idle before it ends; the gateway's own stays."""
    prefix: Prefix
    """The namespace of its names and URIs; by default the key. "" = none."""
    label: Label | None = None
    """What stands in brackets before every question it asks users; by default the key. "" = nothing."""
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
    listen_idle: Wait | None = None
    """A notification stream that was silent this long, comments included, counts as lost; null = never."""
    cache: UpstreamCache = UpstreamCache()
    """How far its cache hints are followed."""
    tools: ToolRules = ToolRules()
    """Which of its tools are shown, by the upstream's own names."""
    methods: list[MethodPattern] = []
    """Methods of extensions that it serves, such as com.example.search/*; an endpoint with one upstream hands
    it every method that is nobody else's."""
    tls: Tls = Tls()
    """How an https address is trusted."""
    proxy: ProxyUrl | None = None
    """The HTTP proxy that leads to it."""
    trust_env: Flag = False
    """Follow HTTP_PROXY, HTTPS_PROXY and NO_PROXY; a loopback address is never proxied."""

    @model_validator(mode="after")
    def _one_way_to_it(self) -> Self:
        if (self.url is None) == (self.command is None):
            raise ValueError("expected either `url` or `command`: where it runs, or how it is started")
        if self.command is None:
            alone = [key for key in ("args", "env", "cwd") if key in self.model_fields_set]
            if alone:
                raise ValueError(f"`{alone[0]}` goes with `command`, not with `url`")
        elif self.auth.kind != "none":
            raise ValueError("a program is given its credentials in `env`; `auth` goes with `url`")
        return self

    @property
    def place(self) -> str:
        """Return where it is, for people: its URL without credentials, or the program."""
        return shown_url(self.url) if self.url is not None else f"stdio: {self.command}"

    @property
    def apart(self) -> Literal["shared", "caller", "session"]:
        """Return who shares its sessions."""
        if self.isolation is not None:
            return self.isolation
        return "caller" if self.command is None else "shared"

    @property
    def most_sessions(self) -> int:
        """Return how many sessions, or processes, there may be at once."""
        if self.sessions is not None:
            return self.sessions
        return 1000 if self.command is None else 50

    @property
    def isolated(self) -> bool:
        """Whether callers have processes of their own, which know of nobody else."""
        return self.command is not None and self.apart != "shared"

    def canonical(self) -> bytes:
        """Return all settings in one fixed form, credentials in clear: for a keyed hash, never shown."""
        return json.dumps(self.model_dump(), sort_keys=True, default=_in_clear).encode()


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
    stale_if_error: Duration = 0.0
    """How long beyond its ttl a result may stand in while its upstream is down; 0s = not at all."""
    single_tenant: Flag = False
    """Callers without a token are one person and share private results."""
    redis: RedisUrl | None = Field(default=None, repr=False)
    """Where all replicas share what is public, and tell each other of changes: redis://host:6379/0, rediss://,
    unix:///path, redis+sentinel://host:26379,host2:26379/NAME, redis+cluster://host:6379,host2:6379."""
    redis_tls: RedisTls = RedisTls()
    """How a rediss:// address is trusted."""
    redis_timeout: Wait = 0.05
    """The longest one question to Redis is waited for; then it goes on without."""
    redis_budget: Wait = 0.25
    """The longest one request waits for Redis altogether, but no less than `redis_timeout`."""
    redis_prefix: KeyPrefix = "mcpgw"
    """How its keys and channels begin."""
    redis_entry: PositiveSize = 4 * 2**20
    """Larger results stay in the process that fetched them."""
    private_in_redis: Flag = False
    """Keep private results there too, readable by their own callers only; otherwise they stay in the
    process."""
    coalesce: Duration = 1.0
    """The longest a request waits for what another is fetching, at most half of the upstream's
    `list_timeout`; then the next one fetches as well. 0s = never for another replica, and 1s within the
    process."""
    headers: Flag = True
    """Say in HTTP headers what the cache did; off = every answer is `no-store` and says nothing more."""


class Names(Model):
    """How names are made unique and palatable for model APIs."""

    separator: Separator = "__"
    """Between the prefix and the name."""
    max_length: NameLength = 64
    """Longer names are cut and end in a hash."""
    charset: Literal["strict", "spec"] = "strict"
    """strict = A-Z a-z 0-9 _ -, what model APIs accept; spec = "." too."""
    bare_name_fallback: Flag = False
    """Let MCP Apps call tools by their upstream's own name, where no other has a tool of that name."""

    @model_validator(mode="after")
    def _separator_in_charset(self) -> Self:
        if self.charset == "strict" and "." in self.separator:
            raise ValueError('a separator with "." needs charset: spec')
        return self


class Limits(Model):
    """What one caller or one message may cost."""

    message: PositiveSize = 32 * 2**20
    """The largest message, either way."""
    header: PositiveSize = 64 * 2**10
    """The largest head of a request."""
    depth: Depth = 200
    """How deep JSON may nest."""
    streams_per_caller: Count = 1000
    """Listen streams open at once per caller with a token."""
    anonymous_streams: Count = 10_000
    """The same for all callers without a token together, who cannot be told apart."""
    stalled_listener: Wait = 10.0
    """How long a listener may read nothing before its stream is cut."""
    page_size: Count = 1000
    """Elements in one page of a merged list."""
    list_pages: Count = 1000
    """Pages read of one upstream's list before it counts as endless."""
    list_items: Count = 100_000
    """Elements read of one upstream's list before it counts as endless."""
    instructions: Count = 16_384
    """Characters of all upstreams' instructions together; longer ones are cut."""
    input_wait: Wait = 600.0
    """How long a client may take to bring what an upstream asked its user for."""
    anonymous_input_wait: Wait = 300.0
    """The same for callers without a token, whose answer anybody could bring."""
    request_state: StateSize = 256 * 2**10
    """The largest state that an upstream which asks may leave with a client; at most 512KiB."""
    questions: Count = 1000
    """Calls at once that wait for a client to answer what a server of an older protocol asked meanwhile."""
    questions_per_caller: Count = 100
    """The most of them that one caller may have; those without a token count as one, except that each session
    of an older client without one counts by itself."""
    rounds: Count = 10
    """How often one call of an older client may be asked for input."""
    sessions: Count = 10_000
    """Sessions of clients of older protocols in which something goes on at once; quiet ones beyond cost
    nothing."""
    sessions_per_caller: Count = 5000
    """The most of them that one caller may have, or all without a token together."""
    session_idle: Wait = 1800.0
    """How long such a session may be idle before it ends."""
    session_lifetime: Wait = 86400.0
    """The longest it may last."""
    keep_alive: Wait = 15.0
    """A comment is sent on a stream that was silent this long."""
    request_head: Wait = 10.0
    """The longest the head of a request may take to arrive, and a connection's first one to begin."""
    request_body: Wait = 30.0
    """The longest a request's body may take to arrive."""


class Subscriptions(Model):
    """How changes reach the clients that listen for them."""

    acknowledge: Wait = 2.0
    """How long a listen waits to hear which of its resources it will be told of; the rest is left out."""
    subresources: Literal["exact", "parent"] = "exact"
    """What is told of an update below a resource that was asked for: the very URI, or the one asked for."""
    gather: Wait = 0.5
    """A list that changes again so soon is forgotten, and the change told, once at the end of this time."""
    debounce: Wait = 0.1
    """How long new wishes are gathered before an upstream's stream is replaced by one that serves them."""
    retry: Wait = 1.0
    """The first pause before an upstream's stream is opened anew; it doubles each time."""
    longest_retry: Wait = 60.0
    """The longest such pause."""
    stable: Wait = 30.0
    """A stream that lasted this long counts as good: the pauses start from the first again."""
    uris_per_stream: Count = 1000
    """Resources, and tasks, that one listen may ask for; the rest is left out of its acknowledgement."""
    pending: PositiveSize = 2**20
    """Bytes of tasks' and extensions' notices that may wait for one listener: more of an extension are
    dropped, more of tasks end its stream."""
    uri_bytes: PositiveSize = 256 * 2**10
    """The most that the URIs and task ids of one listen may add up to; more are refused."""
    uris_per_upstream: Count = 10_000
    """Resources, and tasks, that one upstream is asked for on behalf of all its clients, or of one caller
    whose credential it sees; the rest is left out of acknowledgements."""
    upstream_uri_bytes: PositiveSize = 2**20
    """The most that those may add up to."""
    lease: Wait = 5.0
    """With `cache.redis`: how long the replica that holds a stream may be silent before another does."""

    @model_validator(mode="after")
    def _pauses_grow(self) -> Self:
        if self.longest_retry < self.retry:
            raise ValueError(
                "longest_retry is the longest pause, so it cannot be shorter than retry, the first"
            )
        return self


class Cors(Model):
    """Which web pages may call the gateway from a browser."""

    origins: list[OriginText] = []
    """Origins such as https://app.example.com; * = any."""


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

    listen: ListenAddress = "127.0.0.1:8080"
    """Where the endpoints are served: host:port or [::1]:port."""
    admin: AddressOrOff = "127.0.0.1:9090"
    """Where /healthz, /readyz, /metrics, /status.json, /explain and /purge are served; "off" = nowhere."""
    public_url: PublicUrl | None = None
    """How clients reach the gateway; every absolute URL starts with it."""
    identity: Identity = Identity()
    """What the gateway calls itself."""
    cache: Cache = Cache()
    """The response cache."""
    names: Names = Names()
    """How names are made unique."""
    endpoints: Mapping[EndpointPath, Endpoint] = {"/mcp": Endpoint()}
    """Path -> what it serves; by default /mcp with every upstream."""
    upstreams: Mapping[Namespace, Upstream]
    """Key -> a server behind the gateway: its URL or a mapping."""
    extensions: list[ExtensionId] = [TASKS, UI]
    """The extensions carried between clients and upstreams that both declare them."""
    strict_task_headers: Flag = False
    """Refuse requests about tasks that lack the Mcp-Name header; one that differs is refused anyway."""
    limits: Limits = Limits()
    """What one caller or one message may cost."""
    subscriptions: Subscriptions = Subscriptions()
    """How changes reach the clients that listen for them."""
    cors: Cors = Cors()
    """Which web pages may call from a browser."""
    origins: list[OriginText] = []
    """Origins accepted besides the gateway's own and those of `cors`; * = any."""
    hosts: list[HostText] = []
    """Host headers accepted besides the gateway's own, * for any part; the port may be left out."""
    trusted_proxies: list[Network] = []
    """Addresses and networks whose X-Forwarded-* headers are believed."""
    startup_wait: Duration = 5.0
    """How long readiness waits for upstreams that have not answered yet."""
    shutdown_grace: Duration = 10.0
    """How long running requests may finish after a signal to stop."""
    log: Log = Log()
    """What is written to stderr."""
    secrets: Secrets = Secrets()
    """What handed-out tokens are sealed with."""

    @field_validator("extensions")
    @classmethod
    def _extensions_once(cls, extensions: list[str]) -> list[str]:
        for index, extension in enumerate(extensions):
            if extension in extensions[:index]:
                raise ValueError(f"{extension} is listed twice")
        return extensions

    @model_validator(mode="before")
    @classmethod
    def _short_upstreams(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("upstreams"), Mapping):
            return data
        return {**data, "upstreams": _long_forms(data["upstreams"])}

    @model_validator(mode="after")
    def _parts_fit(self, info: ValidationInfo) -> Self:
        found = list(_conflicts(self.model_dump()))
        if not isinstance(info.context, FromFile):  # those of a file are reported at their lines
            found += _contradictions(self)
        if found:
            raise ValueError("; ".join(f"{show_path(path)}: {message}" for path, message in found))
        return self


def _in_clear(secret: SecretStr) -> str:
    return secret.get_secret_value()


def _long_forms(upstreams: object) -> object:
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


_LATER: Mapping[tuple[str, ...], str] = {
    ("upstreams", "*", "forward_headers"): f"passing on headers of the caller is {_NOT_YET}",
}


def load_file(
    path: str | Path,
    *,
    instead: Mapping[str, str] = MappingProxyType({}),
    warn: Callable[[str], None] = lambda _: None,
) -> Config:
    """Return the configuration in a file; raises ConfigError with everything that is wrong with it."""
    folder = Path(path).absolute().parent
    return load(_text_in(path), file=str(path), folder=folder, instead=instead, warn=warn)


def draft_file(path: str | Path, *, keep_secrets: bool = False, env: Mapping[str, str] = os.environ) -> Draft:
    """Return the configuration that an editor's servers file comes to, and what there is to say of it.

    A variable that is not set yet counts as set. Raises ConfigError for a file that cannot be read, or that
    no editor wrote.
    """
    file, folder = str(path), Path(path).absolute().parent
    document = read(_text_in(path), file=file, env=env, verbatim=mcp_servers.is_bare)
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


def _text_in(path: str | Path) -> str:
    """Return the text of a file; raises ConfigError."""
    file = Path(path)
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)  # and no more: it may be a device that never ends
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
) -> Config:
    """Return the configuration that a YAML text or an editor's mcpServers file holds.

    `file` is what messages call it, `folder` where its relative paths start, `instead` holds values of the
    command line, which come before the file's. Raises ConfigError with all
    problems at once; `warn` is handed what is allowed but worth a second look.
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
        config = Config.model_validate(data, context=FromFile(folder))
    except ValidationError as error:
        explain(error, document, Config, _LATER)
    for path, message in _conflicts({**data, "upstreams": _long_forms(data.get("upstreams"))}):
        document.report(path, message)
    for path, message in () if config is None else _contradictions(config):
        document.report(path, message)
    if document.problems or config is None:
        raise ConfigError(sorted(document.problems, key=lambda problem: problem.line))
    for message in (*bare_variables(document, env), *_worth_a_look(config)):
        warn(message)
    return config


def schema() -> dict[str, object]:
    """Return the JSON Schema of a configuration file, short forms included, for editors."""
    return json_schema(Config)


def _conflicts(data: Mapping[str, object]) -> Iterator[tuple[YamlPath, str]]:
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
        yield from _shared_prefixes(chosen, prefixes)
    cache, secrets = data.get("cache"), data.get("secrets")
    sealed = isinstance(secrets, Mapping) and secrets.get("keys")
    if isinstance(cache, Mapping) and cache.get("redis") is not None and not sealed:
        yield ("cache", "redis"), "needs secrets.keys: what lies in Redis is sealed, for all replicas alike"
    listen, admin = data.get("listen", "127.0.0.1:8080"), data.get("admin", "127.0.0.1:9090")
    if listen == admin and not str(listen).endswith(":0"):
        yield ("admin",), f"{admin} is where the endpoints are served: choose another port, or off"


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


def _contradictions(config: Config) -> Iterator[tuple[YamlPath, str]]:
    """Yield limits that another limit takes back, defaults included."""
    for name, upstream in config.upstreams.items():
        place: YamlPath = ("upstreams", name)
        if upstream.timeout > upstream.max_timeout:
            limit = show_duration(upstream.max_timeout)
            yield (*place, "timeout"), f"expected no more than max_timeout, which is {limit}: raise that too"
        own = upstream.cache.max_ttl
        ceiling = config.cache.max_ttl if own is None else min(own, config.cache.max_ttl)
        for method, floor in upstream.cache.min_ttl.items():
            if floor > ceiling:
                message = f"expected no more than max_ttl, which is {show_duration(ceiling)}: raise that too"
                yield (*place, "cache", "min_ttl", method), message


def _worth_a_look(config: Config) -> Iterator[str]:
    yield from _odd_trust(config.cache)
    if not (config.hosts or is_loopback(f"http://{config.listen}")):
        yield f"listen: {config.listen} answers to any Host header; name under `hosts` how clients reach it"
    for name, upstream in config.upstreams.items():
        place = f"upstreams.{name}"
        if upstream.tls.insecure_skip_verify:
            yield f"{place}.tls.insecure_skip_verify: anyone on the way can read and change all traffic"
        if upstream.tls != Tls() and not (upstream.url or "").lower().startswith("https:"):
            yield f"{place}.tls has no effect: the URL is not https"
        if upstream.auth.kind != "none" and _in_the_clear(upstream):
            yield f"{place}.auth: the credential travels unencrypted: the URL is http and leaves this machine"
        yield from (f"{place}.cache.{text}" for text in _bold_rules(upstream))
        if upstream.auth.kind == "forward" and "share_public" not in upstream.cache.model_fields_set:
            yield (
                f"{place}.cache.share_public: results it marks public are shared among all callers, although "
                "each presents a token of their own; write share_public: true or false to settle it"
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


def _claimed_twice(config: Config) -> Iterator[str]:
    """Yield the methods that the same endpoint would hand to two upstreams: the first gets them."""
    for path, endpoint in config.endpoints.items():
        holder: dict[str, str] = {}
        for name in config.upstreams if endpoint.upstreams is None else endpoint.upstreams:
            for pattern in config.upstreams[name].methods:
                first = holder.setdefault(pattern, name)
                if first != name:
                    yield f"upstreams.{name}.methods: {pattern} goes to `{first}`, the first in {path}"


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
