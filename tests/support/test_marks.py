"""The search finds a word however it is packed, and nothing else."""

import base64
from urllib.parse import quote

import pytest

from tests.support.marks import KINDS, Search, Tenant

ANN, BOB = Tenant("ann", 1), Tenant("bob", 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", range(6))
def test_a_word_is_found_in_every_form(kind, before):
    text = b"x" * before + ANN.word(kind).encode() + b"yz"
    search = Search([ANN, BOB])
    for packed in (
        text,
        text.upper(),
        text.hex().encode(),
        text.hex().upper().encode(),
        base64.b64encode(text),
        base64.urlsafe_b64encode(text).rstrip(b"="),
        quote(text).encode(),
    ):
        found = search.first(b"..." + packed + b"...")
        assert found is not None
        assert (found.tenant, found.kind) == (ANN, kind)
        assert Search([BOB]).first(packed) is None


def test_words_of_kinds_and_seeds_are_apart():
    words = {Tenant(name, seed).word(kind) for name in ("ann", "bob") for seed in range(3) for kind in KINDS}
    assert len(words) == 24
    assert {len(word) for word in words} == {15}
    assert Search([ANN], ["token"]).first(ANN.word("data").encode()) is None
    assert Search([]).first(b"anything") is None
