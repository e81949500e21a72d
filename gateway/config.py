"""All that a configuration file may say, as pydantic models on one page, and how a file becomes one."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

# Durations are float seconds inside, sizes are int bytes; `250ms 30s 5m 24h` and `64KiB 64MiB` in the file.
Duration = Annotated[float, Field(ge=0)]  # BeforeValidator(parse_duration) to be added
Size = Annotated[int, Field(ge=0)]  # BeforeValidator(parse_size) to be added


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Identity(Model):
    name: str = "mcp-gateway"
    title: str | None = None


class ToolRules(Model):
    allow: list[str] = ["*"]
    deny: list[str] = []
    rename: Mapping[str, str] = {}
    describe: Mapping[str, str] = {}


class UpstreamCache(Model):
    share_public: bool = True
    min_ttl: Mapping[str, Duration] = {}
    max_ttl: Duration | None = None
    scope: Literal["public", "private"] | None = None


class Auth(Model):
    """`auth:` is a bare word (none, forward) or one key."""

    kind: Literal["none", "forward", "bearer", "headers"] = "none"
    bearer: SecretStr | None = None
    headers: Mapping[str, SecretStr] = {}


class Tls(Model):
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False


class Upstream(Model):
    url: str
    era: Literal["auto", "modern"] = "auto"
    prefix: str  # filled with the key by the loader when the file leaves it out; "" = none
    auth: Auth = Auth()
    timeout: Duration = 30.0
    max_timeout: Duration = 600.0
    list_timeout: Duration = 5.0
    connections: int = 100  # concurrent calls' connections; streams have a pool of their own
    forward_headers: list[str] = []
    cache: UpstreamCache = UpstreamCache()
    tools: ToolRules = ToolRules()
    tls: Tls = Tls()
    proxy: str | None = None
    trust_env: bool = False


class Endpoint(Model):
    upstreams: list[str] | None = None  # None = all, in the file's order
    tools: ToolRules = ToolRules()


class Cache(Model):
    memory: Size = 64 * 2**20
    max_ttl: Duration = 86400.0
    single_tenant: bool = False


class Names(Model):
    separator: str = "__"
    max_length: int = 64
    charset: Literal["strict", "spec"] = "strict"


class Limits(Model):
    message: Size = 32 * 2**20
    header: Size = 64 * 2**10
    depth: int = 200
    streams_per_caller: int = 1000
    stalled_listener: Duration = 10.0
    page_size: int = 1000
    list_pages: int = 1000
    list_items: int = 100_000
    keep_alive: Duration = 15.0
    request_body: Duration = 30.0


class Cors(Model):
    origins: list[str] = []


class Log(Model):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Secrets(Model):
    keys: list[SecretStr] = []


class Config(Model):
    listen: str = "127.0.0.1:8080"
    admin: str = "127.0.0.1:9090"  # or "off"
    public_url: str | None = None
    identity: Identity = Identity()
    cache: Cache = Cache()
    names: Names = Names()
    endpoints: Mapping[str, Endpoint] = {"/mcp": Endpoint()}
    upstreams: Mapping[str, Upstream]
    limits: Limits = Limits()
    cors: Cors = Cors()
    origins: list[str] = []
    hosts: list[str] = []
    trusted_proxies: list[str] = []
    startup_wait: Duration = 5.0
    shutdown_grace: Duration = 10.0
    log: Log = Log()
    secrets: Secrets = Secrets()
