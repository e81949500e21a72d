"""Seals what others carry or keep for us, so that nobody reads, changes, swaps or outlives it; names callers.

Sealed bytes are: version, key id, nonce, and AES-256-GCM over the data. What they are for and whom they are
bound to are authenticated but not inside. A token is base64url of that, with an expiry before the data.
"""

import hmac
import os
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.protocol.call import Partition

_VERSION = b"\x01"
_KEY_ID = 4
_NONCE = 24
_EXPIRY = 8
_NEVER = b"\xff" * _EXPIRY
_TAG = 16
_HEAD = len(_VERSION) + _KEY_ID + _NONCE
LARGEST = 2**20
"""The most bytes of data in one token; a longer token is refused unread."""

_LONGEST_TOKEN = -(-(_HEAD + _EXPIRY + LARGEST + _TAG) * 4 // 3)


class SealBroken(ValueError):
    """A token is not ours, not for this use, not for this caller, or no longer valid; which, is not said."""

    def __init__(self) -> None:
        super().__init__("the token is invalid or expired")


class SealTooLarge(ValueError):
    """There is more data than one token holds."""


class Seal:
    """A ring of keys: the first seals, all of them open. Without any, a random key lives as long as we do.

    Names come from the last key. A new key is put before the others, so names stay as they are, and with them
    what is cached under them, until the last key is taken out.
    """

    def __init__(self, keys: Sequence[str] = (), *, now: Callable[[], float] = time.time) -> None:
        self._secrets = [key.encode() for key in keys] or [os.urandom(32).hex().encode()]
        ring = [_derive(secret, b"seal") for secret in self._secrets]
        self._first = ring[0]
        self._ring = {_key_id(key): key for key in ring}
        self._partition_key = _derive(self._secrets[-1], b"partition")
        self._name_key = _derive(self._secrets[-1], b"name")
        self._now = now

    def __repr__(self) -> str:
        return f"<Seal {len(self._ring)} keys>"

    def seal(self, purpose: str, data: bytes, *, bound_to: bytes = b"", ttl: float | None) -> str:
        """Return a URL-safe token that opens to `data` for `ttl` seconds, for this purpose and holder only.

        Without a ttl it opens for as long as its key is on the ring.

        Raises SealTooLarge when there is more than LARGEST.
        """
        if len(data) > LARGEST:
            raise SealTooLarge(f"{len(data)} bytes do not fit into a token")
        expiry = _NEVER if ttl is None else max(0, int((self._now() + ttl) * 1000)).to_bytes(_EXPIRY, "big")
        sealed = self.encrypt(purpose, expiry + data, bound_to=bound_to)
        return urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def open(self, purpose: str, token: str, *, bound_to: bytes = b"") -> bytes:
        """Return what was sealed; raises SealBroken for every other token."""
        opened = self.decrypt(purpose, _decode(token), bound_to=bound_to)
        if len(opened) < _EXPIRY or int.from_bytes(opened[:_EXPIRY], "big") <= self._now() * 1000:
            raise SealBroken
        return opened[_EXPIRY:]

    def encrypt(self, purpose: str, data: bytes, *, bound_to: bytes = b"") -> bytes:
        """Return bytes that `decrypt` turns back into `data`, for this purpose and holder, for ever."""
        nonce = os.urandom(_NONCE)
        head = _VERSION + _key_id(self._first) + nonce
        associated = _associated(head, purpose, bound_to)
        return head + _cipher(self._first, nonce).encrypt(nonce[12:], data, associated)

    def decrypt(self, purpose: str, sealed: bytes, *, bound_to: bytes = b"") -> bytes:
        """Return what was encrypted; raises SealBroken for every other bytes."""
        head, nonce = sealed[:_HEAD], sealed[_HEAD - _NONCE : _HEAD]
        key = self._ring.get(head[len(_VERSION) : -_NONCE])
        if not sealed.startswith(_VERSION) or len(sealed) < _HEAD + _TAG or key is None:
            raise SealBroken
        associated = _associated(head, purpose, bound_to)
        try:
            return _cipher(key, nonce).decrypt(nonce[12:], sealed[_HEAD:], associated)
        except InvalidTag:
            raise SealBroken from None

    def name(self, purpose: str, data: bytes) -> bytes:
        """Return 16 bytes that stand for `data` wherever they are seen, and tell nothing about it."""
        return hmac.digest(self._name_key, _associated(b"", purpose, data), "sha256")[:16]

    def apart(self) -> "tuple[Seal, ...]":
        """Return a seal of each single key; with a newer or an older replica one of them is in common.

        The one of the names is the last; of a key that is there twice there is one.
        """
        different = reversed(dict.fromkeys(reversed(self._secrets)))
        return tuple(Seal([secret.decode()], now=self._now) for secret in different)

    def partition(self, authorization: str) -> Partition:
        """Return the name of the context a credential stands for (C-18): always 64 hex digits.

        It is the same wherever the last key is the same, and tells nothing about the credential (C-25).
        """
        text = authorization.encode("utf-8", "surrogatepass")
        return Partition(hmac.digest(self._partition_key, text, "sha256").hex())


def _derive(secret: bytes, use: bytes) -> bytes:
    return HKDF(SHA256(), length=32, salt=None, info=b"mcp-gateway " + use).derive(secret)


def _key_id(key: bytes) -> bytes:
    return hmac.digest(key, b"id", "sha256")[:_KEY_ID]


def _cipher(key: bytes, nonce: bytes) -> AESGCM:
    """Return the cipher of one token: half of its nonce goes into a key of its own.

    GCM breaks when a nonce repeats under a key; 96 random bits alone are too few for years of cursors.
    """
    return AESGCM(hmac.digest(key, b"token" + nonce[:12], "sha256"))


def _associated(head: bytes, purpose: str, bound_to: bytes) -> bytes:
    name = purpose.encode()
    return head + len(name).to_bytes(4, "big") + name + bound_to


def _decode(token: str) -> bytes:
    """Return the bytes a token spells, in the one way we spell them; raises SealBroken."""
    if len(token) > _LONGEST_TOKEN:
        raise SealBroken
    try:
        spelled = token.encode("ascii")
        raw = urlsafe_b64decode(spelled + b"=" * (-len(spelled) % 4))
    except (UnicodeEncodeError, NotBase64):
        raise SealBroken from None
    # The decoder skips foreign characters and stray bits, so a token has to come out as it went in.
    if urlsafe_b64encode(raw).rstrip(b"=") != spelled:
        raise SealBroken
    return raw
