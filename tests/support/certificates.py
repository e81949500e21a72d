"""An authority of a test's own, and the certificates it issues.

authority = Authority(folder)
server = authority.issue("127.0.0.1")
context.load_cert_chain(server.certificate, server.key)
alice = authority.issue("alice", others=[uri("spiffe://corp/alice")])
"""

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path

    @property
    def der(self) -> bytes:
        """The certificate as it travels."""
        return ssl.PEM_cert_to_DER_cert(self.certificate.read_text())


class Authority:
    """Signs certificates; `file` is what those who trust it are given."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._signed(self._key, name, authority=True))

    def issue(
        self,
        name: str,
        *,
        others: Sequence[x509.GeneralName] | None = None,
        days: float = 1,
        file: str | None = None,
        subject: x509.Name | None = None,
    ) -> Pair:
        """Return a certificate for a host name or an address, or with `others` in its place beside the CN.

        It ends in so many `days`, which may be over already; `file` is what its files are called.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        stem = f"{self._name}-{file or name}"
        pair = Pair(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        pair.certificate.write_bytes(
            self._signed(key, name, others=others, ends=timedelta(days=days), subject=subject)
        )
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def revoke(self, *pairs: Pair) -> bytes:
        """Return the list of the certificates that count no more, as PEM."""
        now = datetime.now(UTC)
        built = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(_named(self._name))
            .last_update(now - timedelta(hours=1))
            .next_update(now + timedelta(days=1))
        )
        for pair in pairs:
            serial = x509.load_der_x509_certificate(pair.der).serial_number
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            built = built.add_revoked_certificate(one)
        return built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _signed(
        self,
        key: ec.EllipticCurvePrivateKey,
        name: str,
        *,
        authority: bool = False,
        others: Sequence[x509.GeneralName] | None = None,
        ends: timedelta = timedelta(days=1),
        subject: x509.Name | None = None,
    ) -> bytes:
        now = datetime.now(UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(_named(name) if subject is None else subject)
            .issuer_name(_named(self._name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + min(ends, timedelta()) - timedelta(hours=1))
            .not_valid_after(now + ends)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        named = [_place(name)] if others is None else others
        if named:
            built = built.add_extension(x509.SubjectAlternativeName(named), critical=False)
        return built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def uri(text: str) -> x509.GeneralName:
    """Return a name that is a URI."""
    return x509.UniformResourceIdentifier(text)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _place(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
