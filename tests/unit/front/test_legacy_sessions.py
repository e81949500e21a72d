"""Whose a session is, for core and upstreams; and what is too much for one."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.config import Config
from gateway.front.legacy_sessions import Sessions, TooMany, Visit
from gateway.front.legacy_stream import Outlet
from gateway.front.legacy_talk import Talk
from gateway.protocol.call import Answer, Call, Emit, Partition, Principal
from gateway.protocol.jsonrpc import split
from gateway.protocol.legacy_client import Asked, Handshake
from gateway.support.bus import LocalBus
from gateway.support.mailbox import LocalMailbox
from gateway.support.metrics import Metrics
from gateway.support.notebook import LocalNotebook
from gateway.support.seal import Seal
from gateway.support.tasks import Background
from tests.support.front import Answers
from tests.support.running import Clock

HELD = Handshake("2025-11-25")
ANN = Principal(Partition("a" * 64), "Bearer TOK")


def settings(isolation: str | None = None, **members: Any) -> Config:
    upstream = {"url": "http://127.0.0.1:9/mcp"} | ({} if isolation is None else {"isolation": isolation})
    return Config(upstreams={"alpha": upstream}, **members)


def sessions(
    config: Config,
    seal: Seal | None = None,
    *,
    notebook: LocalNotebook | None = None,
    now: Callable[[], float] = time.time,
) -> Sessions:
    seal = seal or Seal(["0123456789abcdef0123456789abcdef"])
    return Sessions(
        config,
        seal=seal,
        notebook=LocalNotebook() if notebook is None else notebook,
        mailbox=LocalMailbox(),
        bus=LocalBus(),
        metrics=Metrics(),
        background=Background(),
        now=now,
    )


async def begun(config: Config, presented: Principal) -> Visit:
    return (await sessions(config).begin(HELD, "/mcp", presented))[0]


async def test_a_session_is_its_credentials() -> None:
    """What is private to a credential is so whatever the client speaks; upstreams may tell sessions apart."""
    session, principal = await begun(settings(), ANN)
    assert principal.partition == ANN.partition
    assert principal.authorization == "Bearer TOK"
    assert principal.session == session.key
    assert len(session.key) == 64
    assert int(session.key, 16)
    assert principal.expires is not None


async def test_without_a_credential_it_is_a_caller_of_its_own() -> None:
    """But where all without one are one person."""
    one, principal = await begun(settings(), Principal())
    assert principal.partition == one.key
    tenant, principal = await begun(settings(cache={"single_tenant": True}), Principal())
    assert principal.partition is None
    assert principal.session == tenant.key


@pytest.mark.parametrize("presented", [ANN, Principal()])
async def test_where_an_upstream_keeps_sessions_apart_so_is_what_is_private(presented: Principal) -> None:
    session, principal = await begun(settings("session", cache={"single_tenant": True}), presented)
    assert principal.partition == session.key
    assert principal.authorization == presented.authorization


async def test_any_process_with_the_key_knows_the_session_by_the_same_name() -> None:
    """X-28; the sealed id carries all of the handshake."""
    keys = ["0123456789abcdef0123456789abcdef"]
    held = Handshake("2025-06-18", b'{"roots":{}}', "a client")
    begun, token = await sessions(settings(), Seal(keys)).begin(held, "/mcp", ANN)
    found = await sessions(settings(), Seal(keys)).find(token, "/mcp", ANN)
    assert found is not None
    assert (found.session.key, found.session.held) == (begun.session.key, held)
    assert found.principal == begun.principal
    assert await sessions(settings(), Seal(keys)).find(token, "/other", ANN) is None
    assert await sessions(settings(), Seal(keys)).find(token, "/mcp", Principal()) is None
    assert await sessions(settings(), Seal(["another key of sixteen bytes"])).find(token, "/mcp", ANN) is None


async def test_a_session_that_was_ended_stays_so() -> None:
    """Also when it would not be idle yet, for all that others know of it."""
    clock = Clock(1_800_000_000.0)
    limits = {"session_idle": 800.0}
    notebook = LocalNotebook(clock)
    one = sessions(settings(limits=limits), notebook=notebook, now=clock)
    other = sessions(settings(limits=limits), notebook=notebook, now=clock)
    (session, _), token = await one.begin(HELD, "/mcp", ANN)
    clock.advance(50)
    await one.end(session)
    for seconds in (25, 801, 20, 5, 200, 900, 1601):
        clock.advance(seconds)
        assert await other.find(token, "/mcp", ANN) is None


class Nobody:
    """A client that takes whatever it is sent."""

    async def send(self, message: bytes) -> None:
        return None

    def post(self, message: bytes) -> bool:
        return True

    async def writable(self) -> None:
        return None


async def test_a_session_has_so_many_requests_at_once_and_no_more() -> None:
    """Those that nobody waits for any more count, too (X-25)."""
    free = asyncio.Event()

    async def work(call: Call, principal: Principal, emit: Emit) -> Answer:
        await free.wait()
        return Answer((b'{"resultType":"complete","tools":[]}',))

    config, background = settings(), Background()
    known = sessions(config)
    talk = Talk("/mcp", Answers(work), config, known, background=background, stopping=asyncio.Event())
    visit, _ = await known.begin(HELD, "/mcp", ANN)
    session = visit.session
    outlet: Outlet = Nobody()
    waiting = [
        background.start(talk.ask(visit, Asked(b"%d" % id, "tools/list"), outlet), name="client")
        for id in range(256)
    ]
    while len(session.running) < 256:  # noqa: ASYNC110  # each takes a turn of the loop
        await asyncio.sleep(0)
    refused = await talk.ask(visit, Asked(b"257", "tools/list"), outlet)
    assert b"Too many" in b"".join(refused.message or ())
    free.set()
    for told in await asyncio.gather(*waiting):
        assert "result" in split(b"".join(told.message or ()))
    assert not session.busy
    await background.close(1.0)


async def test_a_session_is_in_use_while_a_request_of_it_runs() -> None:
    """X-28: other replicas know of it by what is noted, and nothing else may be said in it for long."""
    free = asyncio.Event()

    async def work(call: Call, principal: Principal, emit: Emit) -> Answer:
        await free.wait()
        return Answer((b'{"resultType":"complete","tools":[]}',))

    config, background = settings(limits={"session_idle": 0.2}), Background()
    clock = Clock(1_800_000_000.0)
    notebook = LocalNotebook(clock)
    here, there = (sessions(config, notebook=notebook, now=clock) for _ in range(2))
    talk = Talk("/mcp", Answers(work), config, here, background=background, stopping=asyncio.Event())
    visit, token = await here.begin(HELD, "/mcp", ANN)
    asked = background.start(talk.ask(visit, Asked(b"1", "tools/list"), Nobody()), name="client")
    for _ in range(3):
        clock.advance(0.3)
        while await notebook.read("legacy session", visit.session.key.encode()) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await there.find(token, "/mcp", ANN) is not None
    free.set()
    assert "result" in split(b"".join((await asked).message or ()))
    clock.advance(0.3)
    assert await there.find(token, "/mcp", ANN) is None
    await background.close(1.0)


def verified(token: str, *, subject: str = "alice", scopes: tuple[str, ...] = ()) -> Principal:
    """Return a caller who was verified, with one of the tokens that one person may have."""
    seal = Seal(["0123456789abcdef0123456789abcdef"])
    id = f"corp:{subject}"
    return Principal(
        seal.partition(f"Bearer {token}"),
        f"Bearer {token}",
        2_000_000_000.0,
        id=id,
        subject=seal.partition(f"\0id {id}"),
        scopes=frozenset(scopes),
    )


async def test_a_renewed_token_goes_on_with_the_session_with_what_it_permits_itself() -> None:
    """Z-08, M-12: a session belongs to the person; what may be done in it, each request's own token says."""
    ours = sessions(settings())
    first, token = await ours.begin(HELD, "/mcp", verified("ONE", scopes=("admin",)))
    found = await ours.find(token, "/mcp", verified("TWO"))
    assert found is not None
    assert found.session is first.session
    assert found.principal.authorization == "Bearer TWO"
    assert found.principal.scopes == frozenset()
    assert first.principal.scopes == {"admin"}
    assert found.principal.partition != first.principal.partition
    assert await ours.find(token, "/mcp", verified("ONE", subject="bob")) is None
    assert await ours.find(token, "/mcp", Principal(None, "Bearer ONE")) is None


async def test_the_sessions_of_all_tokens_of_a_person_are_that_persons_share() -> None:
    """A new token is no way to more of them."""
    ours = sessions(settings(limits={"sessions_per_caller": 1}))
    with (await ours.begin(HELD, "/mcp", verified("ONE")))[0].session.visited():
        with pytest.raises(TooMany):
            await ours.begin(HELD, "/mcp", verified("TWO"))
        assert (await ours.begin(HELD, "/mcp", verified("ONE", subject="bob")))[1]


async def test_a_visit_ends_with_its_token() -> None:
    """Or with the session, whichever comes first."""
    clock = Clock(1_800_000_000.0)
    ours = sessions(settings(limits={"session_lifetime": 100.0}), now=clock)
    soon = replace(verified("ONE"), expires=1_800_000_050.0)
    visit, _ = await ours.begin(HELD, "/mcp", soon)
    lasting, _ = await ours.begin(HELD, "/mcp", verified("TWO"))
    clock.advance(50.0)
    assert (ours.over(visit.principal), ours.over(lasting.principal)) == (True, False)
    clock.advance(50.0)
    assert ours.over(lasting.principal)
