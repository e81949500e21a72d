"""What a command was given: a configuration, the token of a caller, an address."""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway import config
from gateway.commands.printing import WRONG, complain
from gateway.commands.printing import warn as say_warning
from gateway.config import Config, parse_address


def load(
    arguments: argparse.Namespace,
    *,
    instead: Mapping[str, str] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Config:
    """Return the configuration that the arguments name; raises ConfigError."""
    file = arguments.config or arguments.file
    return config.load_file(file, instead=instead or {}, warn=warn or say_warning)


def read(
    arguments: argparse.Namespace,
    instead: Mapping[str, str],
    warn: Callable[[str], None],
    named: Callable[[Path], None] = lambda _: None,
) -> tuple[Config, str]:
    """Return the configuration and its text, and name every file it is in; raises ConfigError."""
    file = arguments.config or arguments.file
    named(Path(file).absolute())
    text = config.text_in(file)
    folder = Path(file).absolute().parent
    return config.load(text, file=file, folder=folder, instead=instead, warn=warn, named=named), text


def file_of(arguments: argparse.Namespace) -> str:
    """Return the file that the arguments name, if there is one."""
    named = (getattr(arguments, name, None) for name in ("config", "file", "source"))
    return next((name for name in named if name), "")


def no_address(option: str, place: str) -> int | None:
    """Say what is wrong with an address that an option names, if it is."""
    try:
        parse_address(place)
    except ValueError as error:
        return complain(f"--{option}: {error}", f"use --{option} 127.0.0.1:8081", code=WRONG)
    return None


def no_endpoint(settings: Config, endpoint: str) -> int:
    """Say which endpoints there are."""
    known = " or ".join(f"--endpoint {path}" for path in settings.endpoints)
    return complain(f"there is no endpoint {endpoint}", f"use {known}", code=WRONG)


class NoToken(Exception):
    """A variable that should hold a token does not; what it holds is not repeated."""

    def __init__(self, variable: str) -> None:
        super().__init__(f"the variable {variable} holds no token")
        self.advice = f"export {variable}=TOKEN, without quotes or line breaks in it"


def header_of(variable: str) -> str:
    """Return the header for the token in a variable, which may be the whole of it; raises NoToken."""
    token = os.environ.get(variable, "").strip()
    if not token or not (token.isascii() and token.isprintable()):
        raise NoToken(variable)
    return token if " " in token else f"Bearer {token}"
