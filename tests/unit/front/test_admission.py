"""Who is let in while there is room, and what is counted of those who are."""

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.config import Limits
from gateway.front.admission import Admission, Crowded, network
from gateway.support.metrics import Metrics
from gateway.support.rates import LocalRates
from gateway.support.room import SMALL, Room
from tests.support.front import settings
from tests.support.running import Clock

LIMITS = Limits(requests=5, calls_per_caller=2, anonymous_calls=3, streams_per_caller=1, anonymous_streams=2)


def admission(room: Room | None = None, clock: Clock | None = None) -> Admission:
    return Admission(room or Room(10 * SMALL, SMALL), LocalRates(clock or Clock()), Metrics())


def test_a_caller_has_so_many_calls_at_once() -> None:
    """Others are not touched; whoever leaves makes room."""
    door = admission()
    entries = [door.arrive() for _ in range(3)]
    assert entries[0].enter(LIMITS, "alice") is None
    assert entries[1].enter(LIMITS, "alice") is None
    refusal = entries[2].enter(LIMITS, "alice")
    assert refusal is not None
    assert (refusal.status, refusal.setting, refusal.word) == (429, "limits.calls_per_caller", "calls")
    assert str(refusal) == (
        "Too many requests of this caller at once, try again in 1 s; "
        "the setting `limits.calls_per_caller` allows more"
    )
    assert door.arrive().enter(LIMITS, "bob") is None
    entries[0].leave()
    assert door.arrive().enter(LIMITS, "alice") is None


def test_those_without_a_credential_are_one_caller() -> None:
    """With a bound of their own."""
    door = admission()
    assert [door.arrive().enter(LIMITS, None) is None for _ in range(4)] == [True] * 3 + [False]


def test_a_stream_is_no_request() -> None:
    """It counts among the streams, and leaves its place among the requests and calls to others."""
    door = admission()
    for _ in range(2):
        entry = door.arrive()
        assert entry.enter(LIMITS, None) is None
        assert entry.stream(LIMITS) is None
    assert (door.requests, sum(door.calls.values()), door.listening) == (0, 0, 2)
    third = door.arrive()
    assert third.enter(LIMITS, None) is None
    refusal = third.stream(LIMITS)
    assert refusal is not None
    assert (refusal.status, refusal.setting) == (429, "limits.anonymous_streams")
    assert sum(door.calls.values()) == 1


def test_more_requests_than_may_be_are_not_looked_at() -> None:
    """Whoever sent them."""
    door = admission()
    assert [door.arrive().crowded(LIMITS) is None for _ in range(6)] == [True] * 5 + [False]
    refusal = door.arrive().crowded(LIMITS)
    assert refusal is not None
    assert (refusal.status, refusal.setting) == (503, "limits.requests")


def test_what_is_held_keeps_others_out_until_it_is_let_go() -> None:
    """503 while all of the room is taken, and 429 for whoever takes half of it."""
    door = admission(Room(4 * SMALL, SMALL))
    alice = door.arrive()
    assert alice.enter(LIMITS, "alice") is None
    assert alice.hold(2 * SMALL)
    refusal = door.arrive().enter(LIMITS, "alice")
    assert refusal is not None
    assert (refusal.status, refusal.setting) == (429, "limits.in_flight")
    bob = door.arrive()
    assert bob.enter(LIMITS, "bob") is None
    assert not bob.hold(3 * SMALL)
    refusal = door.arrive().enter(LIMITS, "carol")
    assert refusal is not None
    assert (refusal.status, refusal.setting) == (503, "limits.in_flight")
    bob.leave()
    alice.leave()
    assert door.arrive().enter(LIMITS, "alice") is None
    assert repr(door.room) == f"<Room 0 of {4 * SMALL} bytes held>"


def test_what_goes_on_without_its_request_counts_until_it_has_ended() -> None:
    """An older client's call does not end with its connection."""
    door = admission()
    entry = door.arrive()
    assert entry.enter(LIMITS, "alice") is None
    over = entry.keep()
    entry.leave()
    assert (door.requests, door.calls["alice"]) == (1, 1)
    over()
    assert (door.requests, sum(door.calls.values())) == (0, 0)


def test_a_batch_counts_as_what_it_holds() -> None:
    """All of it is let in, or nothing."""
    door = admission()
    entry = door.arrive()
    assert entry.enter(LIMITS, None) is None
    assert entry.more(LIMITS, 3) is not None
    assert entry.more(LIMITS, 2) is None
    assert door.calls[None] == 3
    entry.leave()
    assert sum(door.calls.values()) == 0


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::1", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("", ""),
        ("unix:", "unix:"),
    ],
)
def test_an_address_is_told_apart_by_what_one_customer_has(address: str, told: str) -> None:
    """Whoever has one address of IPv6 has 2^64 of them."""
    assert network(address) == told


