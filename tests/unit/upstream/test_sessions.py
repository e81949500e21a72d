"""Whose request goes to which session, and how many there are."""

import asyncio
import json

import pytest

from gateway import config
from gateway.protocol.call import Context, Reason, Request, UpstreamName, UpstreamUnavailable
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from gateway.upstream.sessions import Key, Sessions, key_of

ASKABLE = b'{"elicitation":{}}'
FORM = b'{"elicitation":{"form":{}}}'


def settings(**members):
    return config.Upstream(**{"url": "http://127.0.0.1/mcp", "prefix": "a", **members})


def key(context=None, capabilities=b"{}", method="tools/call", credential="", **members):
    request = Request(method, capabilities=capabilities, context=context or Context())
    return key_of(request, settings(**members), credential)


class Kept:
    """Something to keep, whose ends are counted."""

    def __init__(self):
        self.active = 0
        self.ended = False
        self.closed = asyncio.Event()

    async def close(self):
        self.ended = True
        self.closed.set()


@pytest.fixture
async def background():
    background = Background()
    yield background
    await background.close(1)


def sessions(background, open, *, most=10, each=10, idle=60.0):
    return Sessions(
        open,
        most=most,
        each=each,
        idle=idle,
        background=background,
        metrics=Metrics(),
        name=UpstreamName("alpha"),
    )


def test_a_key_is_its_callers():
    """One caller's, one client's session's, or everybody's, as the operator has it (X-31, B07)."""
    ann, bob = Context("ann", "s1"), Context("bob", "s2")
    assert key(ann) == key(Context("ann", "s9")) != key(bob)
    assert key(ann, isolation="session") != key(Context("ann", "s9"), isolation="session")
    assert key(ann, isolation="shared") == key(bob, isolation="shared") == key()
    assert key(ann, credential="1") != key(ann, credential="2")


def test_capabilities_are_declared_for_one_caller_only():
    """Everybody else's session can be asked nothing (M-22)."""
    assert key(Context("ann"), ASKABLE).capabilities == FORM
    assert key(Context("ann"), ASKABLE) != key(Context("ann"))
    assert key(Context(alone=True), ASKABLE).capabilities == FORM
    assert key(Context("ann"), ASKABLE, isolation="shared").capabilities == b"{}"


def test_who_cannot_be_told_apart_has_a_session_for_the_call():
    """Where it may be asked something, and nowhere else."""
    first, second = key(capabilities=ASKABLE), key(capabilities=ASKABLE)
    assert first != second
    assert first.capabilities == second.capabilities == FORM
    assert key(capabilities=ASKABLE, method="tools/list") == key() == Key()


def test_a_credential_is_not_to_be_seen():
    """Keys stand in tracebacks and logs."""
    assert "SECRET" not in repr(Key(authorization="Bearer SECRET"))


async def test_one_handshake_serves_all_who_wait(background):
    """Also when whoever came first has left."""
    go, opened = asyncio.Event(), []

    async def open(key):
        opened.append(key)
        await go.wait()
        return Kept()

    async def use(pool):
        async with pool.use(Key("ann")) as kept:
            return kept

    pool = sessions(background, open)
    first, *others = [asyncio.ensure_future(use(pool)) for _ in range(20)]
    while not opened:  # noqa: ASYNC110  # no event tells it, and no time passes
        await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert len({id(kept) for kept in await asyncio.gather(*others)}) == 1
    assert opened == [Key("ann")]


async def test_a_failure_is_everybodys_and_not_kept(background):
    """Who comes later tries again."""
    failures = [UpstreamUnavailable(UpstreamName("alpha"), Reason.CONNECT)]

    async def open(key):
        if failures:
            raise failures.pop()
        return Kept()

    pool = sessions(background, open)
    with pytest.raises(UpstreamUnavailable):
        async with pool.use(Key()):
            pass
    async with pool.use(Key()) as kept:
        assert pool.get(Key()) is kept


