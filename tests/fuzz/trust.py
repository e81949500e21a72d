"""What callers show to prove who they are, and what servers say of tokens; each function is one target."""

import datetime
import ipaddress
from contextlib import suppress

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from multidict import CIMultiDict

from gateway import config
from gateway.core.access import Policy, hints_of, somebody
from gateway.core.readings import readings_of
from gateway.front import forwarded
from gateway.front.certificates import Named, certificate_name
from gateway.front.challenges import Door, bearer
from gateway.front.metadata import canonical
from gateway.protocol.call import UpstreamName
from gateway.protocol.modern import Rejection
from gateway.upstream import discovery
from gateway.upstream.addresses import permitted
from gateway.upstream.challenges import read_challenge
from gateway.upstream.granted import Denied, ends_of, read_granted, token_of

RESOURCE = "https://mcp.example/mcp"
ISSUER = "https://login.example"
NOW = 1_800_000_000.0


_SIGNER = Ed25519PrivateKey.from_private_bytes(b"\1" * 32)
_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "agent")])
CERTIFICATE = (
    x509.CertificateBuilder(_NAME, _NAME, _SIGNER.public_key(), 1)
    .not_valid_before(datetime.datetime(2026, 1, 1))
    .not_valid_after(datetime.datetime(2036, 1, 1))
    .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier("spiffe://a/b")]), False)
    .sign(_SIGNER, None)
    .public_bytes(Encoding.DER)
)


def client_certificate(data: bytes) -> None:
    """A header of a proxy names somebody who can stand in a log, or nobody, or is refused."""
    text = data.decode("latin-1")
    for settings in _READINGS:
        found = certificate_name(settings, CIMultiDict({settings.header: text}), trusted=True, shown=None)
        if isinstance(found, Named):
            assert found.name.isprintable()
            assert 0 < len(found.name) <= 255
        elif isinstance(found, Rejection):
            assert found.status == 400
        assert (
            certificate_name(settings, CIMultiDict({settings.header: text}), trusted=False, shown=data)
            is None
        )
    certificate_name(_OF_THE_CONNECTION, CIMultiDict(), trusted=False, shown=data)


def forwarding(data: bytes) -> None:
    """However long the lists of hops are, the client's address is one, and a prefix leads nowhere else."""
    lines: dict[str, list[str]] = {name.lower(): [] for name in forwarded.NAMES}
    for line in data.decode("latin-1").split("\n")[:16]:
        name, _, value = line.partition(":")
        lines.get(name.lower(), []).append(value.strip(" \t"))
    seen = forwarded.read(forwarded.Lines(*lines.values()), "10.0.0.1", lambda one: one.startswith("10."))
    ipaddress.ip_address(seen.address)
    assert seen.scheme in (None, "http", "https")
    if seen.prefix is not None:
        assert seen.prefix.startswith("/")
        assert ".." not in seen.prefix


def challenge(data: bytes) -> None:
    """What an upstream writes as a challenge is read, and what is kept of it breaks out of none of ours."""
    error, scope, _ = read_challenge([line.decode("latin-1") for line in data.split(b"\n")[:8]])
    ours = bearer(Door("gateway", RESOURCE), error=error, scopes=scope)
    assert ours.isascii()
    assert ours.isprintable()
    assert ours.count('"') % 2 == 0
    assert (
        ours.count("resource_metadata=")
        - (scope or "").count("resource_metadata=")
        - (error or "").count("resource_metadata=")
        == 1
    )


def token_answer(data: bytes) -> None:
    """An authorization server's answer is a token that can be sent, or none."""
    with suppress(Denied):
        token, lifetime = read_granted(200, data, exchanged=True, issuer=ISSUER)
        assert f"Bearer {token}".isascii()
        assert f"Bearer {token}".isprintable()
        made = token_of(token, lifetime, now=NOW, early=30.0)
        assert made.renew <= made.end
    with suppress(Denied):
        read_granted(400, data, exchanged=False, issuer=None)
    ends_of(data.decode("latin-1"))


def discovered_metadata(data: bytes) -> None:
    """What an upstream or an authorization server publishes is fit, or Unfit."""
    with suppress(discovery.Unfit):
        found = discovery.read_resource(data, RESOURCE)
        assert discovery.canonical(RESOURCE) == discovery.canonical(found.resource)
        assert all(map(discovery.is_scope, found.scopes))
    with suppress(discovery.Unfit):
        assert discovery.read_issuer(data, ISSUER).issuer == ISSUER
    with suppress(ValueError):
        canonical(data.decode(errors="replace"))


def address(data: bytes) -> None:
    """No address is gone to on an upstream's word that is not one of the open internet."""
    text = data.decode("latin-1")
    if permitted(text, loopback=False):
        found = ipaddress.ip_address(text)
        mapped = getattr(found, "ipv4_mapped", None) or found
        assert mapped.is_global or mapped in ipaddress.ip_network("64:ff9b::/96")
        assert not mapped.is_multicast


def access_rule(data: bytes) -> None:
    """Whatever a thing is called, some rule decides; what is denied under one spelling is under others."""
    name, _, annotations = data.decode(errors="surrogateescape").partition("\0")
    hints_of(annotations.encode(errors="surrogateescape"))
    readings = readings_of(name)
    private = any(reading.startswith("file:///private/") for reading in readings.meant)
    for caller in ("corp:alice", "key:ci"):
        sight = _POLICY.sight(_CALLERS[caller])
        for kind in ("tool", "prompt", "resource", "method"):
            verdict = sight.judge(_ALPHA, kind, name, annotations.encode(errors="surrogateescape"))
            assert not (verdict.hidden and verdict.allowed)
        if private or readings.unclear:
            assert not sight.judge(_ALPHA, "resource", name).allowed


_READINGS = tuple(
    config.Certificates(source="header", format=one) for one in ("xfcc", "pem", "rfc9440", "subject")
)
_OF_THE_CONNECTION = config.Certificates(source="tls")
_ALPHA = UpstreamName("alpha")
_SETTINGS = config.Config(
    upstreams={"alpha": "http://127.0.0.1:1/mcp"},
    authentication={"keys": {"ci": {"hash": "sha256:" + "0" * 64}}},
    access={
        "rules": [
            {"resources": ["file:///private/*"], "deny": True},
            {"tools": ["delete_*"], "scopes": ["admin"], "refusal": "list"},
            {"tools": ["[a-m]*"], "callers": ["corp:*"]},
            {"prompts": ["*x*"], "resources": ["*"], "methods": ["x/*"]},
        ]
    },
)
_POLICY = Policy(_SETTINGS, "/mcp")
_CALLERS = {name: somebody(_SETTINGS, name) for name in ("corp:alice", "key:ci")}
