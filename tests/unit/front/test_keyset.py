"""Keys are fetched once for all, in time, and as seldom as will do."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from jwt.algorithms import get_default_algorithms

from gateway.front.admission import Crowded, Refusal
from gateway.front.issuers import IssuerDown
from gateway.front.keyset import GRACE, LOOK_AGAIN, Key, KeySet, fitting, read_keys
from gateway.support.tasks import Background
from tests.support.authorization_server import SigningKey, make_key
from tests.support.running import Clock

TTL = 600.0
RSA = make_key("RS256", "rsa", number=0)
EC = make_key("ES256", "ec")
ED = make_key("EdDSA", "ed")


def document(*keys: SigningKey, **changes: Any) -> dict[str, Any]:
    """Return a JWKS; a member of None is left out of each key."""
    said = [{**key.jwk, **changes} for key in keys]
    return {"keys": [{name: value for name, value in one.items() if value is not None} for one in said]}


def names(keys: tuple[Key, ...]) -> list[str | None]:
    return [key.kid for key in keys]


# What a JWKS holds


def test_a_key_is_used_for_what_it_is_for_and_nothing_else() -> None:
    """Its own algorithm, or where it names none those of its kind and curve (RFC 8725, 3.1)."""
    keys = read_keys(document(RSA, EC, ED))
    assert [key.fits for key in keys] == [{"RS256"}, {"ES256"}, {"EdDSA"}]
    keys = read_keys(document(RSA, EC, ED, make_key("ES384"), make_key("ES512"), alg=None))
    assert keys[0].fits == {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
    assert [key.fits for key in keys[1:]] == [{"ES256"}, {"EdDSA"}, {"ES384"}, {"ES512"}]


@pytest.mark.parametrize(
    "changes",
    [
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"key_ops": "verify"},
        {"alg": "HS256"},
        {"alg": "ES256"},
        {"alg": "none"},
        {"alg": 1},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "EC"},
        {"kty": ["RSA"]},
        {"kty": None},
        {"kid": 1},
        {"d": "AQAB"},
        {"n": None},
        {"n": 1},
        {"n": "%%"},
        {"n": "AQAB"},
        {"e": ""},
        {"n": "_" * 2000},
    ],
)
def test_a_key_that_is_not_fit_is_left_out(changes: dict[str, Any]) -> None:
    """Others of the same set go on."""
    unfit = document(RSA, **changes)["keys"]
    assert names(read_keys({"keys": [*unfit, None, [], "x", *document(EC)["keys"]]})) == ["ec"]


@pytest.mark.parametrize("changes", [{"crv": "P-384"}, {"crv": "secp256k1"}, {"crv": None}, {"x": "AA"}])
def test_a_curve_belongs_to_one_algorithm(changes: dict[str, Any]) -> None:
    """ES256 is P-256, and a point lies on its curve."""
    assert read_keys(document(EC, **changes)) == ()


@pytest.mark.parametrize("said", [None, [], {}, {"keys": {}}, {"keys": None}, "x"])
def test_what_is_no_jwks_is_said_to_be_none(said: object) -> None:
    """It is not an empty set of keys."""
    with pytest.raises(ValueError, match="no list"):
        read_keys(said)


def test_only_so_many_keys_are_looked_at() -> None:
    """Whatever a server publishes."""
    assert len(read_keys(document(*[EC] * 500))) == 100
    assert len(fitting(read_keys(document(*[EC] * 50)), None, "ES256")) == 8


@pytest.mark.parametrize("key", [RSA, EC, ED], ids=lambda key: key.alg)
def test_a_signature_is_its_keys(key: SigningKey) -> None:
    """And of no other key, algorithm or text."""
    (public,) = read_keys(document(key, alg=None))
    signature = get_default_algorithms()[key.alg].sign(b"text", key.private)
    assert public.verifies(key.alg, b"text", signature)
    assert not public.verifies(key.alg, b"Text", signature)
    assert not public.verifies(key.alg, b"text", b"")
    assert not public.verifies(key.alg, b"text", b"\0" * len(signature))
    assert not public.verifies("HS256", b"text", signature)
    (other,) = read_keys(document(make_key(key.alg), alg=None))
    assert not other.verifies(key.alg, b"text", signature)


def test_keys_fit_by_name_or_all_of_them() -> None:
    """A token that names no key may be signed by any that its algorithm fits."""
    keys = read_keys(document(RSA, EC, make_key("RS256", "old", number=1)))
    assert names(fitting(keys, "old", "RS256")) == ["old"]
    assert names(fitting(keys, None, "RS256")) == ["rsa", "old"]
    assert names(fitting(keys, "ec", "RS256")) == []


# When they are fetched


class Server:
    """Answers with the next of its script, and then with the last one for ever."""

    def __init__(self, *script: Any) -> None:
        self.script = deque(script)
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def fetch(self) -> object:
        self.asked += 1
        await self.gate.wait()
        said = self.script.popleft() if len(self.script) > 1 else self.script[0]
        if isinstance(said, Exception):
            raise said
        return said


@pytest.fixture
async def background() -> AsyncIterator[Background]:
    background = Background()
    yield background
    await background.close(1.0)


def keyset(server: Server, background: Background, clock: Clock, changes: list[str] | None = None) -> KeySet:
    changed = (lambda: None) if changes is None else (lambda: changes.append("x"))
    return KeySet("corp", server.fetch, ttl=TTL, background=background, clock=clock, changed=changed)


async def test_all_who_wait_share_one_fetch(background: Background) -> None:
    """A stampede costs the issuer one request, and later ones none."""
    server, clock = Server(document(RSA)), Clock()
    keys = keyset(server, background, clock)
    server.gate.clear()
    waiting = [asyncio.create_task(keys.keys("rsa", "RS256")) for _ in range(100)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # who leaves takes nothing from the others
    server.gate.set()
    found = await asyncio.gather(*waiting[1:])
    assert {tuple(names(one)) for one in found} == {("rsa",)}
    assert names(await keys.keys("rsa", "RS256")) == ["rsa"]
    assert server.asked == 1


async def test_who_waits_for_keys_takes_a_place(background: Background) -> None:
    """And gives it back; whoever finds the keys there takes none."""
    server = Server(document(EC))
    keys = keyset(server, background, Clock())
    server.gate.clear()
    taken: list[str] = []

    def place() -> Callable[[], None]:
        taken.append("taken")
        return lambda: taken.append("left")

    def crowded() -> Callable[[], None]:
        raise Crowded(Refusal(429, "Too many", "limits.x", "x"))

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(keys.keys("ec", "ES256", place))
        while not taken:  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0)
        with pytest.raises(Crowded):
            await keys.keys("ec", "ES256", crowded)
        server.gate.set()
    assert len(waiting.result()) == 1
    assert taken == ["taken", "left"]
    assert len(await keys.keys(None, "ES256", crowded)) == 1


async def test_keys_are_renewed_before_anybody_has_to_wait(background: Background) -> None:
    """In the last quarter of their time, behind the back of whoever asks."""
    server, clock = Server(document(RSA), document(EC)), Clock()
    keys = keyset(server, background, clock)
    await keys.keys("rsa", "RS256")
    clock.advance(TTL * 0.74)
    await keys.keys("rsa", "RS256")
    assert server.asked == 1
    clock.advance(TTL * 0.02)
    assert names(await keys.keys("rsa", "RS256")) == ["rsa"]
    while names(await keys.keys("ec", "ES256")) != ["ec"]:  # noqa: ASYNC110  # no event tells it
        await asyncio.sleep(0)
    assert names(await keys.keys("rsa", "RS256")) == []


async def test_a_key_that_was_taken_back_counts_no_longer_than_its_time(background: Background) -> None:
    """Once that is over everybody waits for the new ones; and who remembers tokens is told."""
    changes: list[str] = []
    server, clock = Server(document(RSA, EC), document(EC), document(EC, ED)), Clock()
    keys = keyset(server, background, clock, changes)
    await keys.keys("rsa", "RS256")
    clock.advance(TTL)
    assert names(await keys.keys("rsa", "RS256")) == []
    assert changes == ["x"]
    clock.advance(TTL)
    assert names(await keys.keys("ed", "EdDSA")) == ["ed"]
    assert changes == ["x"]  # a new key alone changes nothing


async def test_another_key_of_the_same_name_is_a_change(background: Background) -> None:
    """Some issuers have one name for all of their keys."""
    changes: list[str] = []
    server, clock = Server(document(make_key("ES256", "k")), document(make_key("ES256", "k"))), Clock()
    keys = keyset(server, background, clock, changes)
    await keys.keys("k", "ES256")
    clock.advance(TTL)
    await keys.keys("k", "ES256")
    assert changes == ["x"]


async def test_an_unknown_key_is_looked_for_once_in_a_while(background: Background) -> None:
    """Names that are made up do not keep the issuer busy, and new keys are found at once."""
    server, clock = Server(document(RSA), document(RSA), document(RSA, EC)), Clock()
    keys = keyset(server, background, clock)
    await keys.keys("rsa", "RS256")
    assert await keys.look_again("made-up", "RS256") == ((), True)
    for _ in range(50):
        assert await keys.look_again("made-up", "RS256") == ((), False)
    assert server.asked == 2
    clock.advance(1.0)
    assert (keys.age, keys.rest) == (1.0, LOOK_AGAIN - 1.0)
    clock.advance(keys.rest)
    found, certain = await keys.look_again("ec", "ES256")
    assert (names(found), certain, server.asked) == (["ec"], True, 3)


async def test_whoever_joins_a_look_does_not_know_it_all(background: Background) -> None:
    """It may have begun before the key was there."""
    server, clock = Server(document(RSA), document(RSA)), Clock()
    keys = keyset(server, background, clock)
    await keys.keys("rsa", "RS256")
    server.gate.clear()
    looking = [asyncio.create_task(keys.look_again("ec", "ES256")) for _ in range(3)]
    await asyncio.sleep(0)
    server.gate.set()
    assert [certain for _, certain in await asyncio.gather(*looking)] == [True, False, False]
    assert server.asked == 2


async def test_old_keys_go_on_while_the_issuer_is_out_of_reach(background: Background) -> None:
    """Nobody waits for it meanwhile, and not for ever."""
    server, clock = Server(document(RSA), IssuerDown("no connection")), Clock()
    keys = keyset(server, background, clock)
    await keys.keys("rsa", "RS256")
    clock.advance(TTL + 1)
    assert names(await keys.keys("rsa", "RS256")) == ["rsa"]
    assert server.asked == 2
    clock.advance(60)
    server.gate.clear()
    assert names(await keys.keys("rsa", "RS256")) == ["rsa"]  # though the fetch hangs
    server.gate.set()
    clock.advance(GRACE)
    with pytest.raises(IssuerDown):
        await keys.keys("rsa", "RS256")


@pytest.mark.parametrize(
    "failure", [IssuerDown("no connection"), {"keys": []}, {"keys": "x"}, document(RSA, use="enc")]
)
async def test_an_issuer_without_usable_keys_is_left_alone_for_a_moment(
    background: Background, caplog: pytest.LogCaptureFixture, failure: Any
) -> None:
    """Everybody is told at once that it cannot be said; the log says it once, and when it is over."""
    server, clock = Server(failure, failure, document(RSA)), Clock()
    keys = keyset(server, background, clock)
    with pytest.raises(IssuerDown):
        await keys.keys("rsa", "RS256")
    for _ in range(10):
        with pytest.raises(IssuerDown) as caught:
            await keys.keys("rsa", "RS256")
        assert 0 < caught.value.retry_after <= 0.5
    assert server.asked == 1
    clock.advance(0.5)
    with pytest.raises(IssuerDown):
        await keys.keys("rsa", "RS256")
    clock.advance(1.0)
    caplog.set_level("INFO")
    assert names(await keys.keys("rsa", "RS256")) == ["rsa"]
    said = [record.getMessage() for record in caplog.records if record.name == "gateway.front.keyset"]
    assert len([one for one in said if "cannot be fetched" in one]) == 1
    assert said[-1] == "issuer corp: its keys can be fetched again"


async def test_nobody_hangs_when_the_gateway_stops(background: Background) -> None:
    """Who waits is told so."""
    server, clock = Server(document(RSA)), Clock()
    server.gate.clear()
    keys = keyset(server, background, clock)
    waiting = asyncio.create_task(keys.keys("rsa", "RS256"))
    while not server.asked:  # noqa: ASYNC110  # no event tells it
        await asyncio.sleep(0)
    await background.close(1.0)
    with pytest.raises(IssuerDown, match="stopping"):
        await waiting


async def test_a_new_configuration_begins_with_the_keys_of_the_old_one(background: Background) -> None:
    """A reload asks nobody anew, and does not fail where the issuer does just then."""
    server, clock = Server(document(RSA), IssuerDown("no connection")), Clock()
    old, new = keyset(server, background, clock), keyset(server, background, clock)
    await old.keys("rsa", "RS256")
    new.adopt(old)
    new.warm()
    assert names(await new.keys("rsa", "RS256")) == ["rsa"]
    assert server.asked == 1
