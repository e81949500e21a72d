"""Every client with every server, doing everything: each cell ends as the table says."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.matrix.expected import CELLS, EXPECTED
from tests.matrix.page import PAGE, page
from tests.matrix.run import Cell, matrix_gateway, outcomes

# All cells that were chosen run at once, in the first of these tests.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Iterator[dict[Cell, str]]:
    """Run the cells of the tests that were chosen, all of them where the page is among those."""
    items = [item for item in request.session.items if item.parent is request.node]
    chosen = {item.callspec.params["cell"] for item in items if hasattr(item, "callspec")}
    wanted = chosen if len(chosen) == len(items) else set(CELLS)
    with matrix_gateway() as running:
        yield asyncio.run(outcomes(running.endpoint, wanted))


@pytest.mark.parametrize("cell", CELLS, ids=[" - ".join(cell) for cell in CELLS])
def test_each_ends_as_it_is_to(found: dict[Cell, str], cell: Cell) -> None:
    assert found[cell] == EXPECTED[cell]


def test_the_page_says_what_came_of_it(found: dict[Cell, str]) -> None:
    """`make compatibility` writes it anew."""
    assert Path(PAGE).read_text() == page(found)
