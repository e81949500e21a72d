"""Whom a certificate names, of the connection's own or of what a trusted proxy says (Z-01)."""

import base64
from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway import config
from gateway.front.certificates import Named, Unknown, certificate_name
from gateway.protocol.modern import Rejection
from tests.support.certificates import Authority, Pair, uri

EMAIL = x509.RFC822Name("alice@corp.example")
DNS = x509.DNSName("a.corp.example")
URI = uri("spiffe://corp/alice")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def alice(authority: Authority) -> Pair:
    return authority.issue("alice", others=[URI])


def told(*lines: str, trusted: bool = True, **settings: Any) -> Named | Unknown | Rejection | None:
    """Read these lines of the header."""
    chosen = config.Certificates(source="header", header="X-Cert", **settings)
    headers = CIMultiDict([("x-cert", line) for line in lines])
    return certificate_name(chosen, headers, trusted=trusted, shown=None)


def shown(pair: Pair | None, **settings: Any) -> Named | Unknown | Rejection | None:
    """Read the connection's certificate."""
    chosen = config.Certificates(source="tls", **settings)
    der = None if pair is None else pair.der
    return certificate_name(chosen, CIMultiDict(), trusted=True, shown=der)


def name(found: Named | Unknown | Rejection | None) -> str | None:
    assert not isinstance(found, Rejection), found
    return found.name if isinstance(found, Named) else None


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([DNS, EMAIL, URI], "spiffe://corp/alice"),
        ([DNS, EMAIL], "alice@corp.example"),
        ([DNS, x509.DNSName("b.corp.example")], "a.corp.example"),
        ([], "alice"),
        ([x509.IPAddress(IPv4Address("10.0.0.1"))], "alice"),
    ],
)
def test_a_certificate_names_uri_email_dns_or_cn(
    authority: Authority, others: Sequence[x509.GeneralName], expected: str
) -> None:
    """In this order, and the first of a kind."""
    assert name(shown(authority.issue("alice", others=others, file="order"))) == expected


def test_of_two_common_names_none_is_meant(authority: Authority) -> None:
    """Another reader might take the other one."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text) for text in ("alice", "admin")])
    assert shown(authority.issue("alice", others=[], file="two", subject=subject)) == Unknown()


@pytest.mark.parametrize("text", ["al\nice", "x" * 256, "a\u202eb", "al\x7fice", "a\udcffb"])
def test_a_name_that_would_mislead_a_reader_is_none(text: str) -> None:
    """Line breaks, invisible signs, endless ones: names go into logs."""
    assert told(text, format="subject") == Unknown()


def test_a_subject_is_a_name_as_it_stands() -> None:
    """A distinguished name as nginx writes it is one name, for patterns to match."""
    whole = "CN=alice,OU=dev,O=Acme"
    assert told(f" {whole} ", format="subject", names=["*,O=Acme"]) == Named(whole)


def test_the_name_must_match_one_of_the_patterns(alice: Pair) -> None:
    """Of whichever case they are: SPIFFE://corp is another."""
    assert name(shown(alice, names=["spiffe://corp/*"])) == "spiffe://corp/alice"
    assert name(shown(alice, names=["other", "*alice"])) == "spiffe://corp/alice"
    assert shown(alice, names=["spiffe://corp"]) == Unknown("spiffe://corp/alice")
    assert shown(alice, names=["SPIFFE://corp/*"]) == Unknown("spiffe://corp/alice")
    assert shown(None) is None


def test_the_end_of_the_certificate_is_told(alice: Pair) -> None:
    """A connection may last longer than what it was opened with."""
    found = shown(alice)
    assert isinstance(found, Named)
    ends = x509.load_der_x509_certificate(alice.der).not_valid_after_utc
    assert found.expires == ends.timestamp()


def pem(pair: Pair) -> str:
    return quote(pair.certificate.read_text(), safe="")


