"""What a configuration says of those who call: how they prove who they are, and what they may do."""

from collections.abc import Collection, Mapping
from typing import Literal, Self

from pydantic import field_validator, model_validator

from gateway.settings.model import Model, TlsFiles
from gateway.settings.tls import check_pair
from gateway.settings.values import (
    Algorithm,
    CallerName,
    CertificateFile,
    CertificateHeader,
    ClaimValue,
    Count,
    Duration,
    EndpointPath,
    FilePath,
    Flag,
    IssuerUrl,
    KeyHash,
    KeyHeader,
    MethodPattern,
    Moment,
    ScopeToken,
    Secret,
    Text,
    Wait,
)

KEY_PREFIX = "mcpgw_"
"""How an API key begins, so that those who look for secrets in what leaks know one."""


class ServerTls(Model):
    """TLS on the endpoints' listener; the files are read again when they change."""

    cert_file: CertificateFile | None = None
    """A PEM file: the certificate that clients see, and the chain behind it. Without it there is no TLS."""
    key_file: FilePath | None = None
    """A PEM file: the certificate's key, when it is not in the same file."""
    client_ca_file: CertificateFile | None = None
    """A PEM file of authorities whose certificates clients may show, but for those that a CRL in it lists."""
    client_certificates: Literal["optional", "required"] = "optional"
    """Whether a client without a certificate comes in, where client_ca_file is set."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest version of TLS that is spoken."""
    reload: Wait = 60.0
    """How often the files are looked at for a change."""

    @model_validator(mode="after")
    def _pair_fits(self) -> Self:
        if self.cert_file is not None:
            check_pair(self.cert_file, self.key_file, called="key_file")
        elif self.key_file is not None or self.client_ca_file is not None:
            raise ValueError("cert_file is missing: without it there is no TLS")
        return self


class TokenIssuer(Model):
    """An authorization server whose tokens are accepted: as signed JWTs, or by asking it about each."""

    issuer: IssuerUrl
    """Its identifier, as it stands in `iss` and in its metadata, to the letter."""
    audiences: list[Text] = []
    """What a token may be minted for; by default the URL of the endpoint that is asked."""
    algorithms: list[Algorithm] = ["RS256", "PS256", "ES256", "EdDSA"]
    """How a JWT may be signed."""
    jwks_url: IssuerUrl | None = None
    """Where its keys are; by default as its metadata says."""
    introspection_url: IssuerUrl | None = None
    """Where it is asked about tokens (RFC 7662), which then may be of any form; without it they are JWTs."""
    client_id: Text | None = None
    """Who asks there."""
    client_secret: Secret | None = None
    """What proves it."""
    remember: Duration = 30.0
    """How long the answer about a token counts, at most until the token ends; 0s = it is asked each time."""
    subject: Text = "sub"
    """The claim that says who the caller is."""
    leeway: Duration = 30.0
    """How far its clock may differ from ours."""
    keys_ttl: Wait = 600.0
    """How long its keys count before they are fetched again; an unknown key is looked for at once."""
    timeout: Wait = 5.0
    """The longest an answer of it is waited for."""
    tls: TlsFiles = TlsFiles()
    """How its https addresses are trusted."""

    @field_validator("algorithms")
    @classmethod
    def _some(cls, algorithms: list[str]) -> list[str]:
        if not algorithms:
            raise ValueError("expected at least one, such as RS256")
        return algorithms

    @model_validator(mode="after")
    def _asked_by_somebody(self) -> Self:
        if self.introspection_url is None and (self.client_id or self.client_secret):
            raise ValueError("client_id and client_secret go with introspection_url")
        if (self.client_id is None) != (self.client_secret is None):
            raise ValueError("client_id and client_secret go together")
        return self


class ApiKey(Model):
    """A key that one caller holds; what is written here is its hash."""

    hash: KeyHash
    """sha256: and 64 hex digits; `mcp-gateway key` makes a key and its hash."""
    scopes: list[ScopeToken] = []
    """What it grants."""
    expires: Moment | None = None
    """When it ends: a time such as 2027-01-31T12:00:00Z, or a date, the last day on which it counts (UTC)."""


class Certificates(Model):
    """Clients that are known by a certificate: of their own connection, or as a proxy reports it."""

    source: Literal["tls", "header"] | None = None
    """tls = the connection's, see tls.client_ca_file; header = what one of `trusted_proxies` writes there."""
    header: CertificateHeader = "X-Forwarded-Client-Cert"
    """The header a trusted proxy writes; from anybody else it counts for nothing."""
    format: Literal["xfcc", "pem", "rfc9440", "subject"] = "xfcc"
    """xfcc = as Envoy writes it; pem = URL-encoded PEM, as nginx does; rfc9440 = as Client-Cert has it;
    subject = a name alone."""
    names: list[Text] = ["*"]
    """Shell patterns; one must match the certificate's name: its URI, e-mail, DNS name, or else its CN."""
    scopes: list[ScopeToken] = []
    """What a certificate grants."""


