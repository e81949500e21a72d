"""What supervisor and workers tell each other."""

import msgspec
import pytest

from gateway.supervisor.line import (
    Adopt,
    Alive,
    Heard,
    Listening,
    Order,
    Ready,
    Release,
    Retire,
    Told,
    heard,
    line,
    told,
)

ORDER = Order(
    1, [[3], [4, 5]], "/run/x", None, "/run/x/1.ledger", 3, "upstreams: {a: 'http://a/mcp'}\n\u2028"
)


@pytest.mark.parametrize("message", [ORDER, Adopt(2), Release(0), Retire()])
def test_what_is_told_arrives(message: Told):
    """As one line, whatever is in it."""
    text = line(message)
    assert text.index(b"\n") == len(text) - 1
    assert told(text) == message


@pytest.mark.parametrize("message", [Listening(), Ready(), Alive()])
def test_what_is_answered_arrives(message: Heard):
    """The other way."""
    assert heard(line(message)) == message


def test_neither_says_what_only_the_other_may():
    """Such a message is a mistake in one of them."""
    with pytest.raises(msgspec.ValidationError):
        told(line(Ready()))
    with pytest.raises(msgspec.ValidationError):
        heard(line(Retire()))


def test_an_order_that_is_shown_shows_no_configuration():
    """It may hold secrets."""
    assert repr(ORDER) == "<Order of place 1>"
