"""Reads what a WWW-Authenticate header says of a credential that was refused. No I/O."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_PART = re.compile(
    r"""[ \t,]*
    (?:(?P<key>[A-Za-z0-9!#$%&'*+.^_`|~-]+)[ \t]*=[ \t]*
        (?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[A-Za-z0-9!#$%&'*+.^_`|~-]+))(?=[ \t]*(?:,|$))
    |(?P<scheme>[A-Za-z0-9!#$%&'*+.^_`|~-]+)
        (?:[ ]+(?P<token>[A-Za-z0-9._~+/-]+=*)(?=[ \t]*(?:,|$)))?(?=[ \t,]|$))""",
    re.VERBOSE,
)
# RFC 6749 appendix A: what may stand in error and scope. Anything else could break out of our own header.
_SAFE = re.compile(r"[\x20\x21\x23-\x5b\x5d-\x7e]{1,1024}")
_URL = re.compile(r"https?://[\x21\x23-\x5b\x5d-\x7e]{1,2000}")


class Bearer(NamedTuple):
    """What the Bearer challenge of a refusal says, if there is one."""

    error: str | None = None
    scope: str | None = None
    metadata: str | None = None
    """Where the resource's metadata is (RFC 9728)."""


def read_challenge(values: Iterable[str]) -> Bearer:
    """Return what the first Bearer challenge in these WWW-Authenticate values says."""
    for text in values:
        bearer = _bearer_params(text[:8192])
        if bearer is not None:
            url = bearer.get("resource_metadata")
            found = url if url is not None and _URL.fullmatch(url) else None
            return Bearer(_safe(bearer.get("error")), _safe(bearer.get("scope")), found)
    return Bearer()


def _bearer_params(text: str) -> dict[str, str] | None:
    found: dict[str, str] | None = None
    scheme = ""
    at = 0
    while at < len(text) and (part := _PART.match(text, at)):
        at = part.end()
        if part["scheme"]:
            if found is not None:
                break
            scheme = part["scheme"].lower()
            if scheme == "bearer":
                found = {}
        elif found is not None:
            written = part["plain"] if part["quoted"] is None else re.sub(r"\\(.)", r"\1", part["quoted"])
            found.setdefault(part["key"].lower(), written)
    return found


def _safe(text: str | None) -> str | None:
    return text if text is not None and _SAFE.fullmatch(text) else None
