"""The authorization server that gives out tokens for one upstream: found once, then asked.

Where it is follows from the configuration or, where that does not say, from the upstream's own metadata. A
credential is shown to the server that was found first, and to no other one later: an upstream cannot have
collected what is meant for the real one. A server that fails is left alone for a while: by one caller alone,
when it was his token on which it failed, until a second caller's fails as well.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway import config
from gateway.protocol.call import UpstreamName
from gateway.protocol.well_known import issuer_places, resource_places
from gateway.support.metrics import Metrics
from gateway.upstream.discovery import (
    Issuer,
    Resource,
    Unfit,
    canonical,
    read_issuer,
    read_resource,
)
from gateway.upstream.egress import Answer, Astray, Egress
from gateway.upstream.failures import NoToken
from gateway.upstream.granted import OF_THE_CLIENT, Denied, Token, read_granted, token_of
from gateway.upstream.proving import Proof
from gateway.upstream.retrying import Pace, retry_after

log = logging.getLogger(__name__)

_KNOWN = 3600.0
"""How long metadata counts, in seconds."""
_TRANSIENT = frozenset({408, 425, 429})
_PACE = Pace(first=1.0, longest=60.0)
_LONGEST_REST = 300.0
_TRIED = 3
"""Authorization servers of an upstream's list that are tried in turn."""
_EACH = 4
"""Requests at once with tokens of one caller: those that hang leave connections to the others."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where to ask, and for what; `until` it is looked for anew."""

    at: Issuer
    resource: str
    scopes: tuple[str, ...]
    until: float


