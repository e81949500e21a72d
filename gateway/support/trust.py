"""Whom connections to others trust, what they are shown of the gateway, and which check failed (B49)."""

import os
import ssl
from contextlib import suppress

from gateway import config

_SYSTEM = ssl.get_default_verify_paths()
_UNKNOWN_AUTHORITY = (18, 19, 20, 21)
"""What openssl calls a certificate that leads to nobody who is trusted."""
_WORDS = {
    "WRONG_VERSION_NUMBER": "it speaks no TLS there",
    "ALERT_CERTIFICATE_REQUIRED": "it demands a client certificate",
    "ALERT_HANDSHAKE_FAILURE": "it broke the handshake off; servers that demand a client certificate do so",
    "ALERT_BAD_CERTIFICATE": "it refuses the client certificate",
    "ALERT_CERTIFICATE_UNKNOWN": "it refuses the client certificate",
    "ALERT_CERTIFICATE_EXPIRED": "it refuses the client certificate, which has expired",
    "ALERT_CERTIFICATE_REVOKED": "it refuses the client certificate, which is revoked",
    "ALERT_UNKNOWN_CA": "it does not trust the authority of the client certificate",
    "ALERT_PROTOCOL_VERSION": "it speaks no version of TLS that is new enough",
    "UNSUPPORTED_PROTOCOL": "it speaks no version of TLS that is new enough",
    "UNRECOGNIZED_NAME": "it does not know the name that it is asked for",
}
"""How the reasons of openssl end, whose beginnings differ by its version."""


def trust(place: str, files: config.TlsFiles) -> ssl.SSLContext:
    """Return what verifies a peer; raises ValueError, naming the setting, for a file that will not do.

    The system's trust always counts. SSL_CERT_FILE and SSL_CERT_DIR add to it, where openssl would take them
    in its place, and so does `ca_file`, a key of `place`.
    """
    context = ssl.create_default_context()
    named = os.environ.get("SSL_CERT_FILE")
    if named:  # openssl passes over one that is not there, or holds nothing
        _add(context, "SSL_CERT_FILE", named)
    if named or os.environ.get("SSL_CERT_DIR"):
        with suppress(OSError):  # not every system has it
            context.load_verify_locations(cafile=_SYSTEM.openssl_cafile)
        context.load_verify_locations(capath=_SYSTEM.openssl_capath)
    if files.ca_file is not None:
        _add(context, f"{place}.ca_file", files.ca_file)
    if files.client_cert is not None:
        try:
            # The password callback keeps openssl from asking on the terminal for an encrypted key's.
            context.load_cert_chain(files.client_cert, files.client_key, password=lambda: b"")
        except OSError as error:
            raise ValueError(f"{place}.client_cert: {_said(error)}") from None
    return context


def failed_check(error: BaseException | None) -> str | None:
    """Return which check of TLS a peer or the gateway did not pass, None for whatever else went wrong."""
    found = None
    while error is not None:  # aiohttp's own errors are ssl.SSLError as well, and hold nothing of one
        found = error if isinstance(error, ssl.SSLError) else found
        error = error.__cause__
    if isinstance(found, ssl.SSLCertVerificationError):
        unknown = found.verify_code in _UNKNOWN_AUTHORITY
        advice = "; `ca_file` says whom to trust besides the system's authorities" if unknown else ""
        return f"certificate verify failed: {found.verify_message.rstrip('.')}{advice}"
    reason = getattr(found, "reason", None) or ""
    return next((words for end, words in _WORDS.items() if reason.endswith(end)), None)


def _add(context: ssl.SSLContext, place: str, path: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        raise ValueError(f"{place}: {_said(error)}") from None


def _said(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not usable ({error.reason or 'no PEM certificate in it'})"
    return error.strerror or str(error)
