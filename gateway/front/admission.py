"""Decides whether a request is let in, and counts what is in: requests, calls of each caller, streams, bytes.

Everything is decided before the body is read, by what is known then; the decisions are made without waiting,
but for rates that replicas count together. What is refused is told by which setting, and when to come back.
"""

import math
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import TypeAlias

from msgspec import Struct

from gateway.config import Config, Limits, Rate
from gateway.support.guests import Guests
from gateway.support.metrics import Metrics
from gateway.support.rates import Rates
from gateway.support.room import SMALL, Room, Whose

_PAUSE = 1.0
"""Seconds after which it makes sense to try again what others leave room for."""


class Refusal(Struct, frozen=True):
    """Why a request is not let in."""

    status: int
    what: str
    setting: str
    word: str
    """As metrics count it."""
    wait: float = _PAUSE

    def __str__(self) -> str:
        return f"{self.what}, try again in {self.seconds} s; the setting `{self.setting}` allows more"

    @property
    def seconds(self) -> int:
        """The time after which to come back: no date, for that would need clocks that agree."""
        return max(1, math.ceil(self.wait))


class Crowded(Exception):
    """A credential cannot be verified now, for too many from its address wait for that."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


Places: TypeAlias = Callable[[], Callable[[], None]]
"""Takes a place among what waits for an issuer, and returns what gives it back; raises Crowded."""


def no_bound() -> Callable[[], None]:
    """Take a place where there is no end of them."""
    return lambda: None


class Entry:
    """One request from its arrival until the last byte of its answer has left, and what it takes."""

    __slots__ = ("_admission", "_bytes", "_calls", "_counted", "_guests", "_holders", "_streams", "whose")

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission
        self.whose: Whose = None
        """Whose it is, once it was let in; a session of an older client does not make it another's."""
        self._counted = self._holders = 1
        self._calls = self._streams = self._bytes = 0
        self._guests: Guests | None = None

    def settle(self, guests: Guests) -> None:
        """Count it among those that work by one configuration; a stream goes on by the next one."""
        self._move_on()
        self._guests = guests
        guests.come()

    def _move_on(self) -> None:
        if self._guests is not None:
            self._guests.leave()
            self._guests = None

    def crowded(self, limits: Limits) -> Refusal | None:
        """Return why it cannot be looked at at all, whoever sent it."""
        if self._admission.requests > limits.requests:
            return Refusal(503, "Too many requests at once", "limits.requests", "requests")
        return None

    def enter(self, limits: Limits, whose: Whose) -> Refusal | None:
        """Return why it is not let in; if it is, it counts as one of the caller's calls."""
        admission = self._admission
        self.whose = whose
        if admission.room.full:
            return _FULL
        if admission.room.full_for(whose):
            return _FULL_FOR_CALLER
        running = admission.calls.get(whose, 0)
        if running >= (limits.anonymous_calls if whose is None else limits.calls_per_caller):
            return self._too_many_calls()
        admission.calls[whose] = running + 1
        self._calls = 1
        return None

    def more(self, limits: Limits, calls: int) -> Refusal | None:
        """Let so many more calls begin, or return why none of them is."""
        running = self._admission.calls.get(self.whose, 0)
        if running + calls > (limits.anonymous_calls if self.whose is None else limits.calls_per_caller):
            return self._too_many_calls()
        self._admission.calls[self.whose] = running + calls
        self._calls += calls
        return None

    def _too_many_calls(self) -> Refusal:
        setting = "anonymous_calls" if self.whose is None else "calls_per_caller"
        return Refusal(429, "Too many requests of this caller at once", f"limits.{setting}", "calls")

    def stream(self, limits: Limits) -> Refusal | None:
        """Go on as an open stream, which is no call, or return why not."""
        setting, most = (
            # Whoever shows no token is the same caller as all others who do not.
            ("anonymous_streams", limits.anonymous_streams)
            if self.whose is None
            else ("streams_per_caller", limits.streams_per_caller)
        )
        streams = self._admission.streams
        open = streams.get(self.whose, 0)
        if open >= most:
            return Refusal(429, "Too many open streams", f"limits.{setting}", "streams")
        streams[self.whose] = open + 1
        self._streams += 1
        _less(self._admission.calls, self.whose, self._calls)
        self._admission.requests -= self._counted
        self._calls = self._counted = 0
        self._move_on()
        return None

    def hold(self, size: int) -> bool:
        """Count bytes that are held for it until it leaves; whether there was room for them."""
        if size < SMALL:
            return True
        room = self._admission.room
        self._bytes += size
        room.hold(size, self.whose)
        return room.held <= room.most

    def grown(self, size: int) -> Refusal | None:
        """Note how large its body is by now, in steps; return why that is too much, if it is."""
        more = size - self._bytes
        if more < SMALL:
            return None
        if not self.hold(more):
            return _FULL
        return _FULL_FOR_CALLER if self._admission.room.full_for(self.whose) else None

    def let_go(self, size: int) -> None:
        """Count bytes out before it leaves."""
        if size >= SMALL:
            self._bytes -= size
            self._admission.room.hold(-size, self.whose)

    def keep(self) -> Callable[[], None]:
        """Count it until what is returned was called as well: its work goes on without it."""
        self._holders += 1
        return self.leave

    def leave(self) -> None:
        """Count it out, once everybody who keeps it has."""
        self._holders -= 1
        if self._holders:
            return
        self._move_on()
        if self._bytes:
            self._admission.room.hold(-self._bytes, self.whose)
            self._bytes = 0
        if self._calls:
            _less(self._admission.calls, self.whose, self._calls)
            self._calls = 0
        if self._streams:
            _less(self._admission.streams, self.whose, self._streams)
            self._streams = 0
        self._admission.requests -= self._counted
        self._counted = 0


