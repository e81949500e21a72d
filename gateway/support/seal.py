"""Seals what clients carry for us, so that nobody reads, changes, swaps or outlives it; and names callers.

A token is base64url of: version, key id, nonce, and AES-256-GCM over expiry and data. What the token is for
and whom it is bound to are authenticated but not inside.
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
    """A ring of keys: the first seals, all of them open. Without any, a random key lives as long as we do."""

    def __init__(self, keys: Sequence[str] = (), *, now: Callable[[], float] = time.time) -> None:
        secrets = [key.encode() for key in keys] or [os.urandom(32)]
        ring = [_derive(secret, b"seal") for secret in secrets]
        self._first = ring[0]
        self._ring = {_key_id(key): key for key in ring}
        self._partition_key = _derive(secrets[0], b"partition")
        self._now = now

    def __repr__(self) -> str:
        return f"<Seal {len(self._ring)} keys>"

    def seal(self, purpose: str, data: bytes, *, bound_to: bytes = b"", ttl: float) -> str:
        """Return a URL-safe token that opens to `data` for `ttl` seconds, for this purpose and holder only.

        Raises SealTooLarge when there is more than LARGEST.
        """
        if len(data) > LARGEST:
            raise SealTooLarge(f"{len(data)} bytes do not fit into a token")
        nonce = os.urandom(_NONCE)
        head = _VERSION + _key_id(self._first) + nonce
        expiry = max(0, int((self._now() + ttl) * 1000)).to_bytes(_EXPIRY, "big")
        sealed = _cipher(self._first, nonce).encrypt(
            nonce[12:], expiry + data, _associated(head, purpose, bound_to)
        )
        return urlsafe_b64encode(head + sealed).rstrip(b"=").decode()

    def open(self, purpose: str, token: str, *, bound_to: bytes = b"") -> bytes:
        """Return what was sealed; raises SealBroken for every other token."""
        raw = _decode(token)
        head, nonce = raw[:_HEAD], raw[_HEAD - _NONCE : _HEAD]
        key = self._ring.get(head[len(_VERSION) : -_NONCE])
        if not raw.startswith(_VERSION) or len(raw) < _HEAD + _EXPIRY + _TAG or key is None:
            raise SealBroken
        try:
            opened = _cipher(key, nonce).decrypt(
                nonce[12:], raw[_HEAD:], _associated(head, purpose, bound_to)
            )
        except InvalidTag:
            raise SealBroken from None
        if int.from_bytes(opened[:_EXPIRY], "big") <= self._now() * 1000:
            raise SealBroken
        return opened[_EXPIRY:]

    def partition(self, authorization: str) -> Partition:
        """Return the name of the context a credential stands for (C-18): always 64 hex digits.

        It is the same wherever the first key is the same, and tells nothing about the credential (C-25).
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
