"""What the README shows is true: its configuration loads and its links lead somewhere."""

import re

import pytest

from gateway.config import load_file
from tests.support.processes import ROOT

README = (ROOT / "README.md").read_text()


def test_the_configuration_it_shows_is_valid(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example can be copied as it stands."""
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    file = tmp_path / "gateway.yaml"
    file.write_text(shown)
    monkeypatch.setenv("GH_TOKEN", "a-token-of-a-test")
    assert set(load_file(file).upstreams) == {"time", "files", "gh"}


def test_its_links_into_the_repository_exist() -> None:
    """No file was moved without it."""
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert "://" in target or (ROOT / target).exists(), target


def test_the_make_targets_it_names_exist() -> None:
    """Nobody types a command that is not there."""
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^    make (\w+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
