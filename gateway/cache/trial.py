"""Tries with a Redis all that replicas need of it, beside whatever they do there, and says what is refused.

The scripts are those that serve requests, the names begin as theirs do and belong to nobody, so the same
rights and the same memory are asked for and no replica hears or waits. Whatever was written is taken away
again, and would expire by itself.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from redis.asyncio.client import PubSub
from redis.exceptions import AuthenticationError, ResponseError

from gateway.cache.leads import LEAD, RELEASE, SCOPE
from gateway.cache.redis_generations import ADVANCE, SYNC
from gateway.cache.redis_store import DELETE, GET, PUT
from gateway.support.bus import ANNOUNCE, CONFIRM, ENROL, RESIGN, TELL
from gateway.support.leases import SHARE
from gateway.support.rates import TAKE
from gateway.support.redis import PING, Reply, Script, SharedRedis
from gateway.support.redis_mailbox import PUBLISH
from gateway.support.redis_notebook import ADD, ERASE, EXCLUDE, INCLUDE, MEMBERS, READ, WRITE

_TELL = "tell other replicas of changes"
_LIFE_MS = 10_000
_WORD = b"a word of a trial"
_DIGEST = b"0123456789abcdef"
_COMMAND = re.compile(r"permissions to run the '([a-z|]+)'")
_MAY_NOT = re.compile(r"can't run this command|(?i:ACL failure|no permissions)")
_LINE = re.compile(r"@?user_script:([0-9]+)")
_CALL = re.compile(r"redis\.call\('([A-Z]+)'")
_LOGIN = re.compile(r"(?i)NOAUTH|WRONGPASS|invalid (username-)?password|authentication required")
_SCRIPTED = re.compile(r",? ?script: [0-9a-f]{40}.*$")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason why nothing is cached: what it keeps the gateway from doing, and what to do about it."""

    doings: tuple[str, ...]
    said: str
    advice: str
    answered: bool
    """Whether it was Redis that refused; else there was no answer."""


class _Refused(Exception):
    """A step did not go well."""

    def __init__(self, doing: str, error: Exception, script: Script | None = None) -> None:
        super().__init__(str(error))
        self.doing = "in" if _shut_out(error) else doing
        self.error = error
        self.script = script


async def attempt(redis: SharedRedis, *, prefix: str, patience: float) -> list[Refusal]:
    """Return what a Redis refuses of what the gateway needs; no step takes longer than `patience` seconds."""
    found: dict[tuple[str, str, bool], list[str]] = {}
    async with aclosing(_Trial(redis, prefix, patience).run()) as refused:
        async for one in refused:
            said, answered = _said(one.error, patience), _answered(one.error)
            found.setdefault((said, _advice(one.error, one.script, prefix), answered), []).append(one.doing)
    return [
        Refusal(tuple(dict.fromkeys(doings)), said, advice, answered)
        for (said, advice, answered), doings in found.items()
    ]


