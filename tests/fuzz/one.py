"""One target in a process of its own, under atheris: `python -m tests.fuzz.one TARGET [OPTION...]`.

What the code under test branches on leads the search; atheris sees that in modules that are imported here.
"""

import sys

import atheris

with atheris.instrument_imports(include=["gateway"], enable_loader_override=False):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Feed the target until libFuzzer has had enough."""
    name, *options = sys.argv[1:]
    atheris.Setup([name, *options], TARGETS[name].check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
