"""Reads whom a client's certificate names: its connection's, or what a trusted proxy says of one. No I/O.

Whether it is any good was settled before: by the handshake, or by the proxy that writes the header.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from urllib.parse import unquote

from cryptography import x509
from multidict import MultiMapping

from gateway import config
from gateway.protocol.jsonrpc import INVALID_REQUEST, McpError
from gateway.protocol.modern import Rejection

_REMEMBERED = 512
_LONGEST = 255
_BYTES = re.compile(r":([A-Za-z0-9+/]*={0,2}):")
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_PAIR = re.compile(r'\s*([A-Za-z]+)=(?:"((?:[^"\\]|\\.)*)(?<!\\)"|([^";,]*))\s*')
"""A quote behind two backslashes ends a value for some and not for others: it is taken for neither."""
_BROKEN = (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
"""What cryptography makes of bytes that are no certificate, or an odd one."""


@dataclass(frozen=True, slots=True)
class Named:
    """Whom a certificate names, and when it ends, as far as that is known."""

    name: str
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A certificate that lets nobody in, though it was verified."""

    name: str | None = None
    """What it says, which `names` do not let in; None where it says nothing that could be a name."""


def certificate_name(
    settings: config.Certificates, headers: MultiMapping[str], *, trusted: bool, shown: bytes | None
) -> Named | Unknown | Rejection | None:
    """Return whom the caller's certificate names; None where there is no certificate.

    `shown` is the connection's certificate (DER), verified; `trusted` says that the connection is that of one
    of the trusted proxies. From anybody else the header counts for nothing, and a header that came twice
    is refused: one of the two may be the client's.
    """
    match settings.source:
        case "tls":
            if shown is None:
                return None
            try:
                named = _of_der(shown)
            except _BROKEN:  # openssl took what cannot be read: it names nobody
                return Unknown()
        case "header" if trusted:
            lines = headers.getall(settings.header, ())
            if len(lines) > 1:
                return _malformed(settings, "came more than once")
            if not lines or not lines[0].strip():  # some proxies send an empty one instead of none
                return None
            try:
                named = _READERS[settings.format](lines[0].strip())
            except _BROKEN:
                return _malformed(settings, f"is not what the format {settings.format} calls for")
        case _:
            return None
    if named is None:
        return Unknown()
    matches = any(fnmatchcase(named.name, pattern) for pattern in settings.names)
    return named if matches else Unknown(named.name)


def _malformed(settings: config.Certificates, what: str) -> Rejection:
    return Rejection(400, McpError(INVALID_REQUEST, f"The header {settings.header} {what}"))


@lru_cache(_REMEMBERED)
def _of_der(der: bytes) -> Named | None:
    """Return whom a certificate names: by its URI, its e-mail address, its DNS name, or else its CN."""
    certificate = x509.load_der_x509_certificate(der)
    expires = certificate.not_valid_after_utc.timestamp()
    return _named(next(_names(certificate), None), expires)


def _names(certificate: x509.Certificate) -> Iterator[str]:
    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        pass
    else:
        for kind in (x509.UniformResourceIdentifier, x509.RFC822Name, x509.DNSName):
            yield from others.get_values_for_type(kind)
    yield from _common_name(certificate.subject)


def _common_name(subject: x509.Name) -> Iterator[str]:
    """Yield the CN; of several each could be meant, so none is."""
    found = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    if len(found) == 1:
        yield str(found[0].value)


def _named(name: str | None, expires: float | None = None) -> Named | None:
    """Return a name that may go into logs and be told from others, or None."""
    if not name or len(name) > _LONGEST or not name.isprintable() or name != name.strip():
        return None
    return Named(name, expires)


@lru_cache(_REMEMBERED)
def _of_pem(text: str) -> Named | None:
    """Read URL-encoded PEM, its first block, or with the lines around it and the line breaks left out."""
    plain = unquote(text, errors="strict")
    block = _PEM.search(plain)
    body = plain.partition(",")[0] if block is None else block[1]
    return _of_der(base64.b64decode("".join(body.split()), validate=True))


@lru_cache(_REMEMBERED)
def _of_rfc9440(text: str) -> Named | None:
    """Read DER as a structured field has bytes: base64 between colons."""
    block = _BYTES.fullmatch(text)
    if block is None:
        raise ValueError
    return _of_der(base64.b64decode(block[1], validate=True))


@lru_cache(_REMEMBERED)
def _of_xfcc(text: str) -> Named | None:
    """Read what Envoy writes of the last hop, which is the one whose certificate our peer has verified.

    What stands before it was told to our peer by somebody else.
    """
    hop = _elements(text)[-1]
    if hop.get("cert"):
        return _of_pem(hop["cert"])
    name = hop.get("uri") or hop.get("dns")
    if not name and hop.get("subject"):
        name = next(_common_name(x509.Name.from_rfc4514_string(hop["subject"])), None)
    return _named(name)


def _elements(text: str) -> list[Mapping[str, str]]:
    """Return the key-value pairs of every hop; of a repeated key the first."""
    hops: list[dict[str, str]] = [{}]
    at = 0
    while True:
        pair = _PAIR.match(text, at)
        if pair is None:
            raise ValueError
        key, quoted, bare = pair.groups()
        # Envoy quotes a subject as it is, in which what is escaped is so by the rules of such names.
        hops[-1].setdefault(key.lower(), bare.strip() if quoted is None else quoted)
        at = pair.end()
        if at == len(text):
            return list(hops)
        if text[at] == ",":
            hops.append({})
        elif text[at] != ";":
            raise ValueError
        at += 1


_READERS: Mapping[str, Callable[[str], Named | None]] = {
    "xfcc": _of_xfcc,
    "pem": _of_pem,
    "rfc9440": _of_rfc9440,
    "subject": _named,
}
