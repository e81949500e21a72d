"""What holds for every test: code of the gateway that blocks the event loop fails it."""

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx


@pytest.fixture(autouse=True)
def _nothing_blocks_the_loop() -> Iterator[None]:
    with blockbuster_ctx(scanned_modules=["gateway"]):
        yield