class Authentication(Model):
    """How callers prove who they are, any of these ways; without one of them nothing is verified."""

    tokens: Mapping[CallerName, TokenIssuer] = {}
    """Name -> an authorization server; its callers are NAME:SUBJECT."""
    keys: Mapping[CallerName, ApiKey] = {}
    """Name -> an API key, shown as Authorization: Bearer; its caller is key:NAME."""
    key_header: KeyHeader | None = None
    """A header that may carry an API key instead, such as X-API-Key."""
    certificates: Certificates = Certificates()
    """Client certificates; a caller is cert:NAME."""
    anonymous: Flag = False
    """Let callers without a credential in, too: as `anonymous`, without any scope."""
    scopes: list[ScopeToken] = []
    """Scopes without which nobody with a token gets anything; every challenge names them."""
    scopes_supported: list[ScopeToken] = []
    """Further scopes that the metadata document names."""
    implies: Mapping[ScopeToken, list[ScopeToken]] = {}
    """Scope -> the scopes it includes."""
    documentation: Text | None = None
    """The URL of a page for developers, for the metadata document."""
    remembered: Count = 10_000
    """Verified credentials that are remembered at once."""

    @field_validator("tokens")
    @classmethod
    def _names_of_tokens(cls, tokens: Mapping[str, TokenIssuer]) -> Mapping[str, TokenIssuer]:
        for name in tokens:
            if name in ("key", "cert", "anonymous"):
                raise ValueError(f"`{name}` is what other callers' names begin with: choose another")
        seen: dict[str, str] = {}
        for name, one in tokens.items():
            if seen.setdefault(one.issuer, name) != name:
                raise ValueError(f"{seen[one.issuer]} and {name} are the same issuer")
        return tokens

    @field_validator("keys")
    @classmethod
    def _keys_differ(cls, keys: Mapping[str, ApiKey]) -> Mapping[str, ApiKey]:
        seen: dict[str, str] = {}
        for name, one in keys.items():
            if seen.setdefault(one.hash, name) != name:
                raise ValueError(f"{seen[one.hash]} and {name} are the same key")
        return keys

    @model_validator(mode="after")
    def _headers_differ(self) -> Self:
        certificates = self.certificates
        same = self.key_header is not None and self.key_header.lower() == certificates.header.lower()
        if same and certificates.source == "header":
            raise ValueError("key_header and certificates.header are the same header: what would it hold?")
        return self

    @property
    def on(self) -> bool:
        """Whether anything is verified."""
        return bool(self.tokens or self.keys or self.certificates.source)

    def granted(self, scopes: Collection[str]) -> frozenset[str]:
        """Return scopes with all that they include, however far that goes."""
        found, unfollowed = set(scopes), list(scopes)
        while unfollowed:
            more = set(self.implies.get(unfollowed.pop(), ())) - found
            found |= more
            unfollowed += more
        return frozenset(found)


class AccessRule(Model):
    """Who may see and use what; of the rules that fit a thing and a caller, the first decides."""

    endpoints: list[EndpointPath] = []
    """Only on these endpoints."""
    upstreams: list[Text] = []
    """Only what these upstreams offer, by their keys."""
    tools: list[Text] = []
    """Only tools of these names: shell patterns over the upstream's own names. Where a rule names none of
    tools, prompts, resources and methods, it is about all of them."""
    prompts: list[Text] = []
    """Only prompts of these names."""
    resources: list[Text] = []
    """Only resources, and templates, of these URIs: shell patterns over the upstream's own."""
    methods: list[MethodPattern] = []
    """Only these methods of extensions."""
    annotations: Mapping[
        Literal["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"], Flag
    ] = {}
    """Only tools of which all of these hold. What an upstream without `trust_annotations` says of its tools
    does not count: they are taken for the worst that the specification allows."""
    callers: list[Text] = []
    """Only these callers: shell patterns over NAME:SUBJECT, key:NAME, cert:NAME and anonymous. A name that
    nobody can have is a mistake: such a rule would protect nothing."""
    claims: Mapping[Text, list[ClaimValue]] = {}
    """Only callers whose token has one of these values under each of these claims; a.b is b inside a."""
    scopes: list[ScopeToken] = []
    """What such a caller needs in its token for it, all of them."""
    deny: Flag = False
    """Forbid it instead of allowing it."""
    refusal: Literal["challenge", "list", "hide"] | None = None
    """What becomes of those who may not. hide = nothing shows that it exists. challenge = it is in no list,
    and using it is refused with 403 and the scopes that are missing. list = it stays in lists, too, so that
    clients can ask for more scopes. By default challenge where scopes are missing, hide where it is
    forbidden."""

    @model_validator(mode="after")
    def _one_effect(self) -> Self:
        if self.deny and self.scopes:
            raise ValueError("a rule with `deny` needs no `scopes`: what would they be good for?")
        if self.deny and self.refusal == "list":
            raise ValueError("what is denied is in no list: expected hide or challenge")
        if self.annotations and (self.prompts or self.resources or self.methods):
            raise ValueError("annotations are about tools: they do not go with prompts, resources or methods")
        return self


class Access(Model):
    """What callers may see and use; without it everybody who comes in may use everything."""

    rules: list[AccessRule] = []
    """From top to bottom; the first that fits decides."""
    default: Literal["allow", "deny"] | None = None
    """What becomes of what no rule fits: by default deny where there are rules, allow where there are none.
    So `default: deny` alone denies everything."""

    @property
    def on(self) -> bool:
        """Whether anything is denied to anybody."""
        return bool(self.rules) or self.default == "deny"

    @property
    def denies(self) -> bool:
        """Whether what no rule fits is denied."""
        return self.default == "deny" or (self.default is None and bool(self.rules))
