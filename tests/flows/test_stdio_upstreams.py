"""Servers that are programs, behind the whole gateway: both eras, their ends, their noise, their sizes."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.kin import MARK
from tests.support.running import running

SERVER = Path(__file__).parents[1] / "support" / "programs" / "server.py"


def program(*arguments: str, text: str = "none", **members: Any) -> Mapping[str, Any]:
    """Return the settings of the scripted program with these manners."""
    return {"command": sys.executable, "args": [str(SERVER), *arguments], "env": {MARK: text}, **members}


MANNERS = {
    "modern": (),
    "legacy": ("--era", "legacy"),
    "both": ("--era", "both"),
    "one that ends at an opener it does not know": ("--era", "legacy", "--dies-on-unknown"),
    "one that takes its probe late": ("--late",),
    "noisy": ("--junk", "--stderr", "300000"),
    "noisy and legacy": ("--era", "legacy", "--junk", "--stderr", "300000"),
    "ids last": ("--id-last",),
}


@pytest.mark.parametrize("manners", MANNERS.values(), ids=MANNERS)
async def test_a_client_sees_a_program_as_any_server(manners: tuple[str, ...]) -> None:
    """Whatever it speaks, and whatever else it writes (U-19, B14, B28)."""
    async with running({"files": program(*manners, timeout="2s")}) as gateway:
        listed = await gateway.ask("tools/list")
        assert "files__echo" in listed.names
        assert listed.hints[1] == "private" or manners in (
            (),
            ("--era", "both"),
            ("--late",),
            MANNERS["noisy"],
            ("--id-last",),
        )
        answer = await gateway.ask("tools/call", {"name": "files__echo", "arguments": {"text": "né"}})
        assert answer.text["arguments"] == {"text": "né"}
        assert answer.result["resultType"] == "complete"
