"""How a configuration lets the gateway obtain tokens for its upstreams (RFC 6749, 8693, 8707)."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.settings.model import Model, TlsFiles
from gateway.settings.signing import read_signing_key
from gateway.settings.values import Duration, Flag, IssuerUrl, ScopeToken, Secret, Text, VariableText, Wait


class TokenClient(Model):
    """The gateway as a client of an authorization server."""

    issuer: IssuerUrl | None = None
    """The authorization server; by default the one that the upstream's own metadata names."""
    token_url: IssuerUrl | None = None
    """Where it gives out tokens; by default as its metadata says."""
    client_id: Text
    """Who asks."""
    client_secret: Secret | None = None
    """What proves it."""
    client_key: VariableText | None = None
    """A private key in PEM, instead: the client then signs what it asks with (private_key_jwt)."""
    client_auth: Literal["basic", "post"] = "basic"
    """How the secret is sent."""
    scopes: list[ScopeToken] = []
    """What is asked for; by default what the upstream's challenge or metadata names."""
    resource: str | None = None
    """What the token is for; by default the upstream's URL. "" = nothing is said."""
    parameters: Mapping[Text, Text] = Field(default={}, repr=False)
    """Whatever else the authorization server wants to be sent, such as audience."""
    early: Duration = 30.0
    """How long before its end a token is replaced."""
    timeout: Wait = 10.0
    """The longest the authorization server is waited for."""
    tls: TlsFiles = TlsFiles()
    """How its https addresses are trusted."""

    @field_validator("client_key")
    @classmethod
    def _key_signs(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None:
            read_signing_key(key.get_secret_value())
        return key

    @model_validator(mode="after")
    def _one_proof(self) -> Self:
        if self.client_secret is not None and self.client_key is not None:
            raise ValueError("expected client_secret or client_key, not both")
        return self


class ClientCredentials(TokenClient):
    """A token that the gateway is given for itself, and uses for every caller."""

    @model_validator(mode="after")
    def _proof(self) -> Self:
        if self.client_secret is None and self.client_key is None:
            raise ValueError("expected client_secret or client_key beside client_id")
        return self


class TokenExchange(TokenClient):
    """A token per caller, given in exchange for the caller's own (RFC 8693), which goes nowhere else."""

    audience: Text | None = None
    """The upstream's name at the authorization server, where it knows it by another than its URL."""
    subject_token_type: Literal["access_token", "jwt"] = "access_token"
    """What the caller's token is called there."""
    remembered: int = Field(default=10_000, ge=1)
    """Callers' tokens that are kept at once."""
    anonymous: Flag = False
    """Let callers without a token through, without a credential; otherwise they are refused."""

    @model_validator(mode="after")
    def _operators_choice(self) -> Self:
        if self.issuer is None and self.token_url is None:
            raise ValueError(
                "expected issuer or token_url: callers' tokens go there, so the upstream cannot choose where"
            )
        return self