class _Trial:
    def __init__(self, redis: SharedRedis, prefix: str, patience: float) -> None:
        name = os.urandom(8).hex()
        slot = f"{prefix}:1:{{trial:{name}}}"
        self._redis = redis
        self._patience = patience
        self._counts, self._entry, self._lead = f"{slot}:counts", f"{slot}:entry", f"{slot}:lead"
        self._scope, self._members, self._told = f"{slot}:scope", f"{slot}:replicas", f"{slot}:told"
        self._lease = [f"{slot}:lease:{part}" for part in ("lease", "members", "words")]
        self._notes = [f"{slot}:note:{what}" for what in ("fact", "facts")]
        self._rate = f"{prefix}:1:rate:trial:{name}"
        self._channel = f"{prefix}:1:bus:trial:{name}"
        self._me = name

    async def run(self) -> AsyncGenerator[_Refused]:
        """Yield what is refused; no answer at all ends it, what is refused hinders no other part."""
        parts = (self._answer, self._hear, self._keep, self._take_turns, self._hold, self._note, self._count)
        for part in parts:
            try:
                await part()
            except _Refused as refused:
                yield refused
                if part == self._answer or not _answered(refused.error):
                    return
        for left in await self._clean_up():
            yield left

    async def _answer(self) -> None:
        await self._step("run scripts", PING, [self._counts])

    async def _hear(self) -> None:
        doing = "hear what replicas tell each other"
        async with self._listening(doing) as link:
            keys = [self._members, self._told]
            own = f"{self._channel}:{self._me}"
            said: tuple[tuple[str, Script, list[str], list[bytes | str | int]], ...] = (
                (self._channel, TELL, [self._channel], [_WORD]),
                (own, CONFIRM, [own], [_WORD]),
                (own, PUBLISH, [self._told], [own, _WORD]),
                (own, ENROL, keys, [own, _WORD, self._me, _LIFE_MS, _LIFE_MS]),
                (self._channel, ANNOUNCE, keys, [self._channel, _WORD, _LIFE_MS]),
            )
            for channel, script, where, arguments in said:
                await self._step(_TELL, script, where, arguments)
                await self._heard(doing, link, channel)
            await self._step(_TELL, RESIGN, [self._members], [self._me])

    async def _keep(self) -> None:
        doing, keys = "keep results", [self._entry, self._counts]
        (count, *_) = await self._step("count changes", SYNC, [self._counts], [0])
        (now, *_) = await self._step(doing, GET, keys)
        kept = await self._step(doing, PUT, keys, [_WORD, int(count), _DIGEST, _LIFE_MS, int(now), 0])
        found = await self._step(doing, GET, keys)
        if kept[-1] != 1 or len(found) < 4 or found[3] != _WORD:
            raise _Refused(doing, _Odd("what was written was gone at once"))
        await self._step("count changes", ADVANCE, [self._counts], [int(count), 1000, _DIGEST])
        await self._step("forget results", DELETE, [self._entry])

    async def _take_turns(self) -> None:
        doing = "let one replica fetch for all"
        await self._step(doing, LEAD, [self._lead], [self._me, _LIFE_MS])
        await self._step(doing, SCOPE, [self._scope])
        await self._step(doing, RELEASE, [self._lead, self._scope], [self._me, "public", _LIFE_MS])

    async def _hold(self) -> None:
        doing, words = "let one replica listen for all", (_WORD, _WORD, b"", b"", b"")
        await self._step(doing, SHARE, self._lease, [self._me, _LIFE_MS, "hold", *words])
        await self._step(doing, SHARE, self._lease, [self._me, _LIFE_MS, "leave", *words])

    async def _note(self) -> None:
        doing, (fact, facts) = "note what older clients need", self._notes
        await self._step(doing, ADD, [fact], [_WORD, _LIFE_MS, self._me])
        await self._step(doing, WRITE, [fact], [_WORD, _LIFE_MS])
        await self._step(doing, INCLUDE, [facts], [_LIFE_MS, 2, b"one", _WORD, b"two", _WORD])
        await self._step(doing, EXCLUDE, [facts], [b"two"])
        found = await self._step(doing, READ, [fact], [_LIFE_MS])
        members = await self._step(doing, MEMBERS, [facts], [_LIFE_MS])
        await self._step(doing, ERASE, [fact])
        if [*found, *members] != [_WORD, _WORD]:
            raise _Refused(doing, _Odd("what was written was gone at once"))

    async def _count(self) -> None:
        doing, most = "count requests for all replicas", 10_000_000
        first = await self._step(doing, TAKE, [self._rate], [most, most])
        again = await self._step(doing, TAKE, [self._rate], [most, most])
        if first != [0] or again == [0]:
            raise _Refused(doing, _Odd("what was counted was gone at once"))

    async def _clean_up(self) -> list[_Refused]:
        refused = []
        names = (self._entry, self._counts, self._lead, self._scope, self._members, self._told)
        for name in (*names, *self._lease, *self._notes, self._rate):
            try:
                await self._step("forget results", DELETE, [name])
            except _Refused as one:
                refused.append(one)
                if not _answered(one.error):
                    break
        return refused

    async def _step(
        self, doing: str, script: Script, keys: Sequence[str], arguments: Sequence[bytes | str | int] = ()
    ) -> Reply:
        answer = await self._redis.ask(script, keys, arguments, patience=self._patience)
        if isinstance(answer, Exception):
            raise _Refused(doing, answer, script)
        return answer

    @asynccontextmanager
    async def _listening(self, doing: str) -> AsyncIterator[PubSub]:
        link = None
        try:
            try:
                async with asyncio.timeout(self._patience):
                    link = await self._redis.listener(near=self._told)
                    waiting = {self._channel, f"{self._channel}:{self._me}"}
                    await link.subscribe(*waiting)
                    while waiting:
                        message = await link.get_message(timeout=self._patience)
                        if message is not None and message["type"] == "subscribe":
                            waiting.discard(message["channel"].decode())
            except Exception as error:  # whatever the client library raises
                raise _Refused(doing, error) from None
            yield link
        finally:
            if link is not None:
                await link.aclose()  # type: ignore[no-untyped-call] # waits for nobody

    async def _heard(self, doing: str, link: PubSub, channel: str) -> None:
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    message = await link.get_message(timeout=self._patience)
                    if message is not None and message["channel"].decode() == channel:
                        return
        except TimeoutError:
            said = f"what was published was not heard in {self._patience:g}s"
            raise _Refused(doing, _Odd(said)) from None
        except Exception as error:  # whatever the client library raises
            raise _Refused(doing, error) from None


