"""A little of what `make fuzz` does, in every run of the tests: inputs by chance, and bent ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, Target


def bent(target: Target) -> st.SearchStrategy[bytes]:
    """Return inputs that begin as a seed and have something cut out, and something else put in its place."""
    words = st.sampled_from([word.encode() for word in target.words] or [b"\0"])
    piece = st.one_of(st.binary(max_size=8), words, words.map(lambda word: word * 3))

    def spliced(seed: bytes, at: int, length: int, put: bytes) -> bytes:
        start = at % (len(seed) + 1)
        return seed[:start] + put + seed[start + length :]

    seeds = st.sampled_from(target.seeds)
    one = st.builds(spliced, seeds, st.integers(0, 5000), st.integers(0, 40), piece)
    return st.one_of(one, st.builds(spliced, one, st.integers(0, 5000), st.integers(0, 9), piece))


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_it(name: str) -> None:
    """Seeds first: an input to begin with that fails would hide what lies behind it."""
    target = TARGETS[name]
    for seed in target.seeds:
        target.check(seed)

    @settings(max_examples=60)
    @given(st.one_of(st.binary(max_size=400), bent(target)))
    def fed(data: bytes) -> None:
        target.check(data)

    fed()
