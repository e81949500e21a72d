"""The console script `mcp-gateway`: ready for signals before anything is imported that takes its time."""

import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.commands.application import App


def main(argv: Sequence[str] | None = None, *, app: "App | None" = None) -> int:
    """Run one command and return its exit code; raises SystemExit for wrong usage, as argparse does."""
    if argv is None and sys.argv[1:2] in (["serve"], ["stdio"]):
        _bear_early_signals()
    from gateway.commands import choosing

    return choosing.run(argv, app)


def _bear_early_signals() -> None:
    """Let no signal end a gateway that is about to start, as they are for one that serves.

    What SIGHUP would have it read is read soon enough: at its start, or when it sees that the file changed.
    """
    for name in ("SIGHUP", "SIGUSR2"):
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, lambda *_: None)  # and not SIG_IGN, which programs would inherit
