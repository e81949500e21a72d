"""What an upstream is shown, and what its refusals mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import config
from gateway.protocol.call import Challenge, Reason
from gateway.upstream.challenges import Bearer, read_challenge
from gateway.upstream.credentials import Credentials
from gateway.upstream.failures import Failed


def credentials(**auth):
    return Credentials("alpha", config.Auth(**auth))


async def test_a_callers_authorization_passes_only_with_forward():
    """The caller's token is never handed on unless the operator says so (Z-09, B06)."""
    for auth, caller, shown in (
        ({}, "Bearer TOK-A", {}),
        ({"kind": "bearer", "bearer": "S"}, "Bearer TOK-A", {"Authorization": "Bearer S"}),
        ({"kind": "headers", "headers": {"X-Key": "K"}}, "Bearer TOK-A", {"X-Key": "K"}),
        ({"kind": "forward"}, "Bearer TOK-A", {"Authorization": "Bearer TOK-A"}),
        ({"kind": "forward"}, None, {}),
    ):
        assert await credentials(**auth).headers(caller) == shown


def test_no_secret_is_printed():
    """A repr in a log or a traceback holds names only (B42)."""
    for shown in (
        credentials(kind="bearer", bearer="S3CR3T"),
        credentials(kind="headers", headers={"K": "S3CR3T"}),
    ):
        assert "S3CR3T" not in repr(shown)
        assert "S3CR3T" in set(shown.secrets(None))


def test_a_refusal_is_the_callers_matter_only_with_forward():
    """Own credentials: the upstream is unusable. The caller's: a challenge with error and scope (B15)."""
    bearer = Bearer("insufficient_scope", "w")
    own = credentials(kind="bearer", bearer="S").refused(None, {}, 403, bearer)
    assert isinstance(own, Failed)
    assert (own.reason, own.transient) == (Reason.CREDENTIALS, False)
    assert str(own) == "upstream alpha: it rejected the gateway's credentials"
    theirs = credentials(kind="forward").refused(None, {}, 403, bearer)
    assert isinstance(theirs, Challenge)
    assert (theirs.status, theirs.error, theirs.scope) == (403, "insufficient_scope", "w")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], (None, None)),
        (["Bearer"], (None, None)),
        (["Basic realm=x"], (None, None)),
        (
            ['Bearer resource_metadata="https://a.example/x,y", error="invalid_token"'],
            ("invalid_token", None),
        ),
        (['bEaReR scope="a b" , error=invalid_token'], ("invalid_token", "a b")),
        (['Basic realm="Bearer error=no", Bearer error="yes"'], ("yes", None)),
        (["Negotiate dG9rZW4=, Bearer scope=s"], (None, "s")),
        (['Bearer scope="s", Basic error="other"'], (None, "s")),
        (["Basic realm=x", "Bearer scope=second"], (None, "second")),
        (['Bearer error="a\\"b"'], (None, None)),
        (['Bearer error="tab\there"'], (None, None)),
        (['Bearer error="open'], (None, None)),
    ],
)
def test_a_challenge_is_read_as_written(values, expected):
    """Several challenges, quoting, any case; what could break out of our own header is left out."""
    assert read_challenge(values)[:2] == expected


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ('Bearer resource_metadata="https://a.example/x,y", error="e"', "https://a.example/x,y"),
        ("Bearer resource_metadata=nowhere", None),
        ('Bearer resource_metadata="file:///etc/passwd"', None),
        ('Bearer resource_metadata="https://a.example/\\"x"', None),
        ('Bearer error="e"', None),
    ],
)
def test_where_a_challenge_says_that_the_metadata_is(text, url):
    """Only what can be a URL; where it leads is checked as it is asked for."""
    assert read_challenge([text]).metadata == url


@given(st.lists(st.text(alphabet='Bearer ,="\\scope x', max_size=60) | st.text(max_size=60), max_size=3))
def test_any_header_is_read_without_failing(values):
    """A header is the upstream's text: it is read or not, and what is read is safe to write again."""
    for text in read_challenge(values):
        assert text is None or (text.isascii() and text.isprintable() and '"' not in text)
