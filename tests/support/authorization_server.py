"""A real OAuth authorization server on 127.0.0.1, with real keys and grants, that misbehaves when told to.

    async with AuthorizationServer() as corp:
        corp.issuer                                                # what its tokens and its metadata say
        token = corp.mint("alice", aud="https://gw.example/mcp", scope="files:read")
        opaque = corp.opaque("alice", aud=..., scope=...)          # known to /introspect only
        corp.revoke(token)
        corp.rotate()                                              # the next key; the old ones stay published
        corp.withdraw(corp.keys[-1])                               # no longer published
        corp.client("gw", secret="s")                              # who may ask /token and /introspect
        corp.on("jwks", failing(500))                              # from now on
        corp.once("token", late(event), garbage())                 # the next two requests, then as before
        seen = await corp.arrived("token")                         # the next request not waited for yet
        assert seen.form["resource"] == ...
        assert corp.count("jwks") == 1

It gives out tokens by authorization code (PKCE S256, dynamic registration, refresh tokens that are used up),
client_credentials (secret or private_key_jwt) and token exchange, for the `resource` that is asked for, and
answers introspection and revocation. The user is always logged in, as `user`, and consents. `metadata`
changes what its metadata says (None takes a member away), `places` where that stands. Endpoints are called:
metadata, jwks, authorize, token, register, introspect, revoke.
"""

import asyncio
import base64
import hashlib
import json
import secrets
import ssl
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

from tests.support.certificates import Pair

CODE = "authorization_code"
REFRESH = "refresh_token"
CLIENT_CREDENTIALS = "client_credentials"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
JWT = "urn:ietf:params:oauth:token-type:jwt"

_SIGNATURE_ONLY = {f"verify_{claim}": False for claim in ("aud", "exp", "iat", "nbf")}
"""The time is the server's own."""
_CURVES = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}