async def test_what_is_forgotten_is_replaced_once(background):
    """By the first who says so; the others use what came instead (B02)."""

    async def open(key):
        return Kept()

    pool = sessions(background, open)
    async with pool.use(Key("ann")) as old:
        pass
    assert pool.forget(Key("ann"), old)
    async with pool.use(Key("ann")) as new:
        assert not pool.forget(Key("ann"), old)
        assert pool.get(Key("ann")) is new is not old
    await old.closed.wait()


async def test_what_is_retired_ends_once_it_is_idle(background):
    """The gateway's own as well, which else stays; whoever comes later is served all the same (B29)."""

    async def open(key):
        return Kept()

    pool = sessions(background, open)
    async with pool.use(Key()) as own, pool.use(Key("ann")) as busy:
        async with pool.use(Key("bob")) as idle:
            pass
        assert pool.retire() == [own, busy, idle]
        await idle.closed.wait()
        assert not own.ended
        assert not busy.ended
    await own.closed.wait()
    await busy.closed.wait()
    async with pool.use(Key()) as late:
        assert late is not own
    await late.closed.wait()
    pool.revive()
    async with pool.use(Key()) as kept:
        pass
    assert pool.get(Key()) is kept


async def test_when_it_closes_whoever_waits_is_told(background):
    """For a session that is being opened, and for one that has no room (B50)."""

    async def open(key):
        if key.whose == "bob":
            await asyncio.Event().wait()
        return Kept()

    async def use(pool, key):
        async with pool.use(key):
            await asyncio.Event().wait()

    pool = sessions(background, open, most=2)
    waiting = [asyncio.ensure_future(use(pool, Key(whose))) for whose in ("ann", "bob", "cid")]
    while repr(pool) != "<Sessions alpha: 1 open, 1 opening>":  # noqa: ASYNC110  # as above
        await asyncio.sleep(0)
    await pool.close()
    for one in waiting[1:]:
        with pytest.raises(UpstreamUnavailable) as caught:
            await one
        assert caught.value.reason is Reason.STOPPING
    waiting[0].cancel()


async def held(background, most, each, *keys):
    """Return what is open after these were used one after the other."""
    opened = {}

    async def open(key):
        opened[key] = Kept()
        return opened[key]

    pool = sessions(background, open, most=most, each=each)
    for one in keys:
        async with pool.use(one):
            pass
    return [one for one in opened if pool.get(one) is opened[one]]


def of(whose, number):
    """Return one of the keys of a caller."""
    return Key(whose, b'{"n":%d}' % number)


async def test_a_caller_has_a_share_and_gives_up_its_own(background):
    """The one idle longest; nobody else loses any (B29)."""
    eves = [of("eve", number) for number in range(12)]
    assert await held(background, 100, 3, of("ann", 0), *eves) == [of("ann", 0), *eves[-3:]]


async def test_without_room_whoever_wants_one_more_gives_up_its_own_first(background):
    """Whoever has none to give takes what is idle longest, the gateway's own last."""
    eves = [of("eve", number) for number in range(5)]
    assert await held(background, 4, 10, Key(), of("ann", 0), *eves) == [Key(), of("ann", 0), *eves[-2:]]
    assert await held(background, 3, 10, Key(), of("ann", 0), of("bob", 0), of("cid", 0)) == [
        Key(),
        of("bob", 0),
        of("cid", 0),
    ]


async def test_a_caller_whose_share_is_busy_waits_while_others_do_not(background):
    """Until one of its own rests (B29)."""

    async def open(key):
        return Kept()

    async def use(key):
        async with pool.use(key):
            pass

    pool = sessions(background, open, each=1)
    async with pool.use(of("eve", 0)):
        waiting = asyncio.ensure_future(use(of("eve", 1)))
        await use(of("ann", 0))
        assert not waiting.done()
    await waiting
    assert pool.get(of("eve", 0)) is None


def test_the_order_of_what_a_client_renders_makes_no_other_session():
    """Types are a set."""

    def rendering(*types):
        settings = {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": types}}}
        return key(Context("ann"), json.dumps(settings).encode())

    assert rendering("a/b", "c/d") == rendering("c/d", "a/b", "a/b") != rendering("a/b")
