"""Looks into the files that `tls` names, so that a mistake is found when the configuration is read (B49)."""

import ssl


def check_authorities(path: str) -> str:
    """Return the path of a PEM file of certificates; raises ValueError for any other file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError):
        raise ValueError(
            f"{path} holds no PEM certificate: expected a block that starts with -----BEGIN CERTIFICATE-----"
        ) from None
    return path


def check_pair(certificate: str, key: str | None, *, called: str = "client_key") -> None:
    """Raise ValueError when the key does not open, or is not the certificate's; None = in the same file.

    `called` is the setting that names the key's file.
    """
    asked: list[bool] = []

    def passphrase() -> str:
        asked.append(True)  # and openssl does not ask for one on the terminal
        return ""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_cert_chain(certificate, key, passphrase)
    except (OSError, ValueError) as error:
        raise ValueError(_said(error, certificate, key, called, locked=bool(asked))) from None


def _said(error: Exception, certificate: str, key: str | None, called: str, *, locked: bool) -> str:
    if locked:
        return f"the key in {key or certificate} needs a passphrase: expected a key without one"
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {key or certificate} does not belong to the certificate in {certificate}"
    if key is None:
        return f"{certificate} holds no PEM private key: name the key's file as `{called}`"
    return f"{key} holds no PEM private key: expected a block such as -----BEGIN PRIVATE KEY-----"