class Rest:
    """How long somebody who failed is left alone: longer each time in a row."""

    def __init__(self, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._clock = clock
        self._random = random
        self._until = 0.0
        self.failures = 0
        """Failures in a row."""
        self.last: NoToken | None = None

    def standing(self) -> NoToken | None:
        """Return the last failure while it is too early to ask anew."""
        return self.last.again() if self.last is not None and self._clock() < self._until else None

    def failed(self, failure: NoToken) -> None:
        """Take note of a failure, and of the pause that was asked for with it."""
        self.failures += 1
        wished = min(failure.retry_after or 0.0, _LONGEST_REST)
        self._until = self._clock() + max(_PACE.pause(self.failures, self._random()), wished)
        self.last = failure.again()

    def over(self) -> None:
        """Take note that it went well."""
        self.failures, self.last = 0, None


class Blame:
    """Tells the server's trouble from one caller's: a token may be such that it fails on it, or hangs."""

    def __init__(self) -> None:
        self._alone: str | None = None

    def is_general(self, whose: str | None) -> bool:
        """Take note of a failure with this caller's token, None = the gateway's own; whether all are to rest.

        One caller never brings that about, however often he fails: it takes a second one since it last went
        well, or since all rested.
        """
        general = whose is None or self._alone not in (None, whose)
        self._alone = None if general else whose
        return general

    def over(self) -> None:
        """Take note that it went well."""
        self._alone = None


class AuthorizationServer:
    """Who is asked for tokens for one upstream."""

    def __init__(
        self,
        name: UpstreamName,
        url: str,
        client: config.TokenClient,
        egress: Egress,
        *,
        metrics: Metrics,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        """Raise ValueError for a key that will not do."""
        self._name = name
        self._url = url
        self._client = client
        self._egress = egress
        self._metrics = metrics
        self._clock = clock
        self._wall_clock = wall_clock
        self._proof = Proof(client, wall_clock)
        self._rest = Rest(clock, random)
        self._blame = Blame()
        self._turns: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()
        self._place: _Place | None = None
        self._hint: str | None = None
        self._wished: tuple[str, ...] = ()
        self._shown_to: str | None = None
        """The issuer to whom this client's credential was shown."""

    def __repr__(self) -> str:
        return f"<AuthorizationServer of {self._name}: {self._place.at.issuer if self._place else 'unknown'}>"

    async def close(self) -> None:
        """Close every connection."""
        await self._egress.close()

    def hear(self, metadata: str | None, scopes: Sequence[str]) -> None:
        """Take note of what an upstream's challenge says: where its metadata is, and what scopes it takes."""
        self._wished = tuple(scopes) or self._wished
        given = self._client.issuer is not None or self._client.token_url is not None
        if given or metadata is None or metadata == self._hint:
            return
        self._hint, self._place = metadata, None
        if self._rest.last is not None and self._rest.last.nowhere:
            self._rest.over()  # now there is somebody who says it

    async def token(
        self,
        grant: Mapping[str, str],
        scopes: Sequence[str] | None,
        *,
        ends: float | None = None,
        unsaid: float | None = None,
        whose: str | None = None,
    ) -> Token:
        """Return a token; raises NoToken, at once while the server is left alone.

        `whose` tells apart the callers whose tokens the grants hold, None = no caller's.

        Without `scopes` it is asked for those of the configuration, of the upstream's challenge or of its
        metadata. `ends` is when the token is over whatever it says, `unsaid` its lifetime if it says none.
        """
        if (standing := self._rest.standing()) is not None:
            raise standing
        shown: str | None = None  # nobody's token, as long as it is only looked for
        try:
            async with asyncio.timeout(self._client.timeout), self._turn(whose):
                place = await self._placed()
                shown = whose
                text, lifetime, now, wanted = await self._got(place, grant, scopes)
        except TimeoutError:
            slow = self._none(f"no answer within {self._client.timeout:g}s", outage=True)
            raise self._failed(slow, shown) from None
        except Astray as error:
            raise self._failed(self._none(error.detail, outage=error.outage), shown) from None
        except Unfit as error:
            raise self._failed(self._none(f"{error}"), shown) from None
        except NoToken as failure:
            raise self._failed(failure, shown) from None
        if self._rest.failures:
            log.info("upstream %s: its authorization server gives out tokens again", self._name)
        self._rest.over()
        self._blame.over()
        self._metrics.upstream_token(self._name, "obtained")
        lifetime = unsaid if lifetime is None else lifetime
        return token_of(text, lifetime, now=now, early=self._client.early, ends=ends, scopes=wanted)

    def _turn(self, whose: str | None) -> asyncio.Semaphore:
        """Return what lets in no more than a few requests of one caller at once."""
        turn = None if whose is None else self._turns.get(whose)
        if turn is None:
            turn = asyncio.Semaphore(_EACH)
            if whose is not None:
                self._turns[whose] = turn
        return turn

    def _failed(self, failure: NoToken, whose: str | None) -> NoToken:
        """Take note of a failure, and leave the server alone if it is not one of a single caller's."""
        if failure.general and self._rest.standing() is not None:
            pass  # it was asked before that: what fails at the same time is one failure
        elif failure.general and not self._blame.is_general(whose):
            failure.general = False
            log.debug("upstream %s: no access token for one caller: %s", self._name, failure.detail)
        elif failure.general:
            self._place = None  # it may have moved
            first = not self._rest.failures
            self._rest.failed(failure)
            log.log(
                logging.WARNING if first and not failure.nowhere else logging.DEBUG,
                "upstream %s: no access token could be had: %s",
                self._name,
                failure.detail,
            )
        if not failure.nowhere:
            self._metrics.upstream_token(self._name, "failed" if failure.outage else "refused")
        return failure

    def _none(self, detail: str, *, outage: bool = False, nowhere: bool = False) -> NoToken:
        return NoToken(self._name, detail, outage=outage, nowhere=nowhere)

    # Asking

    async def _placed(self) -> _Place:
        """Return where to ask, which is looked for if it is not known."""
        place = self._place
        if place is None or self._clock() >= place.until:
            place = self._place = await self._found()
        return place

    async def _got(
        self, place: _Place, grant: Mapping[str, str], scopes: Sequence[str] | None
    ) -> tuple[str, float | None, float, tuple[str, ...]]:
        """Return a token, its lifetime, when it was asked for, and with which scopes."""
        wanted = tuple(self._client.scopes or self._wished or place.scopes if scopes is None else scopes)
        form = {**self._client.parameters, **grant}
        if place.resource:
            form["resource"] = place.resource
        if wanted:
            form["scope"] = " ".join(wanted)
        headers: dict[str, str] = {}
        self._only_one(place.at.issuer)
        self._proof.add(place.at, form, headers)
        now = self._clock()
        answer = await self._egress.post(place.at.token_url, form, headers)
        text, lifetime = self._granted(answer, place.at, grant.get("subject_token"))
        return text, lifetime, now, wanted

    def _only_one(self, issuer: str) -> None:
        """Raise NoToken where a credential would be shown to another server than before (Z-11)."""
        if self._shown_to not in (None, issuer):
            raise self._none("its metadata names another authorization server than before: set `issuer`")
        self._shown_to = issuer

    def _granted(self, answer: Answer, at: Issuer, subject: str | None) -> tuple[str, float | None]:
        """Return a token and its lifetime; `subject` is the caller's token it was asked for with."""
        exchanged = subject is not None
        if answer.status >= 500 or answer.status in _TRANSIENT:
            failure = self._none(f"its authorization server answered HTTP {answer.status}", outage=True)
            failure.retry_after = retry_after(answer.headers.get("Retry-After"), self._wall_clock())
            raise failure
        try:
            granted = read_granted(answer.status, answer.body, exchanged=exchanged, issuer=at.issuer or None)
            if granted[0] == subject:  # which no upstream may see (Z-09)
                raise Denied("no token", "it gave back the caller's own token")
            return granted
        except Denied as denied:
            failure = self._none(f"its authorization server: {denied.detail}")
            # What is said of one caller's token is no word about the server, or about us.
            of_us = not exchanged and denied.error != "invalid_scope"
            failure.general = of_us or denied.error in OF_THE_CLIENT
            raise failure from None

    # Finding

    async def _found(self) -> _Place:
        client, until = self._client, self._clock() + _KNOWN
        if client.token_url is not None:
            at = Issuer(client.issuer or "", client.token_url)
            return _Place(at, self._resource(None), (), until)
        if client.issuer is not None:
            at = await self._issuer(client.issuer)
            return _Place(at, self._resource(None), (), until)
        said = await self._said()
        return _Place(await self._one_of(said.issuers), self._resource(said), said.scopes, until)

    def _resource(self, said: Resource | None) -> str:
        """Return what a token must be for, "" to leave that unsaid."""
        if self._client.resource is not None:
            return self._client.resource
        return canonical(self._url) if said is None else said.resource

    async def _said(self) -> Resource:
        """Return what the upstream's metadata says, wherever it is."""
        places = [*([] if self._hint is None else [self._hint]), *resource_places(self._url)]
        for place in places:
            body = await self._document(place)
            if body is not None:
                return read_resource(body, self._url, self._client.resource)
        raise self._none(
            "its metadata does not say who gives out tokens for it: set `issuer`",
            nowhere=True,
        )

    async def _one_of(self, issuers: Sequence[str]) -> Issuer:
        """Return the first authorization server of a list that can be used, the one that was used before."""
        known = [one for one in issuers if one == self._shown_to]
        failure: Exception | None = None
        for issuer in (known or list(issuers))[:_TRIED]:
            try:
                return await self._issuer(issuer)
            except (Unfit, Astray) as error:
                failure = failure or error
        assert failure is not None
        raise failure

    async def _issuer(self, issuer: str) -> Issuer:
        failure: Unfit | None = None
        for place in issuer_places(issuer):
            body = await self._document(place)
            if body is not None:
                try:
                    return read_issuer(body, issuer)
                except Unfit as error:  # one host may serve the metadata of another at such a place
                    failure = failure or error
        raise failure or Unfit("its authorization server serves no metadata: set `token_url`")

    async def _document(self, url: str) -> bytes | None:
        """Return a document, None where there is none."""
        answer = await self._egress.get(url)
        if answer.status >= 500 or answer.status in _TRANSIENT:
            raise Astray(f"HTTP {answer.status} instead of metadata", outage=True)
        return answer.body if answer.status == 200 else None