async def test_rates_are_of_a_caller_an_address_and_an_endpoint() -> None:
    """Each is named when it is used up, and says after how long there is more."""
    clock = Clock()
    door = admission(clock=clock)
    config = settings(
        limits={"rate_per_caller": "2/m", "anonymous_rate": "1/m"},
        endpoints={"/mcp": {"rate": "4/m"}, "/other": {}},
    )

    async def ask(whose: str | None, address: str = "203.0.113.1", endpoint: str = "/mcp") -> str | None:
        refusal = await door.rate(config, endpoint, whose, address)
        return None if refusal is None else f"{refusal.status} {refusal.setting} {refusal.seconds}"

    assert [await ask("alice") for _ in range(3)] == [None, None, "429 limits.rate_per_caller 30"]
    assert [await ask(None) for _ in range(2)] == [None, "429 limits.anonymous_rate 60"]
    assert await ask(None, "203.0.113.2") is None
    assert await ask("bob") == "503 endpoints./mcp.rate 15"
    assert await ask("bob", endpoint="/other") is None
    clock.advance(60.0)
    assert [await ask("alice") for _ in range(2)] == [None, None]


async def test_a_credential_that_is_refused_counts_as_none() -> None:
    """Against its address alone, and what only looks counts nothing."""
    clock = Clock()
    door = admission(clock=clock)
    limits = Limits(anonymous_rate="2/m")
    assert await door.suspect(Limits(), "203.0.113.1") is None
    assert [await door.refused(limits, "203.0.113.1") for _ in range(2)] == [None, None]
    for _ in range(2):
        suspect = await door.suspect(limits, "203.0.113.1")
        assert (suspect and suspect.status, suspect and suspect.seconds) == (429, 30)
    assert await door.refused(limits, "203.0.113.1") == suspect
    assert await door.suspect(limits, "203.0.113.2") is None
    clock.advance(30.0)
    assert await door.suspect(limits, "203.0.113.1") is None


def test_so_many_credentials_of_one_address_may_wait_to_be_verified() -> None:
    """Of IPv6, of one network; each makes room when it has its answer."""
    door = admission()
    limits = Limits(verifications_per_address=2)
    leave = [door.place(limits, address) for address in ("2001:db8::1", "2001:db8::2")]
    with pytest.raises(Crowded) as crowded:
        door.place(limits, "2001:db8::3")
    assert (crowded.value.refusal.status, crowded.value.refusal.word) == (429, "verifications")
    leave.append(door.place(limits, "203.0.113.1"))
    leave.pop(0)()
    leave.append(door.place(limits, "2001:db8::3"))
    for each in leave:
        each()
    assert door.verifications == {}


class Machine(RuleBasedStateMachine):
    """Requests come, are let in or not, stream, hold, are kept, and leave, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.door = admission(Room(8 * SMALL, SMALL))
        self.open: list[tuple[object, list[object]]] = []

    @rule(whose=st.sampled_from([None, "alice", "bob"]))
    def arrive(self, whose: str | None) -> None:
        entry = self.door.arrive()
        if entry.crowded(LIMITS) is None and entry.enter(LIMITS, whose) is None:
            self.open.append((entry, [entry.leave]))
        else:
            entry.leave()

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(), what=st.sampled_from(["stream", "hold", "grow", "keep", "more", "end", "end", "end"])
    )
    def go_on(self, data: st.DataObject, what: str) -> None:
        at = data.draw(st.integers(0, len(self.open) - 1))
        entry, ends = self.open[at]
        match what:
            case "stream":
                if not entry._streams:
                    entry.stream(LIMITS)
            case "hold":
                entry.hold(data.draw(st.integers(0, 4 * SMALL)))
            case "grow":
                entry.hold(SMALL)
                entry.let_go(SMALL)
            case "keep":
                ends.append(entry.keep())
            case "more":
                entry.more(LIMITS, 1)
            case _:
                ends.pop()()
                if not ends:
                    self.open.pop(at)

    @invariant()
    def nothing_is_beyond_its_bound(self) -> None:
        assert self.door.requests >= 0
        assert all(0 < count <= (3 if whose is None else 2) for whose, count in self.door.calls.items())
        assert all(0 < count <= (2 if whose is None else 1) for whose, count in self.door.streams.items())
        assert self.door.room.held >= 0

    def teardown(self) -> None:
        for _, ends in self.open:
            for end in ends:
                end()
        assert repr(self.door) == f"<Admission 0 requests, 0 streams, <Room 0 of {8 * SMALL} bytes held>>"
        assert not self.door.calls
        assert not self.door.streams


TestMachine = Machine.TestCase
TestMachine.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
