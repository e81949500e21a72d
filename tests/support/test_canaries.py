"""A search for secrets that finds none is worth something only if it would."""

import base64
from urllib.parse import quote

import pytest

from tests.support.canaries import PREFIX, Canaries

SECRETS = Canaries()
SECRET = SECRETS["the"]


@pytest.mark.parametrize(
    "text",
    [
        f"x{SECRET}y",
        f"cut: {SECRET[:PREFIX]}...",
        SECRET.encode().hex(),
        f"Basic {base64.b64encode(f'user:{SECRET}'.encode()).decode()}",
        *(base64.b64encode(b"." * before + SECRET.encode()).decode() for before in range(3)),
        *(base64.urlsafe_b64encode(b"\xff" * before + SECRET.encode()).decode() for before in range(3)),
        repr(f"authorization: {SECRET}".encode()),
    ],
)
def test_a_secret_is_found_in_every_spelling(text: str) -> None:
    """Whole or begun, plain or coded, behind whatever."""
    assert SECRETS.seen_in(text) == ["the"]
    assert SECRETS.seen_in(text.encode()) == ["the"]


def test_a_secret_with_odd_signs_is_found_in_a_url() -> None:
    """And no other text is taken for one."""
    odd = Canaries()
    odd.add("odd", "pass/word+with=signs")
    assert odd.seen_in(f"https://h/?k={quote('pass/word+with=signs', safe='')}") == ["odd"]
    assert odd.seen_in("https://h/?k=pass%20word") == []
