"""What the gateway shows an upstream to be let in, and what a refusal means. Holds secrets, prints none."""

import re
from collections.abc import Iterable, Mapping

from gateway import config
from gateway.protocol.call import Challenge, Reason, UpstreamName
from gateway.upstream.failures import Failed

_PART = re.compile(
    r"""[ \t,]*
    (?:(?P<key>[A-Za-z0-9!#$%&'*+.^_`|~-]+)[ \t]*=[ \t]*
        (?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[A-Za-z0-9!#$%&'*+.^_`|~-]+))(?=[ \t]*(?:,|$))
    |(?P<scheme>[A-Za-z0-9!#$%&'*+.^_`|~-]+)
        (?:[ ]+(?P<token>[A-Za-z0-9._~+/-]+=*)(?=[ \t]*(?:,|$)))?(?=[ \t,]|$))""",
    re.VERBOSE,
)
# RFC 6749 appendix A: what may stand in error and scope. Anything else could break out of our own header.
_SAFE = re.compile(r"[\x20\x21\x23-\x5b\x5d-\x7e]{1,1024}")


class Credentials:
    """One upstream's `auth`; a caller's own Authorization passes only with `forward` (Z-09, B15)."""

    def __init__(self, name: UpstreamName, auth: config.Auth) -> None:
        self._name = name
        self.forwards = auth.kind == "forward"
        self._own: dict[str, str] = {}
        if auth.bearer is not None:
            self._own["Authorization"] = f"Bearer {auth.bearer.get_secret_value()}"
        for header, secret in auth.headers.items():
            if header.lower() == "user-agent":
                continue  # ours; the settings refuse every other name that the gateway writes itself
            self._own[header] = secret.get_secret_value()

    def __repr__(self) -> str:
        return f"<Credentials {self._name}: {'forward' if self.forwards else sorted(self._own)}>"

    def headers(self, authorization: str | None) -> Mapping[str, str]:
        """Return the headers that authenticate one request; `authorization` is its caller's."""
        if not self.forwards:
            return self._own
        return {} if authorization is None else {"Authorization": authorization}

    def secrets(self, authorization: str | None) -> Iterable[str]:
        """Return every value that must not be seen in a log, whole and without its scheme."""
        for text in self.headers(authorization).values():
            yield from {part for part in (text, text.rpartition(" ")[2]) if part}

    def refused(self, status: int, challenges: Iterable[str]) -> Challenge | Failed:
        """Return what a 401 or 403 becomes: the caller's matter only when the credential was the caller's."""
        error, scope = read_challenge(challenges)
        if self.forwards:
            return Challenge(self._name, status, error, scope)
        detail = f"HTTP {status}" + (f", {error}" if error else "") + (f", scope {scope}" if scope else "")
        return Failed(self._name, Reason.CREDENTIALS, detail, status=status)


def read_challenge(values: Iterable[str]) -> tuple[str | None, str | None]:
    """Return `error` and `scope` of the first Bearer challenge in these WWW-Authenticate values."""
    for text in values:
        bearer = _bearer_params(text[:8192])
        if bearer is not None:
            return _safe(bearer.get("error")), _safe(bearer.get("scope"))
    return None, None


def _bearer_params(text: str) -> dict[str, str] | None:
    found: dict[str, str] | None = None
    scheme = ""
    at = 0
    while at < len(text) and (part := _PART.match(text, at)):
        at = part.end()
        if part["scheme"]:
            if found is not None:
                break
            scheme = part["scheme"].lower()
            if scheme == "bearer":
                found = {}
        elif found is not None:
            written = part["plain"] if part["quoted"] is None else re.sub(r"\\(.)", r"\1", part["quoted"])
            found.setdefault(part["key"].lower(), written)
    return found


def _safe(text: str | None) -> str | None:
    return text if text is not None and _SAFE.fullmatch(text) else None
