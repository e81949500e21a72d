"""What a configuration says of one upstream: where it is, who asks, what of it is shown, and its bounds."""

import json
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from gateway.settings.explain import DERIVED
from gateway.settings.model import Model, TlsFiles
from gateway.settings.outgoing import ClientCredentials, TokenClient, TokenExchange
from gateway.settings.values import (
    CachedMethod,
    Count,
    Duration,
    ExposedName,
    Flag,
    FromFile,
    HeaderName,
    Label,
    MethodPattern,
    Prefix,
    ProxyUrl,
    RateText,
    Ratio,
    Secret,
    Text,
    UpstreamUrl,
    VariableText,
    Wait,
    shown_url,
)


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
    """How many calls run at once; the rest wait. Streams and waits for a token are counted apart."""
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


def _in_clear(secret: SecretStr) -> str:
    return secret.get_secret_value()
