"""What a configuration file may be, whoever wrote it; each function is one target."""

import contextlib
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from gateway import config
from gateway.settings.redis_url import parse_redis_url

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-settings-"))
ENV = {"TOKEN": "a-token-of-the-environment", "EMPTY": ""}


def config_file(data: bytes) -> None:
    """A text is a configuration, or every mistake in it is told with its place and no variable's value."""
    text = data.decode(errors="replace")
    if "file" in text and ("/dev" in text or "/proc" in text):
        return  # a device may wait for ever, which is what whoever runs the gateway asked for
    try:
        config.load(text, folder=FOLDER, env=ENV)
    except config.ConfigError as error:
        _told(error)


def servers_file(data: bytes) -> None:
    """An editor's file becomes a configuration that loads, or says what is wrong."""
    path = FOLDER / "mcp.json"
    path.write_bytes(data)
    if b"envFile" in data and (b"/dev" in data or b"/proc" in data):
        return
    try:
        made = config.draft_file(path, env=ENV)
    except config.ConfigError as error:
        _told(error)
        return
    if not made.problems and made.taken:
        config.load(made.text, folder=FOLDER, env={**dict.fromkeys(made.variables, "a-value"), **ENV})


def addresses(data: bytes) -> None:
    """What stands for an address is one, or ValueError; a URL is shown without login and query."""
    text = data.decode(errors="replace")
    for read in (config.parse_address, parse_redis_url):
        with contextlib.suppress(ValueError):
            str(read(text))
    try:
        shown = config.shown_url(text)
    except ValueError:
        return
    if urlsplit(text).scheme in ("http", "https"):
        assert "?" not in shown
        assert "#" not in shown
        assert "@" not in urlsplit(shown).netloc


def _told(error: config.ConfigError) -> None:
    assert error.problems
    assert str(error).strip()
    assert ENV["TOKEN"] not in str(error)
