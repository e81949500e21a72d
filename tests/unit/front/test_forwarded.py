"""What proxies say of a request, read from the right as far as those who wrote are trusted (B31, B37)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.front.forwarded import Lines, Seen, plain_address, read

EDGE, INNER = "10.0.0.1", "10.0.0.2"


def trusts(address: str) -> bool:
    return address.startswith("10.0.0.")


def seen(**lines: str | list[str]) -> Seen:
    """Read these lines, which the inner one of two trusted proxies passed on."""
    found = {name: [text] if isinstance(text, str) else text for name, text in lines.items()}
    return read(Lines(*(found.get(name, []) for name in Lines._fields)), INNER, trusts)


@pytest.mark.parametrize(
    ("told", "client"),
    [
        ([], INNER),
        ("", INNER),
        ("1.2.3.4", "1.2.3.4"),
        ("6.6.6.6, 1.2.3.4", "1.2.3.4"),
        ("6.6.6.6, 1.2.3.4, 10.0.0.1", "1.2.3.4"),
        (["6.6.6.6", "1.2.3.4", "10.0.0.1"], "1.2.3.4"),
        ("1.2.3.4:5678", "1.2.3.4"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("fe80::1%eth0", "fe80::1"),
        ("6.6.6.6, unknown, 10.0.0.1", EDGE),
        ("6.6.6.6, <script>", INNER),
        ("10.0.0.9, 10.0.0.1", "10.0.0.9"),
        (", ,", INNER),
    ],
)
def test_the_client_is_the_rightmost_that_is_not_trusted(told: str | list[str], client: str) -> None:
    """What stands left of it is its own invention."""
    assert seen(address=told).address == client


@pytest.mark.parametrize(
    ("told", "client", "host", "scheme"),
    [
        ("for=1.2.3.4", "1.2.3.4", None, None),
        ('for="[2001:db8::1]:4711";host=a.example;proto=https', "2001:db8::1", "a.example", "https"),
        ("For=1.2.3.4;Host=a.example;Proto=HTTPS;by=10.0.0.2", "1.2.3.4", "a.example", "https"),
        # the client's own, the edge's, the inner one's
        (
            "for=6.6.6.6;host=evil.example;proto=https, for=1.2.3.4;host=a.example;proto=https,"
            " for=10.0.0.1;host=inner.example;proto=http",
            "1.2.3.4",
            "a.example",
            "https",
        ),
        (
            "for=1.2.3.4;host=evil.example, for=10.0.0.1, for=unknown;host=in.example",
            INNER,
            "in.example",
            None,
        ),
        ("for=1.2.3.4;host=evil.example, for=_hidden", INNER, None, None),
        ('host="a,b";for=1.2.3.4', "1.2.3.4", "a,b", None),
        (r'host="a\"b";for="1.2.3.4"', "1.2.3.4", 'a"b', None),
        ("for=1.2.3.4;for=5.6.7.8", INNER, None, None),
        ("for=1.2.3.4;host", INNER, None, None),
        ('for="1.2.3.4', INNER, None, None),
        ("for=1.2.3.4;proto=gopher", "1.2.3.4", None, None),
    ],
)
def test_each_hop_of_forwarded_says_what_it_was_asked(
    told: str, client: str, host: str | None, scheme: str | None
) -> None:
    """Of the outermost trusted one that says it; a malformed hop says nothing."""
    assert seen(forwarded=told) == Seen(client, host, scheme)


def test_lists_of_several_hops_are_counted_from_the_right() -> None:
    """As many values count as there are trusted proxies, and one that replaces leaves a single one."""
    two = {"address": "1.2.3.4, 10.0.0.1"}
    assert seen(**two, host="evil.example, a.example, inner.example", scheme="ftp, https, http") == Seen(
        "1.2.3.4", "a.example", "https"
    )
    assert seen(**two, host="a.example", scheme="https").host == "a.example"
    assert seen(address="1.2.3.4", host="evil.example, a.example").host == "a.example"
    assert seen(scheme="https, gopher").scheme is None


@pytest.mark.parametrize(
    ("told", "prefix"),
    [
        ("/tools/gw", "/tools/gw"),
        ("/tools/gw/", "/tools/gw"),
        ("/evil, /tools, /gw", "/tools/gw"),
        ("/", None),
        ("", None),
        ("//evil.example", None),
        ("/a/../b", None),
        ("/a?b=c", None),
        ("/a b", None),
        ('/"><script>', None),
    ],
)
def test_each_hop_adds_the_prefix_it_took_away(told: str, prefix: str | None) -> None:
    """What is no path counts for nothing."""
    assert seen(address="1.2.3.4, 10.0.0.1", prefix=told).prefix == prefix


def test_where_both_kinds_stand_only_what_they_agree_in_counts() -> None:
    """A proxy writes one and lets the other pass as the client sent it, whichever it is."""
    apart = {"address": "1.2.3.4", "host": "a.example", "scheme": "https", "prefix": "/x"}
    agreed = seen(**apart, forwarded="for=1.2.3.4;host=a.example;proto=https")
    assert agreed == Seen("1.2.3.4", "a.example", "https")
    assert seen(**apart, forwarded="for=6.6.6.6;host=evil.example;proto=http") == Seen(INNER)
    assert seen(host="evil.example", forwarded="for=1.2.3.4;proto=https") == Seen(INNER)


@given(st.lists(st.text(max_size=60), max_size=3), st.lists(st.text(max_size=60), max_size=3))
def test_any_lines_are_read(apart: list[str], together: list[str]) -> None:
    """The address is always one, whatever the lines hold."""
    told = read(Lines(apart, apart, apart, apart, together), INNER, trusts)
    assert plain_address(told.address) == told.address
