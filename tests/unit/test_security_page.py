"""docs/security.md names the test of each promise: a test that is gone leaves a promise that nobody holds."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/security.md").read_text()


def test_every_test_that_is_named_is_there() -> None:
    """Files, and the tests in them."""
    named = re.findall(r"`((?:unit|flows|e2e|fuzz)/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 50
    for file, test in named:
        path = ROOT / "tests" / file
        assert path.exists(), file
        assert not test or re.search(rf"def {test}\(", path.read_text()), f"{file}::{test}"


def test_every_target_of_the_fuzzer_is_in_its_table() -> None:
    """With a count; a new one is run before it is written there."""
    from tests.fuzz.sockets import SOCKETS
    from tests.fuzz.targets import TARGETS

    counted = dict(re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \|$", PAGE, re.MULTILINE))
    assert counted.keys() == {*TARGETS, *SOCKETS}
    (total,) = re.findall(r"([\d,]+) inputs\s+in\s+all", PAGE)
    assert int(total.replace(",", "")) == sum(int(count.replace(",", "")) for count in counted.values())
