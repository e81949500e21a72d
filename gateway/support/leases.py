"""Of all replicas one holds a thing, the others say what they want of it and hear what the holder says of it.

A lease lies in Redis, lives for seconds and is renewed well within them. Beside it lie the words of all who
care for the thing, each for as long as its replica shows itself. A replica that loses sight of the others
acts for itself, as though it were the only one, and gives way once it hears a holder who serves it: so nobody
is ever without, and for a while there may be more than one. Only `holds` tells that one is the holder, by
one's own clock: a process that slept through its lease knows so before it speaks in the others' name.
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from hashlib import sha256
from math import inf
from typing import Any, Literal, TypeAlias

from gateway.support.bus import Bus
from gateway.support.redis import Reply, Script, SharedRedis
from gateway.support.seal import Seal, SealBroken
from gateway.support.tasks import Background, happens

log = logging.getLogger(__name__)

Standing: TypeAlias = Literal["asking", "mine", "another's", "alone"]
"""Whose the thing is: not known yet, ours by lease, another's whom we hear, or ours since we hear nobody."""

_PURPOSE = "lease"
_TOPIC = "leases"
_STIR, _AGAIN = b"s", b"a"
"""Something changed; somebody's words cannot be read, so everybody is to say his own again."""

_SOON = 0.05
_WHILE = 0.25
_BREATH = 0.02
"""Seconds between two questions at least, however often something changes."""
_LARGEST = 2**52
_MOST_UNHEARD = 64

SHARE = Script(
    "share",
    f"""
    local t = redis.call('TIME')
    local us = t[1] * 1000000 + t[2]
    local now = math.floor(us / 1000)
    local lease, members, words = KEYS[1], KEYS[2], KEYS[3]
    local me, life, aim = ARGV[1], tonumber(ARGV[2]), ARGV[3]
    local wish, grants, have, heard, confirm = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
    for i, kind in ipairs({{'hash', 'zset', 'hash'}}) do
      if redis.call('TYPE', KEYS[i]).ok ~= kind then redis.call('DEL', KEYS[i]) end
    end
    local changed, lost, wished, granted = false, 0, false, false
    local by = redis.call('HGET', lease, 'by')
    local till = tonumber(redis.call('HGET', lease, 'till')) or 0
    if by and (till <= now or till > now + life) then by = false end
    if aim == 'hold' and (not by or by == me) then
      if redis.call('HGET', lease, 'by') ~= me then
        changed = true
        redis.call('HDEL', lease, 'word', 'said', 'read')
        heard, confirm = '', ''
      end
      by, till = me, now + life
      redis.call('HSET', lease, 'by', by, 'till', string.format('%.0f', till))
    elseif redis.call('HGET', lease, 'by') == me then
      redis.call('HDEL', lease, 'by', 'till', 'word', 'said', 'read')
      by, changed = false, true
    end
    for _, gone in ipairs(redis.call('ZRANGEBYSCORE', members, '-inf', now)) do
      redis.call('ZREM', members, gone)
      redis.call('HDEL', words, gone, 'v' .. gone)
      changed = true
    end
    if aim == 'leave' then
      redis.call('ZREM', members, me)
      redis.call('HDEL', words, me, 'v' .. me)
      changed = true
    else
      redis.call('ZADD', members, now + 2 * life, me)
      if wish ~= '' then
        redis.call('HSET', words, me, wish)
        changed, wished = true, true
      elseif not redis.call('HGET', words, me) then
        lost = 1
      end
      if by == me and grants ~= '' then
        redis.call('HSET', lease, 'word', grants)
        changed, granted = true, true
      elseif by == me and not redis.call('HGET', lease, 'word') then
        lost = 1
      end
    end
    local version = redis.call('HGET', lease, 'version')
    local number = tonumber(version)
    if not number or number > {_LARGEST} then number = 0 end
    if changed or number == 0 then
      number = math.max(us, number + 1)
      version = string.format('%.0f', number)
      redis.call('HSET', lease, 'version', version)
    end
    if wished then redis.call('HSET', words, 'v' .. me, version) end
    if granted then redis.call('HSET', lease, 'said', version) end
    if by == me and confirm ~= '' then
      redis.call('HSET', lease, 'read', confirm)
      changed = true
    end
    for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], 4 * life) end
    local read = tonumber(redis.call('HGET', lease, 'read'))
    if not by or not read or read > number then read = 0 end
    local said = by and redis.call('HGET', lease, 'said') or ''
    local news = by and by ~= me and said ~= have and redis.call('HGET', lease, 'word') or ''
    local answer = {{by == me and 1 or 0, by and till - now or -1, changed and 1 or 0, lost, version}}
    for _, each in ipairs({{string.format('%.0f', read), said, news}}) do table.insert(answer, each) end
    if by == me then
      local since = tonumber(heard) or -1
      for _, who in ipairs(redis.call('ZRANGEBYSCORE', members, '(' .. now, '+inf')) do
        if who ~= me then
          local at = tonumber(redis.call('HGET', words, 'v' .. who))
          local new = not at or at > since or at > {_LARGEST}
          table.insert(answer, who)
          table.insert(answer, new and 1 or 0)
          table.insert(answer, new and redis.call('HGET', words, who) or '')
        end
      end
    end
    return answer
    """,
)
"""Takes, renews or frees a lease, and answers whether it is ours, for how long it is anybody's, whether there
is anything new for the others, whether something of ours is lost, the version of all that is said, up to
which version the holder has read what the others want, which version what the holder says is of and, where
that is another than we `have`, what it is. The holder is told who else there is, and what each wants that he
has not `heard`; once he has taken it in he says so with the next question.

A lease that ends later than it could is of a clock that was set back, and nobody's.
"""


