"""Turns an operator's wish to forget something into the changes that make it stale. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core.router import Namespace
from gateway.protocol.call import Change, Partition, UpstreamName
from gateway.protocol.methods import METHODS

_KEPT = frozenset(name for name, row in METHODS.items() if row.cacheable) | {"tools/call"}
_READ = "resources/read"


@dataclass(frozen=True, slots=True)
class Wish:
    """What to forget: of one upstream or of all, one method's results, one resource or everything.

    With a `partition` only what is private to that caller.
    """

    upstream: str | None = None
    method: str | None = None
    uri: str | None = None
    partition: Partition | None = None
    subject: Partition | None = None
    """Who that is, where it was verified: some of it may be kept under that name."""


class NothingToPurge(Exception):
    """The wish names something that is not there; the message says what is."""


def changes(wish: Wish, namespaces: Mapping[UpstreamName, Namespace]) -> tuple[Change, ...]:
    """Return the changes that fulfil a wish; raises NothingToPurge when it cannot be meant.

    A uri may be written as clients see it or as its upstream does. Which of the two is meant is not
    guessed: where both could be, both are forgotten, which costs a fetch and never an old answer.
    """
    if wish.upstream is not None and wish.upstream not in namespaces:
        raise NothingToPurge(f"there is no upstream {wish.upstream[:128]!r}: {', '.join(namespaces)}")
    if wish.method is not None and wish.method not in _KEPT:
        raise NothingToPurge(
            f"nothing is kept of the method {wish.method[:128]!r}: {', '.join(sorted(_KEPT))}"
        )
    names = list(namespaces) if wish.upstream is None else [UpstreamName(wish.upstream)]
    if wish.uri is None:
        whose = dict.fromkeys([wish.partition, wish.subject or wish.partition])
        return tuple(Change(name, wish.method, None, "purge", one) for name in names for one in whose)
    if wish.partition is not None:
        raise NothingToPurge("of one caller a method is forgotten or everything, not a single uri")
    if wish.method not in (None, _READ):
        raise NothingToPurge(f"a uri is forgotten of {_READ} only, not of {wish.method}")
    return tuple(
        Change(name, _READ, uri, "purge") for name in names for uri in _spellings(wish.uri, namespaces[name])
    )


def _spellings(uri: str, namespace: Namespace) -> tuple[str, ...]:
    original = namespace.original_uri(uri)
    return (uri,) if original is None or original == uri else (original, uri)
