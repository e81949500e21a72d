"""How the tokens of one issuer are verified: by its signature, or by asking it about each."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from gateway.front.admission import Places
from gateway.front.issuers import Issuer, IssuerDown
from gateway.front.keyset import Key, KeySet, read_keys
from gateway.front.tokens import Proof, Refused, Terms, Token, issued, judge, judge_header
from gateway.protocol.call import Partition
from gateway.support.tasks import Background

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""Seconds in which an issuer that failed several times in a row is asked nothing."""
_IN_A_ROW = 3

_Question: TypeAlias = "asyncio.Task[Mapping[str, object] | IssuerDown]"

_UNREAD = Refused("invalid_token", "The token does not count: it is no signed token")
_UNPROVEN = Refused("invalid_token", "The token does not count: no key of its issuer has signed it")
_KEY_TO_COME = (
    "Whether the token counts cannot be said now, as its key may be newer than those that are known"
)
_INACTIVE = Refused("invalid_token", "The token does not count: its issuer says that it is not active")


@dataclass(frozen=True, slots=True)
class Examined:
    """What an issuer made of being asked, for operators."""

    issuer: str
    said: str
    next: str | None = None
    """What to do; None where all is well."""


class Signed:
    """Verifies JWTs with their issuer's keys."""

    asks = False

    def __init__(
        self, issuer: Issuer, background: Background, clock: Callable[[], float], changed: Callable[[], None]
    ) -> None:
        self.issuer = issuer
        self.name = issuer.name
        self.remember = issuer.settings.remember
        self.keys = KeySet(
            issuer.name,
            issuer.keys,
            ttl=issuer.settings.keys_ttl,
            background=background,
            clock=clock,
            changed=changed,
        )
        self._terms = _terms(issuer)

    def __repr__(self) -> str:
        return repr(self.keys)

    @property
    def status(self) -> Mapping[str, object]:
        """What operators see of it."""
        return self.keys.status

    async def prove(
        self,
        value: str,
        token: Token | None,
        hashed: Partition,
        resource: str,
        now: Callable[[], float],
        places: Places,
    ) -> Proof | Refused:
        """Return whom a token lets in; raises Crowded."""
        if token is None:
            return _UNREAD
        refused = judge_header(token, self.issuer.settings.algorithms)
        if refused is not None:
            return refused
        # What would not count anyway needs no signature, and is no reason to look for keys.
        proof = judge(token.claims, self._terms, resource, now())
        if isinstance(proof, Refused):
            return proof
        try:
            return await self._unsigned(token, places, now) or proof
        except IssuerDown as error:
            return _unavailable(error)

    async def examine(self) -> Examined:
        """Fetch the keys, and say whether tokens can be verified with them."""
        try:
            keys = read_keys(await self.issuer.keys())
        except (IssuerDown, ValueError) as error:
            advice = f"correct authentication.tokens.{self.name}: issuer, jwks_url or tls; or start it"
            return Examined(self.name, f"its keys cannot be fetched: {error}", advice)
        found = {name for key in keys for name in key.fits}
        accepted = [name for name in self.issuer.settings.algorithms if name in found]
        if not accepted:
            advice = f"list what it signs with under authentication.tokens.{self.name}.algorithms"
            signs = f"has keys for {', '.join(sorted(found))}" if found else "has no key that is fit"
            return Examined(self.name, f"it {signs}, and none of that is accepted", advice)
        return Examined(self.name, f"has {len(keys)} key(s), for {', '.join(accepted)}")

    async def _unsigned(self, token: Token, places: Places, now: Callable[[], float]) -> Refused | None:
        """Return why a signature is none of the issuer's, None where it is.

        Of a new token that cannot be said while its key may be newer than the keys: its client would throw
        away a good one.
        """
        keys = await self.keys.keys(token.key, token.algorithm, places)
        if _verified(token, keys):
            return None
        if keys and token.key is not None:
            return _UNPROVEN
        keys, certain = await self.keys.look_again(token.key, token.algorithm, places)
        if _verified(token, keys):
            return None
        if certain or now() - issued(token.claims) > self.keys.age + self._terms.leeway:
            return _UNPROVEN
        return Refused("unavailable", _KEY_TO_COME, max(1.0, self.keys.rest))


