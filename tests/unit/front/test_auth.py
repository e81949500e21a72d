"""Who calls, read from the headers."""

from multidict import CIMultiDict

from gateway.front.auth import ANONYMOUS, identify
from gateway.front.challenges import Denied
from gateway.protocol.call import Principal
from gateway.support.seal import Seal

SEAL = Seal(["0123456789abcdef0123456789abcdef"])


def who(*lines: str) -> Principal | Denied:
    """Identify a caller by these Authorization lines."""
    return identify(CIMultiDict([("authorization", line) for line in lines]), SEAL)


def test_no_header_and_a_blank_one_are_nobody() -> None:
    """Some proxies send an empty header instead of none."""
    assert who() is ANONYMOUS
    assert who(" \t") is ANONYMOUS


def test_a_credential_is_a_partition_and_shows_in_no_repr() -> None:
    """Space around it does not count, its case does."""
    ann = who("Bearer TOK-A")
    assert isinstance(ann, Principal)
    assert ann == who(" Bearer TOK-A ")
    assert ann != who("bearer TOK-A")
    assert ann.partition is not None
    assert "TOK-A" not in ann.partition
    assert "TOK-A" not in repr(ann)


def test_what_could_be_read_two_ways_is_refused_without_being_quoted() -> None:
    """Z-04: a malformed credential is a 400."""
    for lines in (("Bearer a", "Bearer b"), ("Bearer \x01tok",), ("Bearer t\xf6k",), ("Bearer \udcff",)):
        refused = who(*lines)
        assert isinstance(refused, Denied)
        assert (refused.status, refused.error) == (400, "invalid_request")
        assert "tok" not in refused.message
