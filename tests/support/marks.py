"""Words that belong to one tenant, and a search for them in all the forms in which bytes travel.

    ann = Tenant("ann", seed=1)
    found = Search([ann]).first(b"...")       # clear text in any case, hex, base64 at each of three offsets
    assert found is None, found

A word says what it stands in: a token, a subject's id, a name or URI, or data. Whatever a tenant owns holds
one, so whoever is sent it was sent something of that tenant.
"""

import base64
from collections.abc import Iterable
from hashlib import sha256
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["token", "subject", "name", "data"]
KINDS: tuple[Kind, ...] = ("token", "subject", "name", "data")


class Tenant:
    """Somebody with words of his own; the same seed makes the same words."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self._words = {kind: _word(name, kind, seed) for kind in KINDS}

    def __repr__(self) -> str:
        return self.name

    def word(self, kind: Kind) -> str:
        """Return the word that stands in everything of this kind."""
        return self._words[kind]


class Found(NamedTuple):
    """Whose word was found, of what kind, and the bytes around it."""

    tenant: Tenant
    kind: Kind
    around: bytes


class Search:
    """Looks for the words of some tenants, of some kinds."""

    def __init__(self, tenants: Iterable[Tenant], kinds: Iterable[Kind] = KINDS) -> None:
        kinds = tuple(kinds)
        self._words = [
            (form.lower(), tenant, kind)
            for tenant in tenants
            for kind in kinds
            for form in forms(tenant.word(kind))
        ]

    def first(self, data: bytes | bytearray) -> Found | None:
        """Return a word that is in there, in whatever case."""
        low = data.lower()
        for form, tenant, kind in self._words:
            if (start := low.find(form)) != -1:
                return Found(tenant, kind, bytes(data[max(0, start - 200) : start + len(form) + 100]))
        return None


def forms(word: str) -> list[bytes]:
    """Return what the word looks like in clear, in hex, and inside of base64 wherever it begins there."""
    clear = word.encode()
    return [clear, clear.hex().encode(), *(_inside(clear, offset) for offset in range(3))]


def _inside(clear: bytes, offset: int) -> bytes:
    """Return the characters of a base64 that depend on these bytes alone."""
    whole = base64.b64encode(bytes(offset) + clear)
    return whole[-(-offset * 8 // 6) : (offset + len(clear)) * 8 // 6]


def _word(name: str, kind: Kind, seed: int) -> str:
    """Return letters and digits, as many for everybody: they stay as they are in names, URIs and headers."""
    return f"{name[:3]}{kind[0]}{sha256(f'{name} {kind} {seed}'.encode()).hexdigest()[:11]}"