class Asked:
    """Asks the issuer about each token, once for all who show it at the same time."""

    asks = True

    def __init__(self, issuer: Issuer, background: Background, clock: Callable[[], float]) -> None:
        self.issuer = issuer
        self.name = issuer.name
        self.remember = issuer.settings.remember
        self._background = background
        self._clock = clock
        self._terms = _terms(issuer)
        self._under_way: dict[Partition, _Question] = {}
        self._failures = 0
        self._pauses_until = 0.0

    def __repr__(self) -> str:
        return f"<Asked {self.name}: {len(self._under_way)} under way, {self._failures} failures>"

    @property
    def status(self) -> Mapping[str, object]:
        """What operators see of it: questions under way, and whether the last one was answered."""
        return {"questions": len(self._under_way), "answers": not self._failures}

    async def prove(
        self,
        value: str,
        token: Token | None,
        hashed: Partition,
        resource: str,
        now: Callable[[], float],
        places: Places,
    ) -> Proof | Refused:
        """Return whom a token lets in; raises Crowded."""
        if self._clock() < self._pauses_until:
            return _unavailable(IssuerDown("it failed a moment ago"))
        try:
            said = await self._answer(value, hashed, places)
        except IssuerDown as error:
            return _unavailable(error)
        if said["active"] is not True:
            return _INACTIVE
        kind = said.get("token_type", "Bearer")
        if not isinstance(kind, str) or kind.lower() not in ("bearer", "access_token"):
            return Refused("invalid_token", "The token does not count: it is no bearer token")
        return judge(said, self._terms, resource, now(), signed=False)

    async def examine(self) -> Examined:
        """Ask about a token that nobody gave out."""
        settings = f"authentication.tokens.{self.name}"
        try:
            said = await self.issuer.introspect(secrets.token_urlsafe(32))
        except IssuerDown as error:
            advice = f"correct {settings}: introspection_url, client_id, client_secret or tls; or start it"
            return Examined(self.name, f"it cannot be asked about tokens: {error}", advice)
        if said["active"] is True:
            advice = f"correct {settings}.introspection_url: whatever that is, it verifies nothing"
            return Examined(self.name, "it calls a token active that was made up", advice)
        return Examined(self.name, "answers questions about tokens")

    async def _answer(self, value: str, hashed: Partition, places: Places) -> Mapping[str, object]:
        """Return what the issuer says; an answer that is not to be remembered is shared with nobody.

        A question takes its place for as long as it is under way: it outlives a client that leaves.
        """
        leave = places()
        task = self._under_way.get(hashed) if self.remember > 0 else None
        if task is None:
            task = self._background.start(self._ask(value), name=f"question to {self.name}")
            self._under_way[hashed] = task
            task.add_done_callback(partial(self._ended, hashed, leave))
            leave = _nothing
        try:
            said = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            said = IssuerDown("the gateway is stopping")
        finally:
            leave()
        if isinstance(said, IssuerDown):
            raise said
        return said

    async def _ask(self, value: str) -> Mapping[str, object] | IssuerDown:
        """Ask once; a failure is everybody's who waits, and none of the task's own."""
        try:
            said = await self.issuer.introspect(value)
        except IssuerDown as error:
            if error.unasked:
                return error
            self._failures += 1
            if self._failures == 1:
                log.warning("issuer %s cannot be asked about tokens: %s", self.name, error)
            if self._failures >= _IN_A_ROW:
                self._pauses_until = self._clock() + _PAUSE
            return error
        if self._failures:
            log.info("issuer %s answers again", self.name)
        self._failures, self._pauses_until = 0, 0.0
        return said

    def _ended(self, hashed: Partition, leave: Callable[[], None], task: _Question) -> None:
        leave()
        if self._under_way.get(hashed) is task:
            del self._under_way[hashed]


def _terms(issuer: Issuer) -> Terms:
    settings = issuer.settings
    return Terms(settings.issuer, tuple(settings.audiences), settings.subject, settings.leeway)


def _nothing() -> None:
    """Leave the place to the question."""


def _verified(token: Token, keys: Sequence[Key]) -> bool:
    return any(key.verifies(token.algorithm, token.signed, token.signature) for key in keys)


def _unavailable(error: IssuerDown) -> Refused:
    reason = "Whether the token counts cannot be said now, as its issuer does not answer"
    return Refused("unavailable", reason, max(1.0, error.retry_after))
