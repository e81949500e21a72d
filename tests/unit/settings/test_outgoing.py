"""What a configuration may say of how tokens are obtained."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from pydantic import ValidationError

from gateway.config import Auth, ClientCredentials, TokenExchange, load, read_signing_key


def pem(key: object, passphrase: bytes | None = None) -> str:
    locked = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    written = key.private_bytes(  # type: ignore[attr-defined]  # all kinds of keys have it
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked
    )
    return str(written.decode())


@pytest.mark.parametrize(
    ("key", "algorithms"),
    [
        (rsa.generate_private_key(65537, 2048), ("RS256", "PS256")),
        (ec.generate_private_key(ec.SECP256R1()), ("ES256",)),
        (ec.generate_private_key(ec.SECP384R1()), ("ES384",)),
        (ed25519.Ed25519PrivateKey.generate(), ("EdDSA",)),
    ],
)
def test_a_key_signs_in_its_own_ways(key: object, algorithms: tuple[str, ...]) -> None:
    """A client_key is read as the configuration is; its lines stay as they are."""
    client = ClientCredentials(client_id="gw", client_key=pem(key))  # type: ignore[arg-type]  # text is read
    assert client.client_key is not None
    assert read_signing_key(client.client_key.get_secret_value())[1][: len(algorithms)] == algorithms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not a key", "no private key in PEM"),
        (pem(ec.generate_private_key(ec.SECP256R1()), b"pass"), "passphrase"),
        (pem(ec.generate_private_key(ec.SECP256K1())), "signs nothing here"),
        (pem(x25519.X25519PrivateKey.generate()), "signs nothing here"),
    ],
)
def test_a_key_that_will_not_do_is_found_at_once(text: str, message: str) -> None:
    """And is not in the message."""
    with pytest.raises(ValidationError, match=message) as caught:
        ClientCredentials(client_id="gw", client_key=text)  # type: ignore[arg-type]  # text is read
    assert text not in str(caught.value)


def test_callers_tokens_go_where_the_operator_says() -> None:
    """Never where an upstream would like them to (Z-10)."""
    with pytest.raises(ValidationError, match="issuer or token_url"):
        TokenExchange(client_id="gw")
    assert TokenExchange(client_id="gw", issuer="https://as.example").issuer == "https://as.example"
    assert TokenExchange(client_id="gw", token_url="https://as.example/token").issuer is None


def test_nothing_may_be_said_of_the_resource() -> None:
    """Some authorization servers refuse what they do not know."""
    client = ClientCredentials(client_id="gw", client_secret="s", resource="")  # type: ignore[arg-type]  # text is read
    assert client.resource == ""


@pytest.mark.parametrize("known", ["issuer: 'https://as.example'", "token_url: 'https://as.example/t'", None])
def test_a_secret_that_an_upstream_may_direct_is_worth_a_warning(known: str | None) -> None:
    """It is shown to whom the upstream names."""
    warnings: list[str] = []
    client = f"client_id: gw, client_secret: '{'s' * 20}'{'' if known is None else f', {known}'}"
    auth = f"{{client_credentials: {{{client}}}}}"
    load(f"upstreams: {{alpha: {{url: 'https://mcp.example/mcp', auth: {auth}}}}}", warn=warnings.append)
    assert any("shown to the authorization server that the upstream names" in one for one in warnings) == (
        known is None
    )


def test_who_is_seen_by_the_upstream() -> None:
    """Each caller, or the gateway alone."""
    exchange = Auth.model_validate({"token_exchange": {"client_id": "gw", "issuer": "https://as.example"}})
    own = Auth.model_validate({"client_credentials": {"client_id": "gw", "client_secret": "s" * 20}})
    assert (exchange.personal, own.personal) == (True, False)
    assert exchange.obtained is exchange.token_exchange
    assert own.obtained is own.client_credentials
