"""TLS on the endpoints' listener: a new connection gets what the files held when they were last read.

Certificates are replaced while connections are open, so each connection keeps the context it began with.
"""

import asyncio
import errno
import hashlib
import logging
import ssl
import time
from asyncio import BaseTransport
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

from cryptography import x509

from gateway import config
from gateway.support.metrics import OTHER, Metrics

log = logging.getLogger(__name__)

_SOON = 14 * 86_400.0
"""Seconds before its end that a certificate is worth a warning: those of a month are renewed by then."""
_OLDEST = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class _Handshakes:
    """Those under way: who does not go on with one holds a connection that nobody else counts."""

    def __init__(self, metrics: Metrics, has_room: Callable[[int], bool]) -> None:
        self._metrics = metrics
        self._has_room = has_room
        self._open: WeakSet[ssl.SSLObject] = WeakSet()

    def begin(self, one: ssl.SSLObject) -> None:
        """Count one in; raises SSLError, which event loops expect, when there are connections enough."""
        if not self._has_room(len(self._open)):
            self._metrics.rejected(OTHER, "connections")
            raise ssl.SSLError("there are connections enough")
        self._open.add(one)

    def end(self, one: ssl.SSLObject, error: ssl.SSLError | None = None) -> None:
        """Count one out, and say why it failed, of which nobody else would hear."""
        self._open.discard(one)
        if error is not None:
            self._metrics.rejected(OTHER, "certificate" if _is_about_client(error) else "tls")
            log.debug("Refused a handshake: %s", _said(error))

    def kind(self) -> type[ssl.SSLObject]:
        """Return what a context is to make of a connection."""
        begin, end = self.begin, self.end

        class Handshake(ssl.SSLObject):
            begun = False

            def do_handshake(self) -> None:
                if not self.begun:
                    self.begun = True
                    begin(self)
                try:
                    super().do_handshake()
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    raise
                except ssl.SSLError as error:
                    end(self, error)
                    raise
                end(self)

        return Handshake


class _Newest(ssl.SSLContext):
    """The context a listener is given: it wraps each connection with the one that was read last."""

    current: ssl.SSLContext

    def wrap_bio(self, *buffers: Any, **named: Any) -> ssl.SSLObject:
        """Return what a connection's handshake is made with; event loops call nothing else."""
        return self.current.wrap_bio(*buffers, **named)


class ListenerTls:
    """The certificate that clients are shown and the authorities of theirs, as the files say."""

    def __init__(
        self,
        settings: config.ServerTls,
        metrics: Metrics,
        *,
        has_room: Callable[[int], bool] = lambda handshakes: True,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Read the files; raises OSError, with the name of one that will not do.

        `has_room` says whether there may be one connection more beside so many handshakes.
        """
        self._settings = settings
        self._metrics = metrics
        self._now = now
        self._held = self._digests()
        self._taken = self._held
        self._ends = 0.0
        self._said: Literal["soon", "over"] | None = None
        self.context = _Newest(ssl.PROTOCOL_TLS_SERVER)
        self._kind = _Handshakes(metrics, has_room).kind()
        self._take()

    def __repr__(self) -> str:
        return f"<ListenerTls {self._settings.cert_file}, until {_day(self._ends)}>"

    async def watch(self) -> None:
        """Look at the files again and again, for ever."""
        while True:
            await asyncio.sleep(self._settings.reload)
            await asyncio.to_thread(self.look)

    def look(self) -> bool:
        """Take what the files hold, when that has changed; whether it has.

        What will not do is left alone, and said once: a pair that is half written, above all, is whole by
        the next look.
        """
        self._warn()
        try:
            held = self._digests()
            if held == self._held:
                return False
            self._held = held
            self._take()
            changed = {path for path, digest in held.items() if digest != self._taken[path]}
            self._taken = held
        except OSError as error:
            reason = error.strerror or str(error)
            log.error("tls: %s: %s; what was read before goes on", error.filename, reason)
            return False
        if changed == {self._settings.client_ca_file}:
            log.info("tls: %s was read again: it says whose certificates count", *changed)
        else:
            log.info("tls: the certificate was read again and is good until %s", _day(self._ends))
        return True

    def _take(self) -> None:
        context, ends = _context(self._settings), _ends(Path(self._settings.cert_file or ""))
        context.sslobject_class = self._kind
        self.context.current = context
        self._ends, self._said = ends, None
        self._metrics.certificate_ends(ends)
        self._warn()

    def _warn(self) -> None:
        left = self._ends - self._now()
        said: Literal["soon", "over"] | None = "over" if left <= 0 else "soon" if left < _SOON else None
        if said is not None and said != self._said:
            word = "has ended" if said == "over" else "ends"
            log.warning("tls: the certificate of the endpoints %s on %s", word, _day(self._ends))
        self._said = said

    def _digests(self) -> Mapping[str, bytes]:
        """Return what tells one state of the files from another: their times and sizes may be the same."""
        return {path: hashlib.sha256(Path(path).read_bytes()).digest() for path in _files(self._settings)}


def shown_certificate(transport: BaseTransport | None) -> bytes | None:
    """Return the certificate (DER) that a client showed in its handshake, which has verified it."""
    secured = None if transport is None else transport.get_extra_info("ssl_object")
    return None if secured is None else secured.getpeercert(binary_form=True)


def _files(settings: config.ServerTls) -> list[str]:
    named = (settings.cert_file, settings.key_file, settings.client_ca_file)
    return [path for path in named if path is not None]


def _context(settings: config.ServerTls) -> ssl.SSLContext:
    """Return what the files hold; raises OSError with the name of the one that will not do."""
    assert settings.cert_file is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _OLDEST[settings.min_version]
    # A client that renegotiates again and again costs much more than it pays.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # The password callback keeps openssl from asking on the terminal for an encrypted key's.
        context.load_cert_chain(settings.cert_file, settings.key_file, password=lambda: b"")
    except ssl.SSLError as error:
        raise _unusable(error, _at_fault(settings.cert_file, settings.key_file)) from None
    if settings.client_ca_file is not None:
        try:
            context.load_verify_locations(cafile=settings.client_ca_file)
        except ssl.SSLError as error:
            raise _unusable(error, settings.client_ca_file) from None
        if context.cert_store_stats()["crl"]:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        required = settings.client_certificates == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _at_fault(certificate: str, key: str | None) -> str:
    """Return which file of a pair will not do: openssl does not say it."""
    try:
        x509.load_pem_x509_certificates(Path(certificate).read_bytes())
    except ValueError:
        return certificate
    return key or certificate


def _unusable(error: ssl.SSLError, path: str) -> OSError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return OSError(errno.EINVAL, "the key does not belong to the certificate", path)
    return OSError(errno.EINVAL, f"not usable ({error.reason or 'no PEM in it'})", path)


def _ends(path: Path) -> float:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except ValueError:
        raise OSError(errno.EINVAL, "not a certificate that can be read", str(path)) from None


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def _is_about_client(error: ssl.SSLError) -> bool:
    """Whether it is the client's certificate that was missing or no good."""
    missing = error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
    return missing or isinstance(error, ssl.SSLCertVerificationError)


def _said(error: ssl.SSLError) -> str:
    """Return which check failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate: {error.verify_message}"
    return error.reason or "no TLS"
