"""Runs a server that collects its garbage when told to, so that what memory it keeps can be compared.

`python -m bench.collecting MODULE ARGUMENTS` is `python -m MODULE ARGUMENTS`; on SIGUSR1 it collects and
prints a line.
"""

import gc
import runpy
import signal
import sys


def _collect(*_: object) -> None:
    gc.collect()
    print("collected", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _collect)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
