"""Secrets that are known again wherever they turn up, in whatever spelling (B42).

secrets = Canaries()
...use secrets["token"], secrets["password"] somewhere...
assert secrets.seen_in(log.getvalue()) == []
"""

import base64
import hashlib
from collections.abc import Iterator
from urllib.parse import quote

PREFIX = 12
"""So many of its first characters already tell a secret."""


def traces(secret: str) -> Iterator[str]:
    """Yield what shows that a secret is in a text: itself, its beginning, in hex, in base64, in a URL."""
    yield secret[:PREFIX]
    text = secret.encode()
    yield text[:PREFIX].hex()
    yield quote(secret, safe="")
    for before in range(3):
        coded = base64.b64encode(b"x" * before + text[:PREFIX]).decode().rstrip("=")
        sure = coded[(before * 8 + 5) // 6 : (before + PREFIX) * 8 // 6]
        yield sure
        yield sure.replace("+", "-").replace("/", "_")


class Canaries:
    """Secrets by name, made as they are asked for; the same in every run."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        return self._known.setdefault(name, hashlib.sha256(name.encode()).hexdigest()[:40])

    def add(self, name: str, secret: str) -> str:
        """Look out for a secret that somebody else made."""
        return self._known.setdefault(name, secret)

    def seen_in(self, text: str | bytes) -> list[str]:
        """Return the names of the secrets that a text shows."""
        plain = text.decode("latin-1") if isinstance(text, bytes) else text
        return [
            name for name, secret in self._known.items() if any(trace in plain for trace in traces(secret))
        ]
