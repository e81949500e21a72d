"""What the gateway shows an upstream to be let in, and what a refusal means. Holds secrets, prints none."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus

from gateway import config
from gateway.protocol.call import Challenge, Reason, UpstreamName
from gateway.upstream.challenges import Bearer
from gateway.upstream.failures import Failed
from gateway.upstream.tokens import Tokens, bearer_of


class Credentials:
    """One upstream's `auth`; a caller's own Authorization passes only with `forward` (Z-09, B15)."""

    def __init__(self, name: UpstreamName, auth: config.Auth, tokens: Tokens | None = None) -> None:
        """`tokens` gives what is shown where `auth` says how tokens are obtained."""
        assert (tokens is None) == (auth.obtained is None)
        self._name = name
        self._kind = auth.kind
        self._tokens = tokens
        self._own: dict[str, str] = {}
        if auth.bearer is not None:
            self._own["Authorization"] = f"Bearer {auth.bearer.get_secret_value()}"
        for header, secret in auth.headers.items():
            if header.lower() == "user-agent":
                continue  # ours; the settings refuse every other name that the gateway writes itself
            self._own[header] = secret.get_secret_value()

    def __repr__(self) -> str:
        return f"<Credentials {self._name}: {self._kind if not self._own else sorted(self._own)}>"

    async def close(self) -> None:
        """Close every connection to an authorization server."""
        if self._tokens is not None:
            await self._tokens.close()

    async def headers(self, authorization: str | None) -> Mapping[str, str]:
        """Return the headers that authenticate one request; `authorization` is its caller's.

        Raises NoToken, or Challenge where its caller has to do something about it.
        """
        if self._tokens is None:
            return self._known(authorization)
        return _shown(await self._tokens.shown(authorization))

    async def ready(self, authorization: str | None) -> None:
        """Return once what `headers` returns is there at once; raises what it raises."""
        if self._tokens is not None:
            await self._tokens.shown(authorization)

    async def others(
        self, authorization: str | None, refused: Mapping[str, str], status: int, bearer: Bearer
    ) -> Mapping[str, str] | None:
        """Return the headers to try once more with, None where nothing else is to be shown (U-28)."""
        if self._tokens is None:
            return None
        if status != HTTPStatus.UNAUTHORIZED and bearer.error != "insufficient_scope":
            return None
        token = await self._tokens.instead(authorization, bearer_of(refused.get("Authorization")), bearer)
        return None if token is None else _shown(token)

    def secrets(self, authorization: str | None) -> Iterable[str]:
        """Return every value that must not be seen in a log, whole and without its scheme."""
        for text in self._known(authorization).values():
            yield from {part for part in (text, text.rpartition(" ")[2]) if part}

    def refused(
        self, authorization: str | None, shown: Mapping[str, str], status: int, bearer: Bearer
    ) -> Challenge | Failed:
        """Return what a 401 or 403 becomes: the caller's matter only when the credential was the caller's.

        So it is where tokens are exchanged and the caller brought none.
        """
        if self._kind == "forward":
            return Challenge(self._name, status, bearer.error, bearer.scope)
        if self._kind == "token_exchange" and not shown:
            return Challenge(self._name, status, None, None)
        error, scope = bearer.error, bearer.scope
        detail = f"HTTP {status}" + (f", {error}" if error else "") + (f", scope {scope}" if scope else "")
        return Failed(self._name, Reason.CREDENTIALS, detail, status=status)

    def _known(self, authorization: str | None) -> Mapping[str, str]:
        """Return what is shown without asking anybody first."""
        if self._kind == "forward":
            return {} if authorization is None else {"Authorization": authorization}
        if self._tokens is not None:
            return _shown(self._tokens.current(authorization))
        return self._own


def _shown(token: str | None) -> Mapping[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}
