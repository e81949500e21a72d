"""The notebook that all replicas share: facts lie in Redis, sealed, under names that tell nothing.

Each question is one script and one round trip, on nobody's budget: what a client may go on with hangs on it.
One that can be asked twice without harm is, before nobody can tell.
"""

import os
from collections.abc import Collection, Sequence

from gateway.support.notebook import Unavailable, check
from gateway.support.redis import Reply, Script, SharedRedis
from gateway.support.seal import Seal, SealBroken

_PURPOSE = "note"
_ATTEMPTS = 3
_TOKEN = 8

_PRELUDE = """
local key = KEYS[1]
if redis.call('TYPE', key).ok ~= 'hash' then redis.call('DEL', key) end
"""

WRITE = Script(
    "note-write",
    _PRELUDE
    + """
    redis.call('DEL', key)
    redis.call('HSET', key, 'v', ARGV[1])
    redis.call('PEXPIRE', key, ARGV[2])
    return {1}
    """,
)
READ = Script(
    "note-read",
    _PRELUDE
    + """
    local found = redis.call('HGET', key, 'v')
    if not found then return {} end
    if tonumber(ARGV[1]) > 0 then redis.call('PEXPIRE', key, ARGV[1]) end
    return {found}
    """,
)
ADD = Script(
    "note-add",
    _PRELUDE
    + """
    if redis.call('EXISTS', key) == 1 then
      return {redis.call('HGET', key, 't') == ARGV[3] and 1 or 0}
    end
    redis.call('HSET', key, 'v', ARGV[1], 't', ARGV[3])
    redis.call('PEXPIRE', key, ARGV[2])
    return {1}
    """,
)
"""Writes where nothing is; whoever asks again, not knowing how that went, is known by a token."""

ERASE = Script("note-erase", "return {redis.call('DEL', KEYS[1])}")
INCLUDE = Script(
    "note-include",
    _PRELUDE
    + """
    local more, value = 0, redis.call('HGET', key, 'v')
    for i = 3, #ARGV, 2 do
      if value or not redis.call('HGET', key, ARGV[i]) then more = more + 1 end
    end
    local there = value and 0 or redis.call('HLEN', key)
    if there + more > tonumber(ARGV[2]) then return {0} end
    if value and more > 0 then redis.call('DEL', key) end
    for i = 3, #ARGV, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
    if there + more > 0 then redis.call('PEXPIRE', key, ARGV[1]) end
    return {1}
    """,
)
EXCLUDE = Script(
    "note-exclude",
    _PRELUDE
    + """
    if redis.call('HGET', key, 'v') then return {0} end
    for i = 1, #ARGV do redis.call('HDEL', key, ARGV[i]) end
    return {1}
    """,
)
MEMBERS = Script(
    "note-members",
    _PRELUDE
    + """
    if redis.call('HGET', key, 'v') then return {} end
    if tonumber(ARGV[1]) > 0 then redis.call('PEXPIRE', key, ARGV[1]) end
    return redis.call('HVALS', key)
    """,
)


class RedisNotebook:
    """Facts live as long as they are meant to, unless Redis loses them: then they are absent.

    How many there are is bounded by their ttl, by what whoever notes them counts, and by Redis's memory.
    """

    def __init__(self, redis: SharedRedis, seal: Seal, *, prefix: str) -> None:
        self._redis = redis
        self._seal = seal.apart()[-1]  # that of the names, which all who find this have
        self._prefix = prefix

    def __repr__(self) -> str:
        return f"<RedisNotebook {self._redis!r}>"

    async def write(self, kind: str, key: bytes, value: bytes, ttl: float) -> None:
        where = self._where(kind, key)
        await self._ask(WRITE, where, [self._sealed(where, value), _ms(ttl)])

    async def read(self, kind: str, key: bytes, *, renew: float | None = None) -> bytes | None:
        where = self._where(kind, key)
        found = await self._ask(READ, where, [_ms(renew)])
        return self._opened(where, found[0]) if found else None

    async def add(self, kind: str, key: bytes, value: bytes, ttl: float) -> bool:
        where = self._where(kind, key)
        token = os.urandom(_TOKEN)
        return bool((await self._ask(ADD, where, [self._sealed(where, value), _ms(ttl), token]))[0])

    async def erase(self, kind: str, key: bytes) -> bool:
        # Not asked twice: that it is gone would not say by whom.
        return bool((await self._ask(ERASE, self._where(kind, key), [], attempts=1))[0])

    async def include(
        self, kind: str, key: bytes, members: Collection[bytes], ttl: float, *, most: int
    ) -> bool:
        where = self._where(kind, key)
        arguments: list[bytes | str | int] = [_ms(ttl), most]
        for member in frozenset(members):
            arguments += [self._name(where, member), self._sealed(where, member)]
        return bool((await self._ask(INCLUDE, where, arguments))[0])

    async def exclude(self, kind: str, key: bytes, members: Collection[bytes]) -> None:
        where = self._where(kind, key)
        await self._ask(EXCLUDE, where, [self._name(where, member) for member in members])

    async def members(self, kind: str, key: bytes, *, renew: float | None = None) -> frozenset[bytes]:
        where = self._where(kind, key)
        found = await self._ask(MEMBERS, where, [_ms(renew)])
        return frozenset(member for one in found if (member := self._opened(where, one)) is not None)

    async def _ask(
        self, script: Script, where: str, arguments: Sequence[bytes | str | int], *, attempts: int = _ATTEMPTS
    ) -> Reply:
        # Where the last question had no answer one is enough, lest everybody waits longer in an outage.
        for _ in range(attempts if self._redis.answers else 1):
            answer = await self._redis.run(script, [where], arguments, urgent=True)
            if answer is not None:
                return answer
        raise Unavailable("redis does not answer")

    def _where(self, kind: str, key: bytes) -> str:
        return f"{self._prefix}:1:note:{self._seal.name(f'{_PURPOSE} {kind}', key).hex()}"

    def _name(self, where: str, member: bytes) -> bytes:
        return b"m" + self._seal.name(f"{_PURPOSE} member", where.encode() + b"\0" + member)

    def _sealed(self, where: str, fact: bytes) -> bytes:
        check(fact)
        return self._seal.encrypt(_PURPOSE, fact, bound_to=where.encode())

    def _opened(self, where: str, sealed: bytes) -> bytes | None:
        """Return what was noted, None for what is none of ours."""
        try:
            return self._seal.decrypt(_PURPOSE, sealed, bound_to=where.encode())
        except SealBroken:
            return None


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else max(1, int(seconds * 1000))