class Admission:
    """What is in, of everybody and of each caller."""

    def __init__(self, room: Room, rates: Rates, metrics: Metrics) -> None:
        self.room = room
        self._rates = rates
        self.requests = 0
        """Those that are answered now, whoever sent them; open streams are none."""
        self.calls: dict[Whose, int] = {}
        self.streams: dict[Whose, int] = {}
        self.verifications: dict[Whose, int] = {}
        """Those that wait for an issuer, by what of the address tells clients apart."""
        room.counted = metrics.held()

    def __repr__(self) -> str:
        return f"<Admission {self.requests} requests, {self.listening} streams, {self.room!r}>"

    @property
    def listening(self) -> int:
        """How many streams are open."""
        return sum(self.streams.values())

    def arrive(self) -> Entry:
        """Count a request in; `leave` must follow."""
        self.requests += 1
        return Entry(self)

    async def rate(
        self, config: Config, endpoint: str, whose: Whose, address: str, requests: int = 1
    ) -> Refusal | None:
        """Count requests against the rates that are configured; return why they come too quickly."""
        setting, key, rate = _rate_of(config.limits, whose, address)
        if rate is not None and (wait := await self._rates.take(key, rate, requests)):
            return _too_often(setting, rate, wait)
        rate = config.endpoints[endpoint].rate
        if rate is not None and (wait := await self._rates.take(f"endpoint {endpoint}", rate, requests)):
            return Refusal(503, f"More than {rate} requests", f"endpoints.{endpoint}.rate", "rate", wait)
        return None

    async def refused(self, limits: Limits, address: str) -> Refusal | None:
        """Count a credential that is none against its address; return why there are too many of them.

        Whoever makes up credentials is nobody, and has as many requests as nobody has.
        """
        setting, key, rate = _rate_of(limits, None, address)
        wait = 0.0 if rate is None else await self._rates.take(key, rate)
        return _too_often(setting, rate, wait) if wait else None

    async def suspect(self, limits: Limits, address: str) -> Refusal | None:
        """Return why credentials of an address are not verified at all, if that many were refused."""
        setting, key, rate = _rate_of(limits, None, address)
        wait = 0.0 if rate is None else await self._rates.look(key, rate)
        return _too_often(setting, rate, wait) if wait else None

    def place(self, limits: Limits, address: str) -> Callable[[], None]:
        """Take a place among the verifications of an address that wait; raises Crowded (see Places)."""
        whose = network(address)
        waiting = self.verifications.get(whose, 0)
        if waiting >= limits.verifications_per_address:
            raise Crowded(_TOO_MANY_VERIFICATIONS)
        self.verifications[whose] = waiting + 1
        return lambda: _less(self.verifications, whose, 1)


def _rate_of(limits: Limits, whose: Whose, address: str) -> tuple[str, str, Rate | None]:
    """Return by which setting a caller's requests are counted, under which key, and against what."""
    if whose is not None:
        return "limits.rate_per_caller", f"caller {whose}", limits.rate_per_caller
    return "limits.anonymous_rate", f"from {network(address)}", limits.anonymous_rate


def _too_often(setting: str, rate: Rate | None, wait: float) -> Refusal:
    return Refusal(429, f"More than {rate} requests", setting, "rate", wait)


def has_rates(config: Config) -> bool:
    """Whether there is anything to count requests against."""
    limits = config.limits
    of_endpoints = [endpoint.rate for endpoint in config.endpoints.values()]
    return any((limits.rate_per_caller, limits.anonymous_rate, *of_endpoints))


def network(address: str) -> str:
    """Return what of an address tells one caller from another: of IPv6 whoever has one has 2^64."""
    try:
        at = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(at, IPv6Address):
        return str(at)
    if at.ipv4_mapped is not None:
        return str(at.ipv4_mapped)
    return str(IPv6Address(int(at) >> 64 << 64))


def _less(counts: dict[Whose, int], whose: Whose, by: int) -> None:
    left = counts.get(whose, 0) - by
    if left:
        counts[whose] = left
    else:
        counts.pop(whose, None)


_TOO_MANY_VERIFICATIONS = Refusal(
    429,
    "Too many credentials from this address wait to be verified",
    "limits.verifications_per_address",
    "verifications",
)
_FULL = Refusal(503, "Too much is held in memory", "limits.in_flight", "in_flight")
_FULL_FOR_CALLER = Refusal(429, "Too much is held in memory for this caller", "limits.in_flight", "in_flight")