@dataclass(eq=False)
class Asked:
    """One request as it arrived, and where an answer goes."""

    server: "AuthorizationServer"
    endpoint: str
    request: web.BaseRequest
    body: bytes

    @property
    def path(self) -> str:
        return self.request.path

    @property
    def query(self) -> dict[str, str]:
        return dict(self.request.query)

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The form that was sent, repeated fields too."""
        return parse_qsl(self.body.decode(), keep_blank_values=True)

    @property
    def form(self) -> dict[str, str]:
        return dict(self.fields)

    def all(self, name: str) -> list[str]:
        """Return every value of one field of the form."""
        return [value for key, value in self.fields if key == name]

    def header(self, name: str) -> str | None:
        return self.request.headers.get(name)

    @property
    def basic(self) -> tuple[str, str] | None:
        """Id and secret as RFC 6749 has them in Authorization: form-encoded, then joined."""
        scheme, _, value = (self.header("authorization") or "").partition(" ")
        if scheme.lower() != "basic":
            return None
        id, _, secret = base64.b64decode(value).decode().partition(":")
        return unquote(id.replace("+", " ")), unquote(secret.replace("+", " "))


Behaviour = Callable[[Asked], Awaitable[web.StreamResponse]]


def failing(status: int = 500, body: bytes = b"", **headers: str) -> Behaviour:
    """Answer with plain HTTP; header names are written with underscores for dashes."""

    async def behave(asked: Asked) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=body, headers=named)

    return behave


def saying(message: Any, *, status: int = 200) -> Behaviour:
    """Answer with this as JSON."""

    async def behave(asked: Asked) -> web.StreamResponse:
        return web.json_response(message, status=status)

    return behave


def denying(error: str, *, status: int = 400) -> Behaviour:
    """Answer with an OAuth error."""
    return saying({"error": error}, status=status)


def late(until: asyncio.Event | None = None) -> Behaviour:
    """Answer as ever, but not before the event; without one never."""

    async def behave(asked: Asked) -> web.StreamResponse:
        await (until or asyncio.Event()).wait()
        return await asked.server.default(asked)

    return behave


def garbage(body: bytes = b"<html>\xff not JSON", content_type: str = "application/json") -> Behaviour:
    """Answer 200 with what is no JSON."""
    return failing(200, body, Content_Type=content_type)


def huge(size: int = 2**26) -> Behaviour:
    """Answer with JSON that does not end for so many bytes."""

    async def behave(asked: Asked) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(asked.request)
        await response.write(b'{"keys": ["')
        for _ in range(size // 2**16):
            await response.write(b"x" * 2**16)
        await response.write_eof()
        return response

    return behave


def redirecting(location: str, *, status: int = 302) -> Behaviour:
    """Answer with a redirect."""
    return failing(status, Location=location)


def cutting() -> Behaviour:
    """Drop the connection without a byte of an answer."""

    async def behave(asked: Asked) -> web.StreamResponse:
        assert asked.request.transport is not None
        asked.request.transport.abort()
        return web.Response()

    return behave


@dataclass(frozen=True)
class SigningKey:
    """A key of the server, with the name and the algorithm it is published under."""

    kid: str | None
    alg: str
    private: Any = field(repr=False)

    @property
    def jwk(self) -> dict[str, Any]:
        """Its public half as a JWKS has it."""
        made = get_default_algorithms()[self.alg].to_jwk(self.private.public_key(), as_dict=True)
        named = {} if self.kid is None else {"kid": self.kid}
        ops = {"use": "sig", "alg": self.alg}
        return {**{key: value for key, value in made.items() if key != "key_ops"}, **named, **ops}


@cache
def _rsa(number: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)  # takes 0.1 s: tests share the first few


def make_key(alg: str = "RS256", kid: str | None = "", *, number: int | None = None) -> SigningKey:
    """Return a key for an algorithm; RSA keys of one number are one key."""
    private: Any
    if alg in _CURVES:
        private = ec.generate_private_key(_CURVES[alg]())
    elif alg == "EdDSA":
        private = ed25519.Ed25519PrivateKey.generate()
    else:
        private = rsa.generate_private_key(65537, 2048) if number is None else _rsa(number)
    return SigningKey(secrets.token_hex(4) if kid == "" else kid, alg, private)


@dataclass
class Client:
    """Who may ask for tokens, and how it proves who it is."""

    id: str
    secret: str | None = None
    key: Any = None
    """The public half of the key it signs with, for private_key_jwt."""
    redirect_uris: list[str] = field(default_factory=list)
    scopes: set[str] | None = None
    """The most it is granted; None = whatever it asks for."""
    auth: str | None = None
    """The only way that counts, such as client_secret_post; None = any."""


@dataclass(frozen=True)
class _Grant:
    """What stands behind a code or a refresh token."""

    client: str
    subject: str
    scope: str
    resources: tuple[str, ...]
    redirect_uri: str = ""
    challenge: str = ""


class _Denied(Exception):
    def __init__(self, error: str, status: int = 400) -> None:
        super().__init__(error)
        self.error = error
        self.status = status


class AuthorizationServer:
    """The server; `issuer` is only known once it runs."""

    def __init__(
        self,
        *,
        path: str = "/corp",
        alg: str = "RS256",
        tls: Pair | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.keys = [make_key(alg, number=0)]
        """The first signs; all of them are published."""
        self.clients: dict[str, Client] = {}
        self.user = "alice"
        self.denies: str | None = None
        """The error that the user's refusal is, such as access_denied."""
        self.lifetime = 3600.0
        self.opaque_tokens = False
        """Whether /token gives out tokens that only /introspect understands."""
        self.refreshes = True
        self.metadata: dict[str, Any] = {}
        self.places = {"oauth", "oidc", "appended"}
        """Where the metadata stands: RFC 8414, OpenID Connect behind the host, OpenID Connect behind all."""
        self.extra: dict[str, Any] = {}
        """Claims that each token gets besides."""
        self.asked: list[Asked] = []
        self._now = now
        self._path = path
        self._tls = tls
        self._port = 0
        self._scripts: dict[str, Behaviour] = {}
        self._next: dict[str, deque[Behaviour]] = {}
        self._taken: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._codes: dict[str, _Grant] = {}
        self._refresh: dict[str, _Grant] = {}
        self._known: dict[str, dict[str, Any]] = {}
        self._revoked: set[str] = set()
        self._runner: web.ServerRunner | None = None

    async def __aenter__(self) -> "AuthorizationServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; after `stop` on the same port again."""
        server = web.Server(self._handle, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.0)
        await self._runner.setup()
        context = None
        if self._tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self._tls.certificate, self._tls.key)
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=context, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Refuse connections from now on."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # What tests look at and change

    @property
    def origin(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    @property
    def issuer(self) -> str:
        return f"{self.origin}{self._path}"

    def url(self, endpoint: str) -> str:
        """Return where an endpoint is."""
        return f"{self.issuer}/{endpoint}"

    def client(self, id: str, secret: str | None = None, **members: Any) -> Client:
        """Make a client known."""
        self.clients[id] = Client(id, secret, **members)
        return self.clients[id]

    def rotate(self, alg: str = "RS256", kid: str | None = "") -> SigningKey:
        """Sign with a new key from now on; the old ones stay published."""
        self.keys.insert(0, make_key(alg, kid, number=len(self.keys) if alg[0] in "RP" else None))
        return self.keys[0]

    def withdraw(self, key: SigningKey) -> None:
        """Publish a key no longer."""
        self.keys.remove(key)

    def claims(self, subject: str | None, **claims: Any) -> dict[str, Any]:
        """Return what a token for this subject says; a claim of None is left out."""
        now = int(self._now())
        made = {
            "iss": self.issuer,
            "sub": subject,
            "iat": now,
            "exp": now + int(claims.pop("expires_in", self.lifetime)),
            "jti": secrets.token_hex(8),
            **self.extra,
            **claims,
        }
        return {name: value for name, value in made.items() if value is not None}

    def mint(
        self,
        subject: str | None = "alice",
        *,
        key: SigningKey | None = None,
        header: Mapping[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """Return a signed JWT; `header` adds to its header, and takes away what is None there."""
        key = self.keys[0] if key is None else key
        wanted = {"typ": "at+jwt", "kid": key.kid, **(header or {})}
        made = self.claims(subject, **claims)
        # PyJWT wants `iss` to be text, which tests of other things do not always want.
        return sign(made, key, wanted)

    def opaque(self, subject: str | None = "alice", **claims: Any) -> str:
        """Return a token that says nothing itself; /introspect says the claims."""
        token = f"opaque-{secrets.token_urlsafe(24)}"
        self._known[token] = self.claims(subject, **claims)
        return token

    def look(self, token: str) -> dict[str, Any] | None:
        """Return what a token of ours says, None for one that does not count (any more)."""
        return self._look(token)

    def revoke(self, token: str) -> None:
        """Take a token back; whoever verifies it alone does not know."""
        self._revoked.add(token)

    def on(self, endpoint: str, behaviour: Behaviour | None) -> None:
        """Answer so from now on; None = as ever."""
        if behaviour is None:
            self._scripts.pop(endpoint, None)
        else:
            self._scripts[endpoint] = behaviour

    def once(self, endpoint: str, *behaviours: Behaviour) -> None:
        """Answer the next requests so, one after the other."""
        self._next.setdefault(endpoint, deque()).extend(behaviours)

    def seen(self, endpoint: str) -> list[Asked]:
        """Return all requests of an endpoint."""
        return [asked for asked in self.asked if asked.endpoint == endpoint]

    def count(self, endpoint: str) -> int:
        """Return how often an endpoint was asked."""
        return len(self.seen(endpoint))

    async def arrived(self, endpoint: str) -> Asked:
        """Return the next request of an endpoint that was not waited for yet."""
        while self._taken[endpoint] >= self.count(endpoint):
            self._changed.clear()
            await self._changed.wait()
        self._taken[endpoint] += 1
        return self.seen(endpoint)[self._taken[endpoint] - 1]

    # How it answers

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = Asked(self, self._endpoint(request.path), request, await request.read())
        self.asked.append(asked)
        self._changed.set()
        waiting = self._next.get(asked.endpoint)
        if waiting:
            return await waiting.popleft()(asked)
        return await self._scripts.get(asked.endpoint, AuthorizationServer._as_ever)(asked)

    @staticmethod
    async def _as_ever(asked: Asked) -> web.StreamResponse:
        return await asked.server.default(asked)

    def _endpoint(self, path: str) -> str:
        return "metadata" if ".well-known" in path else path.removeprefix(f"{self._path}/")

    async def default(self, asked: Asked) -> web.StreamResponse:
        """Answer as a good server does."""
        try:
            match asked.endpoint, asked.request.method:
                case "metadata", "GET":
                    return self._metadata(asked.path)
                case "jwks", "GET":
                    return web.json_response({"keys": [key.jwk for key in self.keys]})
                case "authorize", "GET":
                    return self._authorize(asked.query, asked.request.query.getall("resource", []))
                case "token", "POST":
                    headers = {"Cache-Control": "no-store"}
                    return web.json_response(self._token(asked), headers=headers)
                case "register", "POST":
                    return web.json_response(self._register(json.loads(asked.body)), status=201)
                case "introspect", "POST":
                    return web.json_response(self._introspect(asked))
                case "revoke", "POST":
                    self._authenticate(asked)
                    self.revoke(asked.form["token"])
                    return web.Response()
                case _:
                    return web.Response(status=404)
        except _Denied as denied:
            return web.json_response({"error": denied.error}, status=denied.status)

    def _metadata(self, path: str) -> web.StreamResponse:
        places = {
            f"/.well-known/oauth-authorization-server{self._path}": "oauth",
            f"{self._path}/.well-known/openid-configuration": "appended",
            f"/.well-known/openid-configuration{self._path}": "oidc",
        }
        place = places.get(path)
        if place not in self.places and not (not self._path and self.places & {"oidc", "appended"} and place):
            return web.Response(status=404)
        said = {
            "issuer": self.issuer,
            **{f"{name}_endpoint": self.url(at) for name, at in _ENDPOINTS.items()},
            "jwks_uri": self.url("jwks"),
            "response_types_supported": ["code"],
            "grant_types_supported": [CODE, REFRESH, CLIENT_CREDENTIALS, EXCHANGE],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": [
                "client_secret_basic",
                "client_secret_post",
                "private_key_jwt",
                "none",
            ],
            "token_endpoint_auth_signing_alg_values_supported": ["RS256", "ES256", "EdDSA"],
            "authorization_response_iss_parameter_supported": True,
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            **self.metadata,
        }
        return web.json_response({name: value for name, value in said.items() if value is not None})

    def _register(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        id = f"client-{len(self.clients)}"
        method = wanted.get("token_endpoint_auth_method") or "client_secret_basic"
        secret = None if method == "none" else secrets.token_urlsafe(16)
        self.client(id, secret, redirect_uris=[str(uri) for uri in wanted.get("redirect_uris") or []])
        issued = {"client_id": id, "client_id_issued_at": int(self._now())}
        proof = {} if secret is None else {"client_secret": secret, "client_secret_expires_at": 0}
        return {**wanted, "token_endpoint_auth_method": method, **issued, **proof}

    def _authorize(self, query: Mapping[str, str], resources: Sequence[str]) -> web.StreamResponse:
        client = self.clients.get(query.get("client_id", ""))
        uri = query.get("redirect_uri", "")
        if client is None or uri not in client.redirect_uris:
            raise _Denied("invalid_request")  # never redirected to where nobody registered
        answer = {"state": query.get("state", ""), "iss": self.issuer}
        if self.denies is not None:
            answer["error"] = self.denies
        elif query.get("response_type") != "code" or query.get("code_challenge_method") != "S256":
            answer["error"] = "invalid_request"
        else:
            answer["code"] = secrets.token_urlsafe(16)
            self._codes[answer["code"]] = _Grant(
                client.id,
                self.user,
                query.get("scope", ""),
                tuple(resources),
                uri,
                query.get("code_challenge", ""),
            )
        return web.Response(status=302, headers={"Location": f"{uri}?{urlencode(answer)}"})

    def _token(self, asked: Asked) -> dict[str, Any]:
        form, client = asked.form, self._authenticate(asked)
        resources = (*asked.all("resource"), *asked.all("audience"))
        match form.get("grant_type"):
            case grant if grant == CODE:
                return self._by_code(form, client)
            case grant if grant == REFRESH:
                kept = self._refresh.pop(form.get("refresh_token", ""), None)
                if kept is None or kept.client != client.id:
                    raise _Denied("invalid_grant")
                return self._issue(
                    kept.subject, client, form.get("scope") or kept.scope, kept.resources, kept
                )
            case grant if grant == CLIENT_CREDENTIALS:
                if client.secret is None and client.key is None:
                    raise _Denied("unauthorized_client")
                return self._issue(client.id, client, form.get("scope", ""), resources)
            case grant if grant == EXCHANGE:
                return self._exchange(form, client, resources)
            case _:
                raise _Denied("unsupported_grant_type")

    def _by_code(self, form: Mapping[str, str], client: Client) -> dict[str, Any]:
        grant = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if grant is None or (grant.client, grant.redirect_uri, grant.challenge) != (
            client.id,
            form.get("redirect_uri"),
            challenge,
        ):
            raise _Denied("invalid_grant")
        return self._issue(grant.subject, client, grant.scope, grant.resources, grant)

    def _exchange(
        self, form: Mapping[str, str], client: Client, resources: tuple[str, ...]
    ) -> dict[str, Any]:
        claims = self._look(form.get("subject_token", ""))
        if claims is None or form.get("subject_token_type") not in (ACCESS_TOKEN, JWT):
            raise _Denied("invalid_grant")
        acting = {"act": {"sub": client.id}}
        ends = min(float(claims["exp"]) - self._now(), self.lifetime)
        issued = self._issue(str(claims["sub"]), client, form.get("scope", ""), resources, None, ends, acting)
        return {**issued, "issued_token_type": ACCESS_TOKEN}

    def _issue(
        self,
        subject: str,
        client: Client,
        scope: str,
        resources: Sequence[str],
        refreshed: _Grant | None = None,
        lifetime: float | None = None,
        claims: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        lifetime = self.lifetime if lifetime is None else lifetime
        granted = [one for one in scope.split() if client.scopes is None or one in client.scopes]
        if scope and not granted:
            raise _Denied("invalid_scope")
        said = {
            "aud": resources[0] if len(resources) == 1 else list(resources) or None,
            "scope": " ".join(granted) or None,
            "client_id": client.id,
            "expires_in": lifetime,
            **(claims or {}),
        }
        token = (self.opaque if self.opaque_tokens else self.mint)(subject, **said)
        answer: dict[str, Any] = {"access_token": token, "token_type": "Bearer", "expires_in": int(lifetime)}
        if granted:
            answer["scope"] = " ".join(granted)
        if refreshed is not None and self.refreshes:
            answer["refresh_token"] = secrets.token_urlsafe(24)
            self._refresh[answer["refresh_token"]] = refreshed
        return answer

    def _introspect(self, asked: Asked) -> dict[str, Any]:
        client = self._authenticate(asked)
        if client.secret is None and client.key is None:
            raise _Denied("invalid_client", 401)
        claims = self._look(asked.form.get("token", ""))
        return {"active": False} if claims is None else {"active": True, "token_type": "Bearer", **claims}

    def _look(self, token: str) -> dict[str, Any] | None:
        """Return what a token of ours says, None for one that does not count (any more)."""
        claims = self._known.get(token)
        for key in self.keys if claims is None else ():
            try:
                claims = jwt.decode(
                    token,
                    key.private.public_key(),
                    [key.alg],
                    options=_SIGNATURE_ONLY,
                )
                break
            except jwt.InvalidTokenError:
                continue
        if claims is None or token in self._revoked or claims.get("exp", 0) <= self._now():
            return None
        return dict(claims)

    def _authenticate(self, asked: Asked) -> Client:
        """Return who asks; public clients say only their name."""
        form = asked.form
        if asked.basic is not None:
            (id, secret), method = asked.basic, "client_secret_basic"
        elif "client_assertion" in form:
            return self._asserted(form)
        else:
            id, secret = form.get("client_id", ""), form.get("client_secret", "")
            method = "client_secret_post" if secret else "none"
        client = self.clients.get(id)
        if client is None or client.key is not None or (client.secret or "") != secret:
            raise _Denied("invalid_client", 401)
        if client.auth not in (None, method):
            raise _Denied("invalid_client", 401)
        return client

    def _asserted(self, form: Mapping[str, str]) -> Client:
        if form.get("client_assertion_type") != ASSERTION:
            raise _Denied("invalid_client", 401)
        token = form["client_assertion"]
        try:
            said = jwt.decode(token, options={"verify_signature": False})
            client = self.clients[said["sub"]]
            alg = jwt.get_unverified_header(token)["alg"]
            options = {"require": ["exp", "iss", "sub", "jti"], "verify_aud": False}
            claims = jwt.decode(token, client.key, [alg], options=options, issuer=client.id)
        except (jwt.InvalidTokenError, KeyError):
            raise _Denied("invalid_client", 401) from None
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if claims["jti"] in self._revoked or not {self.issuer, self.url("token")} & set(audiences):
            raise _Denied("invalid_client", 401)
        self._revoked.add(claims["jti"])  # an assertion counts once
        return client


_ENDPOINTS = {
    "authorization": "authorize",
    "token": "token",
    "registration": "register",
    "introspection": "introspect",
    "revocation": "revoke",
}


def sign(claims: Mapping[str, Any] | bytes, key: SigningKey, header: Mapping[str, Any]) -> str:
    """Return a JWS over anything at all, with exactly this header; `alg` is the key's by default."""
    said = {"alg": key.alg, **header}
    head = json.dumps({name: value for name, value in said.items() if value is not None}).encode()
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    signed = f"{encode(head)}.{encode(payload)}"
    algorithm = get_default_algorithms()[key.alg]
    return f"{signed}.{encode(algorithm.sign(signed.encode(), key.private))}"


def encode(data: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
