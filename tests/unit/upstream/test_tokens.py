"""One token at a time: who asks for it, who waits, and what becomes of one that is refused."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from gateway.protocol.call import Reason, UpstreamName, UpstreamUnavailable
from gateway.support.tasks import Background
from gateway.upstream.failures import NoToken
from gateway.upstream.granted import Token, token_of
from gateway.upstream.tokens import Slot, bearer_of
from tests.support.running import Clock

ALPHA = UpstreamName("alpha")


class Issuer:
    """Gives out t1, t2 and so on, or fails; keeps which scopes it was asked for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.asked: list[Sequence[str] | None] = []
        self.failure: NoToken | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.same = False
        """Whether it gives out the same token again."""

    async def __call__(self, scopes: Sequence[str] | None) -> Token:
        self.asked.append(scopes)
        number = 1 if self.same else len(self.asked)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        wanted = tuple(("base",) if scopes is None else scopes)
        return token_of(f"t{number}", 100.0, now=self._clock(), early=10.0, scopes=wanted)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def issuer(clock: Clock) -> Issuer:
    return Issuer(clock)


@pytest.fixture
async def slot(clock: Clock) -> AsyncIterator[Slot]:
    background = Background()
    yield Slot(ALPHA, background, clock, lambda: 0.0)
    await background.close(1.0)


async def settled() -> None:
    """Let what was begun get as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def narrow(detail: str = "its authorization server: HTTP 400, invalid_grant") -> NoToken:
    failure = NoToken(ALPHA, detail)
    failure.general = False
    return failure


async def test_one_request_serves_all_who_wait_and_whoever_leaves(slot: Slot, issuer: Issuer) -> None:
    """Even the one who began it."""
    issuer.gate.clear()
    first, *others = (asyncio.ensure_future(slot.get(issuer)) for _ in range(5))  # waiters of a test
    await settled()
    first.cancel()
    issuer.gate.set()
    assert await asyncio.gather(*others) == ["t1"] * 4
    assert len(issuer.asked) == 1


async def test_a_failure_is_everybodys_who_waited_and_each_gets_his_own(slot: Slot, issuer: Issuer) -> None:
    """An exception that several raise would keep the frames of all."""
    issuer.failure = narrow()
    found = await asyncio.gather(*(slot.get(issuer) for _ in range(3)), return_exceptions=True)
    assert len({id(one) for one in found}) == 3
    assert {str(one) for one in found} == {"upstream alpha: no access token for it could be had"}
    assert len(issuer.asked) == 1


async def test_after_a_refusal_of_this_caller_it_rests(slot: Slot, issuer: Issuer, clock: Clock) -> None:
    """Longer each time, and no longer once it went well."""
    issuer.failure = narrow()
    for pause in (1.0, 2.0, 4.0):
        for _ in range(3):
            with pytest.raises(NoToken):
                await slot.get(issuer)
        clock.advance(pause)
    assert len(issuer.asked) == 3
    issuer.failure = None
    assert await slot.get(issuer) == "t4"


async def test_a_token_is_used_while_the_next_is_on_its_way(slot: Slot, issuer: Issuer, clock: Clock) -> None:
    """Nobody waits, nothing is asked twice, and a failure shows only once it is over."""
    await slot.get(issuer)
    clock.advance(90.0)
    issuer.gate.clear()
    assert [await slot.get(issuer) for _ in range(3)] == ["t1"] * 3
    await settled()
    assert len(issuer.asked) == 2
    issuer.failure = narrow()
    issuer.gate.set()
    await settled()
    assert await slot.get(issuer) == "t1"
    clock.advance(10.0)
    issuer.failure = None
    assert await slot.get(issuer) == "t3"


async def test_a_refused_token_is_replaced_once_for_all(slot: Slot, issuer: Issuer) -> None:
    """Whoever was refused with the old one gets the new one."""
    await slot.get(issuer)
    assert await asyncio.gather(*(slot.another(issuer, "t1") for _ in range(5))) == ["t2"] * 5
    assert await slot.another(issuer, "t1") == "t2"
    assert len(issuer.asked) == 2


async def test_tokens_that_are_refused_at_once_are_replaced_ever_more_seldom(
    slot: Slot, issuer: Issuer, clock: Clock
) -> None:
    """1 s, 2 s, 4 s and so on; one that was taken for a minute begins anew."""
    token = await slot.get(issuer)
    replaced = 0
    for _ in range(300):
        other = await slot.another(issuer, token)
        if other is not None:
            token, replaced = other, replaced + 1
        clock.advance(0.1)
    assert replaced == 5  # after 0, 1, 3, 7 and 15 s
    clock.advance(100.0)
    token = await slot.get(issuer)
    clock.advance(61.0)
    assert await slot.another(issuer, token) is not None
    assert await slot.another(issuer, slot.text) is None


async def test_the_same_token_again_is_not_worth_another_try(slot: Slot, issuer: Issuer) -> None:
    """Some servers give out what they gave before."""
    issuer.same = True
    await slot.get(issuer)
    assert await slot.another(issuer, "t1") is None


async def test_more_scopes_are_asked_for_beside_those_there_are(slot: Slot, issuer: Issuer) -> None:
    """Once for all who miss them; then they are asked for at once."""
    await slot.get(issuer)
    found = await asyncio.gather(*(slot.wider(issuer, "t1", ("write",)) for _ in range(4)))
    assert found == ["t2"] * 4
    assert issuer.asked == [None, ("base", "write")]
    assert await slot.wider(issuer, "t2", ("write",)) is None
    assert await slot.another(issuer, "t2") == "t3"
    assert issuer.asked[-1] == ("base", "write")


async def test_scopes_that_are_not_given_leave_the_token_there_is(
    slot: Slot, issuer: Issuer, clock: Clock
) -> None:
    """And are not asked for by each request."""
    await slot.get(issuer)
    issuer.failure = narrow("its authorization server: HTTP 400, invalid_scope")
    for _ in range(5):
        assert await slot.wider(issuer, "t1", ("admin",)) is None
        assert await slot.get(issuer) == "t1"
    assert len(issuer.asked) == 2
    clock.advance(61.0)
    assert await slot.wider(issuer, "t1", ("admin",)) is None
    assert len(issuer.asked) == 3


async def test_an_upstream_cannot_have_ever_more_asked_for(slot: Slot, issuer: Issuer) -> None:
    """There is an end to what is asked for."""
    token = await slot.get(issuer)
    for number in range(100):
        token = await slot.wider(issuer, token, (f"scope-{number}",)) or token
    assert len(issuer.asked) == 64
    assert max(len(scopes or ()) for scopes in issuer.asked) == 64


async def test_the_end_of_the_gateway_is_no_failure_of_a_token(clock: Clock, issuer: Issuer) -> None:
    """Whoever still waits is told so."""
    background = Background()
    slot = Slot(ALPHA, background, clock, lambda: 0.0)
    issuer.gate.clear()
    waiting = asyncio.ensure_future(slot.get(issuer))  # a waiter of a test
    await settled()
    await background.close(1.0)
    with pytest.raises(UpstreamUnavailable) as caught:
        await waiting
    assert caught.value.reason is Reason.STOPPING


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Bearer ", None),
        ("Bearer", None),
        ("Basic abc", None),
        ("", None),
        (None, None),
    ],
)
def test_what_can_be_exchanged(header: str | None, token: str | None) -> None:
    """A bearer token, and nothing else."""
    assert bearer_of(header) == token
