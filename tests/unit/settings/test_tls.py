"""Files that `tls` names, as real OpenSSL reads them: every way they can be wrong is said at its line."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.config import Config, ConfigError, load

Key = ec.EllipticCurvePrivateKey


def certificate_of(key: Key) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    now = datetime.now(UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    dated = built.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return dated.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def pem(key: Key, passphrase: bytes = b"") -> bytes:
    sealed = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    own, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    (tmp_path / "cert.pem").write_bytes(certificate_of(own))
    (tmp_path / "own.key").write_bytes(pem(own))
    (tmp_path / "both.pem").write_bytes(certificate_of(own) + pem(own))
    (tmp_path / "other.key").write_bytes(pem(other))
    (tmp_path / "locked.key").write_bytes(pem(own, b"hunter2"))
    (tmp_path / "locked-both.pem").write_bytes(certificate_of(own) + pem(own, b"hunter2"))
    (tmp_path / "text.pem").write_text("not a certificate")
    (tmp_path / "empty.pem").touch()
    return tmp_path


@pytest.fixture
def read(folder: Path) -> Callable[[str], Config]:
    return lambda tls: load(
        f"upstreams:\n  a:\n    url: https://a\n    tls:\n      {tls}\n", file="g.yaml", folder=folder
    )


@pytest.mark.parametrize(
    "tls",
    ["ca_file: cert.pem", "ca_file: both.pem", "client_cert: both.pem",
     "{client_cert: cert.pem, client_key: own.key}", "{client_cert: both.pem, client_key: own.key}"],
)  # fmt: skip
def test_files_that_will_do_are_taken(read: Callable[[str], Config], tls: str) -> None:
    """With the key in the certificate's file or in one of its own."""
    assert read(tls).upstreams["a"].tls


@pytest.mark.parametrize(
    ("tls", "where", "message"),
    [
        ("ca_file: text.pem", "5: upstreams.a.tls.ca_file", "text.pem holds no PEM certificate"),
        ("ca_file: empty.pem", "5: upstreams.a.tls.ca_file", "empty.pem holds no PEM certificate"),
        ("ca_file: own.key", "5: upstreams.a.tls.ca_file", "own.key holds no PEM certificate"),
        ("client_cert: text.pem", "5: upstreams.a.tls.client_cert", "text.pem holds no PEM certificate"),
        ("client_cert: cert.pem", "4: upstreams.a.tls", "holds no PEM private key: name the key's file"),
        ("client_cert: locked-both.pem", "4: upstreams.a.tls", "needs a passphrase"),
        (
            "{client_cert: cert.pem, client_key: text.pem}",
            "5: upstreams.a.tls.client_key",
            "text.pem holds no PEM private key",
        ),
        (
            "{client_cert: cert.pem, client_key: other.key}",
            "5: upstreams.a.tls.client_key",
            "other.key does not belong to the certificate in",
        ),
        (
            "{client_cert: cert.pem, client_key: locked.key}",
            "5: upstreams.a.tls.client_key",
            "locked.key needs a passphrase",
        ),
    ],
)
def test_a_file_that_will_not_do_is_said_at_its_line(
    read: Callable[[str], Config], tls: str, where: str, message: str
) -> None:
    """`check` finds it, not the first call (B49); the content of the file is not repeated."""
    with pytest.raises(ConfigError) as caught:
        read(tls)
    (problem,) = map(str, caught.value.problems)
    assert problem.startswith(f"g.yaml:{where}: ")
    assert message in problem
    assert "not a certificate" not in problem


@pytest.mark.parametrize(
    ("tls", "where", "message"),
    [
        ("cert_file: text.pem", "g.yaml:3: tls.cert_file", "holds no PEM certificate"),
        ("cert_file: cert.pem", "g.yaml:2: tls", "name the key's file as `key_file`"),
        ("{cert_file: cert.pem, key_file: other.key}", "g.yaml:2: tls", "does not belong to the certificate"),
        ("{cert_file: cert.pem, key_file: locked.key}", "g.yaml:2: tls", "needs a passphrase"),
        ("key_file: own.key", "g.yaml:2: tls", "cert_file is missing"),
        ("client_ca_file: cert.pem", "g.yaml:2: tls", "cert_file is missing"),
        ("{cert_file: both.pem, client_ca_file: text.pem}", "g.yaml:3: tls.client_ca_file", "no PEM"),
    ],
)
def test_the_listeners_own_files_are_looked_into_too(
    folder: Path, tls: str, where: str, message: str
) -> None:
    """A gateway that would start without TLS, or not at all, is found by `check`."""
    with pytest.raises(ConfigError) as caught:
        load(f"upstreams: {{a: http://a}}\ntls:\n  {tls}\n", file="g.yaml", folder=folder)
    (problem,) = map(str, caught.value.problems)
    assert problem.startswith(where)
    assert message in problem


def test_certificates_that_nobody_asks_about_are_warned_of(folder: Path) -> None:
    """Optional ones are good for nothing else; asked for, or demanded, they are."""
    asks = "\nauthentication: {certificates: {source: tls}}"
    told: list[str] = []
    for more, behind in (("", ""), ("", asks), (", client_certificates: required", "")):
        tls = f"tls: {{cert_file: both.pem, client_ca_file: cert.pem{more}}}"
        load(f"upstreams: {{a: http://a}}\n{tls}{behind}\n", file="g.yaml", folder=folder, warn=told.append)
    assert len(told) == 1
    assert told[0].startswith("tls.client_ca_file has no effect")
