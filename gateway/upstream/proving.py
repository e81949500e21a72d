"""How the gateway proves to an authorization server which client it is: by a secret, or signed (RFC 7523)."""

import base64
import secrets
from collections.abc import Callable, MutableMapping
from typing import Any
from urllib.parse import quote_plus

import jwt

from gateway import config
from gateway.upstream.discovery import Issuer, Unfit

_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_LIFETIME = 60
"""How long what is signed counts, in seconds."""


class Proof:
    """The credential of one client. It is in no repr."""

    def __init__(self, client: config.TokenClient, wall_clock: Callable[[], float]) -> None:
        """Raise ValueError for a key that will not do."""
        self._id = client.client_id
        self._secret = None if client.client_secret is None else client.client_secret.get_secret_value()
        self._key: Any = None
        self._algorithms: tuple[str, ...] = ()
        if client.client_key is not None:
            self._key, self._algorithms = config.read_signing_key(client.client_key.get_secret_value())
        self._way = client.client_auth if "client_auth" in client.model_fields_set else None
        self._wall_clock = wall_clock

    def __repr__(self) -> str:
        return f"<Proof of {self._id!r}>"

    def add(self, at: Issuer, form: MutableMapping[str, str], headers: MutableMapping[str, str]) -> None:
        """Add what proves it to a request, the way this server takes it."""
        if self._key is not None:
            form["client_id"] = self._id
            form["client_assertion_type"] = _TYPE
            form["client_assertion"] = self._signed(at)
        elif self._secret is None:
            form["client_id"] = self._id
        elif self._posts(at):
            form["client_id"], form["client_secret"] = self._id, self._secret
        else:
            pair = f"{quote_plus(self._id)}:{quote_plus(self._secret)}"  # RFC 6749, 2.3.1
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"

    def _posts(self, at: Issuer) -> bool:
        """Whether the secret goes into the form: as is written, or else as the server says that it must."""
        if self._way is not None or at.client_auth is None:
            return self._way == "post"
        return "client_secret_post" in at.client_auth and "client_secret_basic" not in at.client_auth

    def _signed(self, at: Issuer) -> str:
        known = self._algorithms if at.algorithms is None else at.algorithms
        algorithm = next((one for one in self._algorithms if one in known), None)
        if algorithm is None:
            raise Unfit("its authorization server takes no signature that client_key can make")
        now = int(self._wall_clock())
        claims = {
            "iss": self._id,
            "sub": self._id,
            # The server itself, not one of its addresses: so nobody else can use what it is shown.
            "aud": at.issuer or at.token_url,
            "iat": now,
            "exp": now + _LIFETIME,
            "jti": secrets.token_urlsafe(16),
        }
        return jwt.encode(claims, self._key, algorithm)
