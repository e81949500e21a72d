"""Lets `python -m gateway` be the console script."""

import sys

from gateway.cli import main

if __name__ == "__main__":
    sys.exit(main())
