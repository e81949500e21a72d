"""Loads the configurations of the documentation, with variables, files and neighbours made up for them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ruamel.yaml import YAML

from gateway.config import Config, load
from tests.docs.pages import Block
from tests.support.certificates import Authority

_VARIABLE = re.compile(r"(?<!\$)\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
_FOLDERS = re.compile(r"(?<![\w.])/(?:run/secrets|etc/mcp-gateway)/([\w./-]+)")
_BESIDE = re.compile(r"\bfile: ([\w.-]+)")
_MADE_UP = "a-value-that-a-test-made-up-0123456789"


def loaded(block: Block, folder: Path) -> Config:
    """Return the configuration that a block comes to; raises ConfigError."""
    text = _FOLDERS.sub(lambda found: str(folder / found[1]), block.text)
    _make([*_FOLDERS.findall(block.text), *_BESIDE.findall(block.text)], folder)
    if names := block.marks.get("add"):
        text = f"{text}\n{_upstreams(names)}"
    suffix = "json" if block.language == "json" else "yaml"
    return load(text, file=f"block.{suffix}", folder=folder, env=_environment(text))


def _upstreams(names: str) -> str:
    rows = "".join(f"  {name}: http://127.0.0.1:9001/{name}\n" for name in re.findall(r"[\w-]+", names))
    return f"upstreams:\n{rows}"


def _environment(text: str) -> Mapping[str, str]:
    return dict.fromkeys(_VARIABLE.findall(text), _MADE_UP)


def _make(names: Sequence[str], folder: Path) -> None:
    """Write what files of these names would hold; a certificate and a key fit each other."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority(folder)
    pair = authority.issue("mcp.example.com", days=90)
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        match file.suffix, "key" in file.stem, "ca" in file.stem.split("-"):
            case ".pem" | ".crt", False, True:
                file.write_bytes(authority.file.read_bytes())
            case ".pem" | ".crt", False, False:
                file.write_bytes(pair.certificate.read_bytes())
            case ".pem", True, _:
                file.write_bytes(pair.key.read_bytes())
            case _:
                file.write_text(f"{_MADE_UP}\n")


def is_configuration(block: Block) -> bool:
    """Whether a block is one of ours: what is not has a mark."""
    if {"as", "excerpt", "output", "elsewhere", "mistaken"} & block.marks.keys():
        return False
    if block.language != "json":
        return block.language == "yaml"
    document = YAML(typ="safe").load(block.text)
    return isinstance(document, dict) and bool({"mcpServers", "servers", "mcp"} & document.keys())