class Lease:
    """One replica's view of one thing, kept up to date by a task of its own."""

    def __init__(
        self,
        key: str,
        leases: "Leases",
        *,
        wish: Callable[[], bytes],
        changed: Callable[[], None],
        missed: Callable[[], None],
        suffices: Callable[[bytes], bool],
    ) -> None:
        """`wish` returns what we want of whoever holds it, `suffices` says whether what he grants is enough.

        `changed` is called when anything here is another, `missed` when something may not have been heard.
        """
        self.standing: Standing = "asking"
        self.word: bytes | None = None
        """What the holder says, when that is another replica and it has said something."""
        self.others: Collection[bytes] = ()
        """What the others want, for who holds it."""
        self._key = key
        self._leases = leases
        self._wish = wish
        self._changed = changed
        self._missed = missed
        self._suffices = suffices
        self._me = os.urandom(8).hex()
        self._wants = False
        self._left = False
        self._grants = b""
        self._wish_stored = self._grants_stored = False
        self._stored = b""
        """The digest of our wish as it lies in Redis."""
        self.wishes = 0
        """How often something else was wanted here."""
        self._heard_wishes = -1
        """Which of those wishes the holder has heard, and with them all before."""
        self._unheard: deque[tuple[int, int]] = deque()
        """Wishes that were stored and that the holder may not have read, with the version of each."""
        self._news = False
        """Whether anything was read since `changed` was called."""
        self._version = 0
        self._said = b""
        """The version of `word`."""
        self._told: dict[bytes, bytes] | None = None
        """What each of the others wants, None for who does not hold it."""
        self._confirms = False
        """Whether others wait to hear that we have read what they want."""
        self._until = 0.0
        """Until when it is surely ours, by our clock, if it is."""
        self._sound = leases.clock()
        """When we last saw Redis and heard the bus."""
        self._session: int | None = None
        self._term: asyncio.Timeout | None = None
        self._moved = asyncio.Event()
        """Set and replaced with every change of standing."""
        self._stir = asyncio.Event()
        self._asking = asyncio.Lock()
        self._asked_again = -inf
        self._task = leases.background.start(self._keep(), name="keep a lease")

    def __repr__(self) -> str:
        return f"<Lease {self.standing}, {len(self.others)} others>"

    @property
    def holds(self) -> bool:
        """Whether nobody else can be the holder now."""
        return self.standing == "mine" and self._leases.clock() < self._until

    def wish(self) -> None:
        """Let the holder know that we want something else."""
        self.wishes += 1
        self._wish_stored = False
        self._stir.set()

    def heard(self, wish: int) -> bool:
        """Whether the holder knows all that was wanted when so many wishes had been made."""
        return self._heard_wishes >= wish

    def grant(self, text: bytes) -> None:
        """Let the others know what they get of us, should we be the holder."""
        if text != self._grants:
            self._grants, self._grants_stored = text, False
            self._stir.set()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until the thing is ours, by lease or for want of others; what runs inside ends with that."""
        self._wants = True
        self._stir.set()
        try:
            while not self._acts:
                await self._moved.wait()
            async with asyncio.timeout(None) as self._term:
                yield
        except TimeoutError:
            if self._term is None or not self._term.expired():
                raise
        finally:
            self._term = None
            self._wants = False
            self._stir.set()

    def stir(self, *, again: bool = False) -> None:
        """Look anew, now; `again` to say what was said once more."""
        if again:
            self._not_stored()
        self._stir.set()

    async def close(self) -> None:
        """Let go of it at once, for others to have."""
        if self._left:
            return
        self._left = True
        self._leases.forget(self._key, self)
        async with self._asking:  # or a question under way might take it once more
            self._task.cancel()
        answer = await self._ask("leave")
        if answer is not None:
            await self._leases.poke(self._key, _STIR)

    @property
    def _acts(self) -> bool:
        return self.standing in ("mine", "alone")

    # Staying in touch

    async def _keep(self) -> None:
        while True:
            self._stir.clear()
            try:
                pause = await self._look()
                if self._confirms:  # somebody waits for it
                    pause = await self._look()
                if self._confirms:
                    self._stir.set()
            except Exception:  # a bug must not leave it to nobody
                log.exception("a lease could not be looked at")
                pause = self._leases.life / 10
            await asyncio.sleep(_BREATH)
            await happens(self._stir, pause)

    async def _look(self) -> float:
        """See how things stand, and return how long that may be believed."""
        leases, life = self._leases, self._leases.life
        asked = leases.clock()
        hears = leases.bus.hears
        if hears and self._session not in (None, leases.bus.session):
            self._missed()
        if hears:
            self._session = leases.bus.session
        blind = not hears and asked >= self._sound + life
        answer = None
        if hears or (self.standing == "mine" and asked < self._until):
            async with self._asking:
                answer = await self._ask("hold" if self._wants and not blind else "watch")
        if answer is None:
            self._unseen()
            return min(_SOON if self.standing == "asking" else _WHILE, life / 10)
        if hears:
            self._sound = asked
        pause = await self._take(answer, asked)
        return pause if hears else min(_WHILE, pause)

    def _unseen(self) -> None:
        now = self._leases.clock()
        if self.standing == "mine":
            if now >= self._until:
                self._become("alone")
        elif self.standing != "alone" and self._wants and now >= self._sound + self._leases.life:
            self._become("alone")

    async def _take(self, answer: Reply, asked: float) -> float:
        ours, left, changed, lost, *said = answer
        life = self._leases.life
        readable = self._read(bool(ours), *said)
        if not readable and asked >= self._asked_again + life:
            self._asked_again = asked
            await self._leases.poke(self._key, _AGAIN)
        if ours:
            self._until = asked + life
            self._become("mine")
        elif left < 0 and self._wants:  # it is to be had, but not by who cannot hear the others
            self._become("alone" if self._acts else self.standing)
            self._unseen()
        elif left < 0:
            self._become("asking")
        elif not (self._acts and self._wants) or self._gives_way():
            self._become("another's" if self._leases.bus.hears else "asking")
        else:
            self._become("alone")
        if self._news:
            self._news = False
            self._changed()
        if changed:
            await self._leases.poke(self._key, _STIR)
        if lost:
            self.stir(again=True)
        if ours:
            return life / 3
        return min(life / 2, left / 1000) if left > 0 else life / 10

    def _gives_way(self) -> bool:
        """Whether the holder serves us as well as we do: what he hears from now on we hear of him."""
        hears = self._leases.bus.hears and self.heard(self.wishes)
        return hears and self.word is not None and self._suffices(self.word)

    def _read(self, ours: bool, version: bytes, read: bytes, said: bytes, word: bytes, *others: Any) -> bool:
        """Take in what is said; whether all of it could be read."""
        if int(version) < self._version:  # Redis lost it, and its clock was set back
            self._told = None
            self.stir(again=True)
        self._version = int(version)
        before = self.word, self.others
        while self._unheard and self._unheard[0][1] <= int(read):
            self._holder_heard(self._unheard.popleft()[0])
        readable = True
        if said != self._said:
            text = self._leases.unseal(self._key, word)
            readable = text is not None
            self._said, self.word = said, text or None
        if ours:
            self.word = None
            readable = self._hear(others) and readable
        elif self._told is not None:
            self._told, self.others, self._confirms = None, (), False
        self._news = self._news or before != (self.word, self.others)
        return readable

    def _hear(self, others: tuple[Any, ...]) -> bool:
        """Take in what each of the others wants; whether all of it could be read."""
        known, told, readable = self._told or {}, dict[bytes, bytes](), True
        for who, new, text in zip(others[::3], others[1::3], others[2::3], strict=True):
            wish = self._leases.unseal(self._key, text) if new else known.get(who)
            readable = readable and wish is not None
            self._confirms = self._confirms or bool(new)
            told[who] = wish or b""
        if self._told is None or told != known:
            self.others = tuple(filter(None, told.values()))
        self._told = told
        return readable

    async def _ask(self, aim: Literal["hold", "watch", "leave"]) -> Reply | None:
        mine, wishes, wish, grants = self.standing == "mine", self.wishes, b"", b""
        if not self._wish_stored:
            text = self._wish()
            if (digest := sha256(text).digest()) != self._stored:
                wish, self._stored = self._leases.seal(self._key, text), digest
        if mine and not self._grants_stored:
            grants = self._leases.seal(self._key, self._grants)
        confirms = self._told is not None and self._confirms
        # As stored counts what was said before this; what changes meanwhile is said next time.
        self._wish_stored, self._grants_stored, self._confirms = True, mine, False
        answer = await self._leases.redis.run(
            SHARE,
            _keys(self._key),
            [
                *(self._me, self._leases.life_ms, aim, wish, grants, self._said),
                b"" if self._told is None else str(self._version),
                str(self._version) if confirms else b"",
            ],
            urgent=self.holds,
        )
        if answer is None:
            self._not_stored()
            self._confirms = confirms
        elif wish:
            self._unheard.append((wishes, int(answer[4])))
            if len(self._unheard) > _MOST_UNHEARD:
                del self._unheard[-2]  # whoever waits for it waits for the next
        elif self._unheard:
            self._unheard[-1] = wishes, self._unheard[-1][1]
        else:  # it is what the holder has read
            self._holder_heard(wishes)
        return answer

    def _holder_heard(self, wishes: int) -> None:
        if wishes > self._heard_wishes:
            self._heard_wishes, self._news = wishes, True

    def _not_stored(self) -> None:
        """Have all that was said here said once more."""
        self._wish_stored = self._grants_stored = False
        self._stored = b""
        self._unheard.clear()

    def _become(self, standing: Standing) -> None:
        if standing == self.standing:
            return
        self.standing = standing
        self._grants_stored = False
        self._moved.set()
        self._moved = asyncio.Event()
        if not self._acts and self._term is not None:
            self._term.reschedule(asyncio.get_running_loop().time())
        self._changed()


class Leases:
    """All leases of a replica."""

    def __init__(
        self,
        redis: SharedRedis,
        bus: Bus,
        seal: Seal,
        background: Background,
        *,
        life: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`life` is for how long a holder may be silent before another takes his place."""
        self.redis = redis
        self.bus = bus
        self.background = background
        self.life = life
        self.life_ms = max(1, int(life * 1000))
        self.clock = clock
        self._seal = seal.apart()[-1]  # that of the names, which all who find this have
        self._held: dict[str, set[Lease]] = {}
        bus.subscribe(_TOPIC, self._heard)
        bus.watch(self._look_again)

    def __repr__(self) -> str:
        held = sum(lease.holds for lease in self._all())
        return f"<Leases {held} of {len(self._all())} held>"

    def lease(
        self,
        key: str,
        *,
        wish: Callable[[], bytes],
        changed: Callable[[], None],
        missed: Callable[[], None],
        suffices: Callable[[bytes], bool],
    ) -> Lease:
        """Return a new view of what lies under this key."""
        lease = Lease(key, self, wish=wish, changed=changed, missed=missed, suffices=suffices)
        self._held.setdefault(key, set()).add(lease)
        return lease

    async def close(self) -> None:
        """Let go of all of them, at once."""
        await asyncio.gather(*(lease.close() for lease in self._all()))

    def forget(self, key: str, lease: Lease) -> None:
        held = self._held.get(key, set())
        held.discard(lease)
        if not held:
            self._held.pop(key, None)

    async def poke(self, key: str, what: bytes) -> None:
        """Have the others look at what lies under a key, too."""
        await self.bus.tell(_TOPIC, what + key.encode())

    def seal(self, key: str, text: bytes) -> bytes:
        return self._seal.encrypt(_PURPOSE, text, bound_to=key.encode())

    def unseal(self, key: str, sealed: bytes) -> bytes | None:
        """Return what was sealed, nothing for nothing, None for what is none of ours."""
        if not sealed:
            return b""
        try:
            return self._seal.decrypt(_PURPOSE, sealed, bound_to=key.encode())
        except SealBroken:
            return None

    def _heard(self, message: bytes) -> None:
        for lease in self._held.get(message[1:].decode(), ()):
            lease.stir(again=message[:1] == _AGAIN)

    def _look_again(self) -> None:
        for lease in self._all():
            lease.stir()

    def _all(self) -> list[Lease]:
        return [lease for held in self._held.values() for lease in held]


def _keys(key: str) -> list[str]:
    return [f"{key}:lease", f"{key}:members", f"{key}:words"]
