"""Who may be meant by what a server says on a channel without saying to whom. No clock, no wire.

Log messages of older servers and of programs name no request, nor do errors without an id. Where one caller
alone ever made calls over a channel, they are of his calls; where several did, nobody can tell, and a word
that comes late is about a call that is over. So then they are nobody's.
"""

from collections.abc import Collection, Iterable
from typing import Protocol, TypeVar

from gateway.protocol.call import Request
from gateway.protocol.methods import LEGACY_METHODS, METHODS

UNNAMED = "an error that names no request"
"""What a call fails with that may be meant by one; its words may be for another caller."""

_OF_NOBODY = frozenset({"discover", "list", "listen"})
"""Kinds of requests that hold nothing of a caller's: the gateway makes them for itself, too."""


class UnderWay(Protocol):
    """A call that has not ended."""

    @property
    def request(self) -> Request: ...


C = TypeVar("C", bound=UnderWay)


class Company:
    """The callers whose calls went over one channel since it began."""

    def __init__(self) -> None:
        self._caller: str | None = None
        self._several = False

    def __repr__(self) -> str:
        known = "nobody" if self._caller is None else "one that is unknown" if not self._caller else "one"
        return f"<Company {'several' if self._several else known}>"

    def join(self, request: Request) -> None:
        """Note whose a request is."""
        if not _of_somebody(request):
            return
        caller = _caller(request)
        self._several = self._several or self._caller not in (None, caller)
        self._caller = caller

    def only(self, calls: Iterable[C], among: Collection[C]) -> C | None:
        """Return the one of these calls that must be meant; `among` are all that are under way.

        Callers without a credential may be several: theirs is meant where it is alone.
        """
        found = list(calls)
        if len(found) != 1 or self._several:
            return None
        if not self._caller and sum(_of_somebody(call.request) for call in among) > 1:
            return None
        return found[0]


def _caller(request: Request) -> str:
    return request.context.caller or ("alone" if request.context.alone else "")


def _of_somebody(request: Request) -> bool:
    known = METHODS.get(request.method)
    return request.method not in LEGACY_METHODS and (known is None or known.kind not in _OF_NOBODY)
