"""The files that are written from the code and from others are what these say now, and true."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pydantic import BaseModel

from docs.generate import PAGES, main, outdated
from docs.generating import reference
from gateway.config import Config, load

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([^`]+)` \| (.*) \| (.*) \| (.+) \| (.*) \|$", re.MULTILINE)


def rows() -> list[Sequence[str]]:
    return ROW.findall(reference.page())


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    """`make docs` after every change of what it is made of."""
    assert (ROOT / name).read_text("utf-8") == PAGES[name]()


def test_an_outdated_page_is_told_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it is old or not there at all; `--check` writes nothing."""
    monkeypatch.setattr("docs.generate.ROOT", tmp_path)
    for name in PAGES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    old = tmp_path / "docs" / "reference.md"
    old.write_text("old", "utf-8")
    assert main(["--check"]) == 1
    assert "docs/reference.md is not what the code says" in capsys.readouterr().err
    assert old.read_text("utf-8") == "old"
    assert main([]) == 0
    assert outdated() == []
    assert main(["--check"]) == 0


def keys(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield the path of every key that a file may have, as the models have it."""
    for name, field in model.model_fields.items():
        if field.json_schema_extra:
            continue
        yield f"{path}{name}"
        between, kinds = "", [field.annotation]
        while kinds:
            kind = kinds.pop()
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys(kind, f"{path}{name}{between}.")
            origin = getattr(kind, "__origin__", None)
            if isinstance(origin, type) and origin is not type(None):
                between += "[]" if origin is list else ".NAME" if hasattr(origin, "items") else ""
            kinds += getattr(kind, "__args__", ())


def test_the_reference_has_every_key_once() -> None:
    """In every place where it may stand."""
    assert sorted(key for key, *_ in rows()) == sorted(keys(Config))


def written(key: str, value: str) -> tuple[str, str]:
    """Return a file in which only this key stands beside an upstream, and one without it."""
    path = key.split(".")
    inside = path[:2] == ["upstreams", "NAME"]
    text = f"{path[-1]}: {value}"
    for name in reversed(path[2:-1] if inside else path[:-1]):
        text = f"{name}: {{{text}}}"
    way = "command: a" if path[-1] in ("args", "env") else "url: 'http://a'"
    bare = f"upstreams: {{a: {{{way}}}}}"
    return (f"upstreams: {{a: {{{way}, {text}}}}}" if inside else f"{bare}\n{text}"), bare


# `auth` takes one of its keys, which have no default, and `authentication` alone is a mistake.
WITH_DEFAULT = [
    (key, default.strip("`"))
    for key, _, default, *_ in rows()
    if default.startswith("`")
    and "NAME" not in key.removeprefix("upstreams.NAME")
    and not re.search(r"auth\.|authentication\.|\[\]", key)
]


def test_most_keys_have_a_default() -> None:
    """So that the next test tests something."""
    assert len(WITH_DEFAULT) > 80


@pytest.mark.parametrize(("key", "default"), WITH_DEFAULT, ids=[key for key, _ in WITH_DEFAULT])
def test_who_writes_the_default_changes_nothing(key: str, default: str) -> None:
    """What the page calls the default is what the gateway takes, as the page writes it."""
    with_it, without = (load(text, env={}).model_dump() for text in written(key, default))
    assert with_it == without


def test_the_reference_says_what_waits_for_a_restart() -> None:
    """As the reload decides it."""
    applied = {key: applied for key, *_, applied in rows()}
    assert applied["listen"] == applied["limits.message"] == "no"
    assert applied["cache.redis_prefix"] == "yes, but with Redis"
    assert applied["upstreams.NAME.url"] == applied["log.level"] == "yes"


def test_links_within_the_reference_lead_somewhere() -> None:
    """To a heading, by the rule that GitHub makes anchors with."""
    page = reference.page()
    headings = re.findall(r"^## `?([^`\n]+)`?$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert links
    assert links <= anchors
