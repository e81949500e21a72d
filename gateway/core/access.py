"""Answers whether a tool may be seen and called, and what a method is: lists of shell globs."""

import re
from fnmatch import translate
from functools import lru_cache

from gateway.config import ToolRules


def allowed(name: str, rules: ToolRules) -> bool:
    """Whether some allow pattern and no deny pattern matches the whole name, case-sensitively (E-32).

    Rules of an upstream are about original names, rules of an endpoint about exposed ones; the caller
    hands in the one that goes with the rules.
    """
    return matches(name, rules.allow) and not (rules.deny and matches(name, rules.deny))


def matches(name: str, patterns: list[str]) -> bool:
    """Whether one of the patterns fits the whole name, case-sensitively (E-32)."""
    return "*" in patterns or any(_glob(pattern).match(name) for pattern in patterns)


# fnmatch keeps its own compiled patterns, but only 256 of them; a reload replaces ours by use.
@lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