def test_every_format_names_the_same(alice: Pair) -> None:
    """As Envoy, nginx, RFC 9440 and Traefik write it."""
    text = base64.b64encode(alice.der).decode()
    assert name(told(pem(alice), format="pem")) == "spiffe://corp/alice"
    assert name(told(quote(text, safe=""), format="pem")) == "spiffe://corp/alice"
    assert name(told(f"{text},{text}", format="pem")) == "spiffe://corp/alice"
    assert name(told(f" :{text}: ", format="rfc9440")) == "spiffe://corp/alice"
    assert name(told(f'Hash=ab;Cert="{pem(alice)}";URI=spiffe://other')) == "spiffe://corp/alice"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("By=spiffe://gw;Hash=ab;URI=spiffe://corp/alice", "spiffe://corp/alice"),
        ('Hash=ab;Subject="CN=alice,O=x";URI=spiffe://a;DNS=b.example', "spiffe://a"),
        ('Hash=ab;Subject="CN=alice";URI=;DNS=a.example;DNS=b.example', "a.example"),
        (r'Subject="CN=al\,ice,OU=\"x\"";URI=', "al,ice"),
        (r'Subject="O=x\"\;URI=spiffe://admin,CN=alice"', "alice"),
        ('hash=ab;subject="OU=b;CN=alice,C=DE"', None),
        (r'Subject="O=Acme\,CN=admin"', None),
        (r'Subject="O=x\\";URI=spiffe://admin;OU="y"', None),
        ('Subject="/O=x/CN=admin"', None),
        ("Hash=ab", None),
        # what our peer was told by somebody else stands first
        ("Hash=a;URI=spiffe://admin,Hash=b;URI=spiffe://corp/alice", "spiffe://corp/alice"),
        ('Hash=a;Subject="CN=x,URI=spiffe://admin";URI=spiffe://corp/alice', "spiffe://corp/alice"),
    ],
)
def test_the_last_hop_of_xfcc_counts(text: str, expected: str | None) -> None:
    """Quoted commas and semicolons separate nothing."""
    found = told(text)
    assert (None if isinstance(found, Rejection) else name(found)) == expected


def test_a_header_of_somebody_else_counts_for_nothing(alice: Pair) -> None:
    """Only what a trusted proxy writes; and the connection's certificate only where that is chosen (B31)."""
    assert told("URI=spiffe://corp/admin", trusted=False) is None
    assert told("URI=a", "URI=b", trusted=False) is None
    assert name(told("URI=spiffe://corp/admin")) == "spiffe://corp/admin"
    chosen = config.Certificates(source="header")
    assert certificate_name(chosen, CIMultiDict(), trusted=True, shown=alice.der) is None
    other = CIMultiDict({"X-Forwarded-Client-Cert": "URI=spiffe://corp/admin"})
    assert certificate_name(config.Certificates(source="tls"), other, trusted=True, shown=None) is None
    assert certificate_name(config.Certificates(), other, trusted=True, shown=alice.der) is None


@pytest.mark.parametrize("lines", [("URI=a", "URI=a"), ("URI=a", ""), ("", "URI=a")])
def test_a_header_that_came_twice_is_refused(lines: tuple[str, ...]) -> None:
    """One of them may be the client's, which a proxy let pass."""
    refused = told(*lines)
    assert isinstance(refused, Rejection)
    assert refused.status == 400
    assert refused.error is not None
    assert "X-Cert came more than once" in refused.error.message


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("xfcc", "spiffe://corp/alice"),
        ("xfcc", 'URI="spiffe://corp'),
        ("xfcc", "Cert=%ff"),
        ("xfcc", 'Cert="-----BEGIN CERTIFICATE-----AAAA-----END CERTIFICATE-----"'),
        ("pem", "alice"),
        ("pem", "%FF"),
        ("pem", "-----BEGIN CERTIFICATE-----"),
        ("rfc9440", "AAAA"),
        ("rfc9440", ":AAAA:"),
        ("rfc9440", ":A:"),
    ],
)
def test_what_is_not_of_the_format_is_refused(format: str, text: str) -> None:
    """Without a word of what came."""
    refused = told(text, format=format)
    assert isinstance(refused, Rejection)
    assert refused.error is not None
    assert refused.error.message == f"The header X-Cert is not what the format {format} calls for"


def test_no_header_and_an_empty_one_are_nobody() -> None:
    """Some proxies write an empty one where there is no certificate."""
    assert told() is None
    assert told("  ") is None


@given(st.sampled_from(["xfcc", "pem", "rfc9440", "subject"]), st.text(max_size=80))
def test_any_text_is_read_or_refused(format: str, text: str) -> None:
    """Nothing else comes of it."""
    found = told(text, format=format)
    assert found is None or isinstance(found, Named | Unknown | Rejection)


@given(st.binary(max_size=200))
def test_any_bytes_of_a_handshake_name_somebody_or_nobody(der: bytes) -> None:
    """Openssl may take what cannot be read here."""
    found = certificate_name(config.Certificates(source="tls"), CIMultiDict(), trusted=False, shown=der)
    assert found == Unknown()
