"""All that a configuration file may say, as pydantic models.

What it says of callers is in `callers`, how tokens for upstreams are obtained in `outgoing`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from gateway.protocol.methods import TASKS, UI
from gateway.settings.callers import Access, Authentication, ServerTls
from gateway.settings.conflicts import conflicts, long_forms
from gateway.settings.document import Path as YamlPath
from gateway.settings.document import show_path
from gateway.settings.explain import DERIVED
from gateway.settings.model import Model, TlsFiles
from gateway.settings.outgoing import ClientCredentials, TokenClient, TokenExchange
from gateway.settings.values import (
    AddressOrOff,
    CachedMethod,
    Count,
    Depth,
    Duration,
    EndpointPath,
    ExposedName,
    ExtensionId,
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
    RateText,
    Ratio,
    RedisUrl,
    Secret,
    Separator,
    Size,
    StateSize,
    Text,
    UpstreamUrl,
    VariableText,
    Wait,
    show_duration,
    shown_url,
)


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
    partition: Literal["token", "subject"] = "token"
    """What private results are kept under: the caller's token itself, or whom the token is about, so that
    they outlive it. That takes `authentication`: without it everybody is kept by token. It does not go with
    `auth: forward` and `token_exchange`, where an upstream may judge each token differently."""


class Auth(Model):
    """What the gateway presents to an upstream: a bare word (none, forward) or one key."""

    kind: Literal["none", "forward", "bearer", "headers", "client_credentials", "token_exchange"] = Field(
        default="none", json_schema_extra=DERIVED
    )
    """Follows from what is written."""
    bearer: Secret | None = None
    """A token sent as `Authorization: Bearer …`."""
    headers: Mapping[HeaderName, Secret] = {}
    """Headers sent with every request."""
    client_credentials: ClientCredentials | None = None
    """A token that an authorization server gives the gateway for itself."""
    token_exchange: TokenExchange | None = None
    """A token for each caller, in exchange for the caller's own."""

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: object, info: ValidationInfo) -> object:
        if isinstance(data, Auth):
            return data
        if data in ("none", "forward"):
            return {"kind": data}
        if isinstance(data, str) and data in _AUTH_KEYS:
            raise ValueError(f"`{data}` needs its value: auth: {{{data}: …}}")
        if not isinstance(data, Mapping):
            raise ValueError(_AUTH_FORMS)  # the word itself may be a token: it is not repeated
        if not isinstance(info.context, FromFile) and ("kind" in data or not data):
            return data
        if len(data) != 1 or not set(data) <= _AUTH_KEYS:
            raise ValueError(_AUTH_FORMS)
        return {"kind": next(iter(data)), **data}

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        if any((self.kind == key) != bool(getattr(self, key)) for key in _AUTH_KEYS):
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

    @property
    def personal(self) -> bool:
        """Whether each caller is let in, or not, as himself: the upstream sees whose request it is."""
        return self.kind in ("forward", "token_exchange")

    @property
    def obtained(self) -> TokenClient | None:
        """Return how tokens are obtained, where they are."""
        return self.client_credentials or self.token_exchange


_AUTH_KEYS = frozenset({"bearer", "headers", "client_credentials", "token_exchange"})
_AUTH_FORMS = (
    "expected none, forward, {bearer: TOKEN}, {headers: {Name: VALUE}}, {client_credentials: {…}} or "
    "{token_exchange: {…}}"
)


class Breaker(Model):
    """When an upstream that answers probes, but not requests, is left alone for a while."""

    failures: Count = 10
    """Requests in a row that it must have failed: no answer in time, 5xx, a broken connection."""
    rest: Wait = 5.0
    """How long it is left alone then; it doubles each time the request that tries it fails as well."""
    longest_rest: Wait = 60.0
    """The longest such pause."""

    @model_validator(mode="after")
    def _rests_grow(self) -> Self:
        if self.longest_rest < self.rest:
            raise ValueError(
                "longest_rest is the longest pause, so it cannot be shorter than rest, the first"
            )
        return self


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
    queue: Count = 1000
    """How many may wait for that; more are refused at once."""
    rate: RateText | None = None
    """The most requests it is sent, such as 100/s; more are refused."""
    retry_budget: Ratio = 0.2
    """Requests that may be sent again, as a share of all, so that an outage is not made worse."""
    breaker: Breaker = Breaker()
    """When it is left alone for a while."""
    trust_annotations: Flag = False
    """Whether `access` may go by what it says of its tools, such as readOnlyHint."""
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
        if self.auth.personal and self.cache.partition == "subject":
            raise ValueError(
                f"`cache.partition: subject` does not go with `auth: {self.auth.kind}`: what a token permits "
                "there is known to the upstream alone"
            )
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
    rate: RateText | None = None
    """The most requests it takes from all callers together, such as 1000/s."""


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
    connections: Count = 20_000
    """Connections of clients at once; the next is closed as soon as it opens."""
    requests: Count = 2000
    """Requests answered at once, open streams apart; more are told to come back (503)."""
    in_flight: PositiveSize = 512 * 2**20
    """Bytes of requests and answers that are held at once; beyond it requests are told to come back (503)."""
    calls_per_caller: Count = 200
    """Requests of one caller at once, open streams apart; more are told to come back (429)."""
    anonymous_calls: Count = 1000
    """The same for all callers without a credential together."""
    rate_per_caller: RateText | None = None
    """The most requests of one caller, such as 100/s; more are told to come back (429)."""
    anonymous_rate: RateText | None = None
    """The same for each address that callers without a credential that counts come from."""
    verifications_per_address: Count = 32
    """New credentials from one address that wait for an issuer at once; more are told to come back (429)."""
    rates_in: Literal["memory", "redis"] = "memory"
    """Where rates are counted: by each process, or in `cache.redis` for all replicas together."""


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
    tls: ServerTls = ServerTls()
    """TLS on the endpoints' listener."""
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
    authentication: Authentication = Authentication()
    """How callers prove who they are."""
    access: Access = Access()
    """What callers may see and use."""
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
    """Addresses and networks whose X-Forwarded-* and Forwarded headers are believed."""
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
        return {**data, "upstreams": long_forms(data["upstreams"])}

    @model_validator(mode="after")
    def _parts_fit(self, info: ValidationInfo) -> Self:
        found = list(conflicts(self.model_dump()))
        if not isinstance(info.context, FromFile):  # those of a file are reported at their lines
            found += contradictions(self)
        if found:
            raise ValueError("; ".join(f"{show_path(path)}: {message}" for path, message in found))
        return self


def _in_clear(secret: SecretStr) -> str:
    return secret.get_secret_value()


def contradictions(config: Config) -> Iterator[tuple[YamlPath, str]]:
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
