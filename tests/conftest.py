"""What holds for every test: blocking the event loop fails it, and chance is the same every time."""

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import settings

# A busy machine is no failure, and what failed once fails again: a search for more is
# `pytest --hypothesis-profile=search`.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, derandomize=False)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _nothing_blocks_the_loop() -> Iterator[None]:
    with blockbuster_ctx(scanned_modules=["gateway"]):
        yield
