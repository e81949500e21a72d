"""Reads a private key that signs what the gateway asks an authorization server."""

from typing import Any

_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_OF_RSA = ("RS256", "PS256", "RS384", "PS384", "RS512", "PS512")


def read_signing_key(text: str) -> tuple[Any, tuple[str, ...]]:
    """Return a private key and the algorithms it can sign with, preferred first; raises ValueError."""
    # Here, for it takes a while to load, which quick commands without such a key can do without.
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(text.encode(), None)
    except TypeError:
        raise ValueError("it needs a passphrase: expected a key without one") from None
    except ValueError:
        raise ValueError("it is no private key in PEM") from None
    match key:
        case rsa.RSAPrivateKey():
            return key, _OF_RSA
        case ec.EllipticCurvePrivateKey() if key.curve.name in _CURVES:
            return key, (_CURVES[key.curve.name],)
        case ed25519.Ed25519PrivateKey() | ed448.Ed448PrivateKey():
            return key, ("EdDSA",)
        case _:
            raise ValueError("it is of a kind that signs nothing here: expected RSA, EC or Ed25519")