class _Odd(ResponseError):
    """Redis refused nothing, and did not do what was asked."""


def _answered(error: Exception) -> bool:
    return isinstance(error, ResponseError) or _shut_out(error)


def _shut_out(error: Exception) -> bool:
    """Whether the user or the password will not do; the library calls that one thing or another."""
    return isinstance(error, AuthenticationError) or _LOGIN.search(str(error)) is not None


def _said(error: Exception, patience: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {patience:g}s"
    words = _SCRIPTED.sub("", str(error)).strip().rstrip(".")
    return (words if isinstance(error, _Odd) else f"{type(error).__name__}: {words}")[:200]


def _lacking(error: Exception, script: Script | None) -> list[str]:
    """Return the commands that the user may not use; of a script it is only said in which line it failed."""
    if (named := _COMMAND.search(str(error))) is not None:
        return [named[1]]
    line = _LINE.search(str(error))
    if script is None or line is None or not _MAY_NOT.search(str(error)):
        return []
    return [name.lower() for name in _CALL.findall(script.text.splitlines()[int(line[1]) - 1])]


def _advice(error: Exception, script: Script | None, prefix: str) -> str:
    """Return which right, setting or address is missing; servers before 7 say it inside a longer text."""
    words = f"{type(error).__name__} {error}"
    lacks = "give the user in cache.redis the right"
    if commands := _lacking(error, script):
        return f"{lacks} {' '.join(f'+{command}' for command in commands)}"
    if re.search(r"(?i)permission.*\bchannel", words):
        return f"{lacks} &{prefix}:1:bus:*"
    if re.search(r"(?i)permission.*\bkey", words):
        return f"{lacks} ~{prefix}:1:*"
    if _shut_out(error):
        return "correct the user and the password in cache.redis"
    if re.search(r"ReadOnlyError|READONLY", words):
        return "it only copies another: write that one's address in cache.redis, or that of its Sentinels"
    if re.search(r"OutOfMemoryError|OOM ", words):
        return "it is full: raise its maxmemory, or set a maxmemory-policy that evicts, as allkeys-lru"
    if "MISCONF" in words:
        return "it cannot save to its disk: see its log"
    if isinstance(error, _Odd):
        return "see whether it is about to run out of memory, and what stands between it and the gateway"
    if _answered(error):
        return "see its log; docs/configuration.md lists the rights that the gateway needs"
    return "start it, or correct cache.redis"
