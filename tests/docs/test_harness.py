"""What checks the documentation finds what is wrong with it."""

from pathlib import Path

import pytest

from gateway.config import ConfigError
from tests.docs import configs
from tests.docs.pages import Block, Unreadable, anchors, blocks, links
from tests.docs.stages import Failed, mismatch, stage
from tests.docs.test_blocks import checked, play

pytestmark = pytest.mark.timeout(120)

PAGE = """
# A page, of [old](times.md)

<!-- stage: demo -->
<!-- file: gateway.yaml -->
```yaml
startup_wait: 30s
upstreams:
  clock: http://127.0.0.1:9102/mcp
```

1. Start it:

   <!-- until: /mcp -->
   ```sh
   export WORD=kept
   mcp-gateway serve --config gateway.yaml
   ```

```sh
curl -s http://127.0.0.1:9090/readyz
echo "${WORD-only here}"
```

<!-- stop: serve -->
<!-- exit: 1 -->
```sh
export WORD=kept; mkdir deeper; cd deeper
curl -s http://127.0.0.1:9090/readyz || exit 1
```

```sh
pwd; echo $WORD on port 8080
```

<!-- output -->
```text
…/deeper
kept on port 8080
```
"""


def of(text: str) -> list[Block]:
    return list(blocks("page.md", text))


def test_a_story_is_played_to_its_end() -> None:
    """Files, commands that go on running, Ctrl-C, exit codes, variables, folders and ports."""
    story = of(PAGE)
    with stage("demo", story) as on:
        assert on.ports[8080] != 8080
        play(on, story)


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ("false", "exit code 1"),
        ("<!-- exit: 3 -->\nexit 2", "exit code 2, not 3"),
        ("<!-- until: hello -->\necho bye", "has not printed 'hello'"),
        ("<!-- stop: serve -->\ntrue", "nothing that holds 'serve'"),
    ],
)
def test_commands_that_fail_are_noticed(commands: str, message: str) -> None:
    """Each in the words that lead to it."""
    marks, _, command = commands.rpartition("\n")
    story = of(f"<!-- stage: bare -->\n{marks}\n```sh\n{command}\n```\n")
    with stage("bare", story) as on, pytest.raises(Failed, match=message):
        play(on, story)


def test_another_output_is_noticed() -> None:
    """Shown is all that is printed, but for what … stands for."""
    printed = "one\ntwo  2\nthree\n"
    assert mismatch("one\ntwo 2\nthree", printed) is None
    assert mismatch("one\n…", printed) is None
    assert mismatch("…\nt… 2\n…", printed) is None
    assert "['four']" in str(mismatch("one\nfour\n…", printed))
    assert "in this order" in str(mismatch("three\n…\none", printed))
    assert mismatch("one\ntwo 2", printed) is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- stag: demo -->\n```sh\ntrue\n```", "there is no mark stag"),
        ("<!-- exit: 1 -->\nSome words.", "directly above a block"),
        ("```sh\ntrue", "has no end"),
        ("Words.\n\n    mcp-gateway serve", "write code between"),
    ],
)
def test_pages_that_nobody_could_check_are_refused(text: str, message: str) -> None:
    """With the line, and what to do."""
    with pytest.raises(Unreadable, match=message):
        of(text)


def test_blocks_that_nothing_checks_are_told_from_the_others() -> None:
    """A language, a stage or a mark decides."""
    shown = of(
        "```\nx\n```\n```sh\nx\n```\n```json\n{}\n```\n```yaml\nx: 1\n```\n"
        "<!-- as: data -->\n```json\n{}\n```\n"
        "<!-- stage: bare -->\n```sh\nx\n```\n```text\nx\n```\n<!-- output -->\n```text\nx\n```\n"
    )
    assert [checked(one) for one in shown] == [False, False, False, True, True, True, False, True]


@pytest.mark.parametrize("text", ["upstreams: {a: {url: 'http://a/mcp', timout: 1s}}", "listen: 127.0.0.1:1"])
def test_configurations_that_are_wrong_are_noticed(text: str, tmp_path: Path) -> None:
    """An unknown key, and one that lacks what it must have."""
    (block,) = of(f"```yaml\n{text}\n```")
    with pytest.raises(ConfigError):
        configs.loaded(block, tmp_path)


def test_variables_files_and_neighbours_are_made_up(tmp_path: Path) -> None:
    """So that a part of a configuration can be shown, and a credential as it should be written."""
    (block,) = of(
        "<!-- add: gh, time -->\n```yaml\nsecrets: {keys: ['${KEY}', {file: /run/secrets/old}]}\n"
        "access: {rules: [{upstreams: [gh]}]}\n```"
    )
    assert set(configs.loaded(block, tmp_path).upstreams) == {"gh", "time"}


def test_headings_and_links_are_read_as_readers_see_them() -> None:
    """Without what stands in blocks and in code."""
    text = f"{PAGE}\n## `auth`: what is shown, to whom\n## Twice\n## Twice\n[here](#twice-1) `[no](x.md)`"
    assert {"a-page-of-old", "auth-what-is-shown-to-whom", "twice", "twice-1"} == anchors(text)
    assert [link for _, link in links(text)] == ["times.md", "#twice-1"]
