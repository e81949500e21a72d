"""The folder picture as a test: who may import whom, and which files do no I/O."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "gateway"

MAY_IMPORT = {
    "protocol": "",
    "settings": "protocol",
    "config": "protocol settings",
    "support": "protocol config",
    "cache": "protocol support config",
    "upstream": "protocol support config",
    "core": "protocol support config cache upstream",
    "status": "",
    "front": "protocol support config core status",
    "reloading": "protocol config core",
    "runtime": "protocol support config cache upstream core front reloading",
    "snapshot": "protocol support config cache runtime status",
    "server": "protocol support config core front reloading runtime snapshot status",
    "watching": "",
    "reloader": "support config server watching",
    "supervisor": "protocol support config core front server status watching",
    "app": "protocol support config core front reloader runtime server supervisor",
    "doctor": "protocol settings support config cache upstream core runtime app",
    "admin_client": "config",
    "commands": "config reloader server supervisor app admin_client doctor",
    "cli": "commands",
    "__main__": "cli",
}
PURE = (
    "protocol",
    "reloading",
    "cache/explain",
    "cache/policy",
    "core/access",
    "core/audience",
    "core/audit",
    "core/dialogue",
    "core/discover",
    "core/lastseen",
    "core/lists",
    "core/results",
    "core/reuse",
    "core/router",
    "core/shapes",
    "core/standing",
    "core/tasks",
    "front/challenges",
    "front/metadata",
    "doctor/crossing",
    "doctor/diagnosis",
    "doctor/findings",
    "doctor/kinds",
    "doctor/text",
    "status",
    "supervisor/line",
    "supervisor/pace",
    "upstream/addresses",
    "upstream/challenges",
    "upstream/discovery",
    "upstream/granted",
    "front/certificates",
    "front/forwarded",
    "front/tokens",
)
IO = {"asyncio", "aiohttp", "redis", "time", "random", "socket", "os", "logging"}

FILES = sorted(path for path in ROOT.rglob("*.py") if path.name != "__init__.py")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


def imported(path: Path) -> Iterator[str]:
    """Yield every module a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "gateway":
                yield from (f"gateway.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_imports_only_along_the_arrows(path: Path) -> None:
    """front -> core -> {cache, upstream} -> {support, config} -> protocol; cli sees config and app."""
    part = name_of(path).split("/")[0]
    allowed = {part, *MAY_IMPORT[part].split()}
    wrong = {
        module
        for module in imported(path)
        if module.split(".")[0] == "gateway" and module.split(".")[1] not in allowed
    }
    assert not wrong, f"gateway/{name_of(path)}.py may not import {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("path", [path for path in FILES if name_of(path).startswith(PURE)], ids=name_of)
def test_a_pure_file_does_no_io(path: Path) -> None:
    """What decides has its clock, its randomness and its store handed in."""
    wrong = {module for module in imported(path) if module.split(".")[0] in IO}
    assert not wrong, f"gateway/{name_of(path)}.py is pure and may not import {', '.join(sorted(wrong))}"


def test_every_pure_file_exists() -> None:
    """A renamed file must not slip out of the purity test."""
    for name in PURE:
        assert (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file(), name


def test_package_files_stay_empty() -> None:
    """A name is imported from where it is defined."""
    assert [path for path in ROOT.rglob("__init__.py") if path.read_text("utf-8").strip()] == []
