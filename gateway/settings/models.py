"""All that a configuration file may say, as pydantic models.

What it says of callers is in `callers`, of one upstream in `upstreams`, of how tokens for upstreams are
obtained in `outgoing`, and of how much there may be in `limits`.
"""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from gateway.protocol.methods import TASKS, UI
from gateway.settings.callers import Access, Authentication, ServerTls
from gateway.settings.conflicts import conflicts, long_forms
from gateway.settings.document import Path as YamlPath
from gateway.settings.document import show_path
from gateway.settings.explain import nearest
from gateway.settings.limits import Limits, Subscriptions
from gateway.settings.model import Model, TlsFiles
from gateway.settings.upstreams import ToolRules, Upstream
from gateway.settings.values import (
    AddressOrOff,
    BaggageKey,
    Duration,
    EndpointPath,
    ExtensionId,
    Flag,
    FromFile,
    HeaderName,
    HostText,
    KeyPrefix,
    ListenAddress,
    LoggerName,
    NameLength,
    Namespace,
    Network,
    OriginText,
    PositiveSize,
    PublicUrl,
    RateText,
    Ratio,
    RedisUrl,
    Secret,
    Separator,
    Size,
    Text,
    UpstreamUrl,
    Wait,
    show_duration,
)


class Identity(Model):
    """What the gateway calls itself to clients and upstreams."""

    name: Text = "mcp-gateway"
    """serverInfo.name and clientInfo.name."""
    title: str | None = None
    """The name for people."""


class Endpoint(Model):
    """A path served, with the upstreams behind it."""

    upstreams: list[str] | None = None
    """Keys of upstreams, in this order; left out = all of them."""
    tools: ToolRules = ToolRules()
    """Which tools this endpoint shows, by the names that clients see."""
    rate: RateText | None = None
    """The most requests it takes from all callers together, such as 1000/s."""


class RedisTls(TlsFiles):
    """How a rediss:// server is trusted; with Sentinels or a Cluster, every one of them."""

    check_hostname: Flag = True
    """The certificate must name the host; off for servers that are known by addresses it does not hold."""
    insecure_skip_verify: Flag = False
    """Accept any certificate. Anyone on the way can then read and change everything."""


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
    levels: Mapping[LoggerName, Literal["debug", "info", "warning", "error"]] = {}
    """Part of the gateway, such as gateway.upstream -> its own level, for all that is within it."""
    access: Literal["all", "problems", "none"] = "all"
    """Which requests have a line of their own: all, those that failed or were slow, or none."""
    slow: Duration = 1.0
    """From how long on a request counts as slow; streams that clients hold open never do."""


class Tracing(Model):
    """How requests are traced; needs the extra `otel`."""

    otlp: UpstreamUrl | None = None
    """Where a collector of OpenTelemetry takes spans over HTTP; without a path, /v1/traces of it."""
    headers: Mapping[HeaderName, Secret] = {}
    """Headers sent with every batch of spans."""
    sample: Ratio = 1.0
    """The share of requests that are traced, from 0 to 1; what a caller decided of its trace holds."""
    service_name: Text = "mcp-gateway"
    """What the gateway is called in traces."""
    baggage: list[BaggageKey] = []
    """The members of callers' baggage that upstreams may see."""


class Secrets(Model):
    """What cursors and other handed-out tokens are sealed with."""

    keys: list[Secret] = []
    """The first seals, all of them open; none = a random key per process, for a single replica."""


class Config(Model):
    """The configuration of MCP Gateway."""

    listen: ListenAddress = "127.0.0.1:8080"
    """Where the endpoints are served: host:port or [::1]:port."""
    admin: AddressOrOff = "127.0.0.1:9090"
    """Where /healthz, /readyz, /metrics, the status page, /explain and /purge are served; "off" = nowhere."""
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
    watch: Flag = True
    """Apply the configuration when its file changes, or one that it names; SIGHUP does in any case."""
    shutdown_grace: Duration = 10.0
    """How long running requests may finish after a signal to stop."""
    log: Log = Log()
    """What is written to stderr."""
    tracing: Tracing = Tracing()
    """How requests are traced."""
    secrets: Secrets = Secrets()
    """What handed-out tokens are sealed with."""

    def behind(self, endpoint: str) -> list[str]:
        """Return the keys of the upstreams behind an endpoint, in their order there."""
        chosen = self.endpoints[endpoint].upstreams
        return list(self.upstreams) if chosen is None else chosen

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


def contradictions(config: Config) -> Iterator[tuple[YamlPath, str]]:
    """Yield what takes back what stands elsewhere, or looks as if it did something; defaults included."""
    if "authentication" in config.model_fields_set and not config.authentication.on:
        # Whoever writes it believes that callers are verified: they would all be let in (Z-18).
        yield (
            ("authentication",),
            "it verifies nobody: name `tokens`, `keys` or a source of `certificates`, or leave it out",
        )
    if config.tracing.otlp is not None and not _is_there("opentelemetry.exporter.otlp.proto.http"):
        message = "needs OpenTelemetry: pip install 'mcp-caching-gateway[otel]'"
        yield ("tracing", "otlp"), message
    for name in config.log.levels:
        known = _parts()
        if name.split(".")[0] == "gateway" and name not in known:
            yield ("log", "levels", name), f"there is no part `{name}`{nearest(name, known)}"
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


def _is_there(package: str) -> bool:
    """Whether a package can be imported; those around it are."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _parts() -> frozenset[str]:
    """Return the names under which the gateway logs: its packages and modules, and the access log."""
    root = Path(__file__).parents[1]
    files = (path.relative_to(root.parent).with_suffix("") for path in root.rglob("*.py"))
    return frozenset(".".join(path.parts).removesuffix(".__init__") for path in files) | {"gateway.access"}
