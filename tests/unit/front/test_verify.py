"""Who gets in, against a real authorization server: by token, by asking about tokens, by key."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Authentication
from gateway.front.issuers import WAITING
from gateway.front.keyset import LOOK_AGAIN
from gateway.front.tokens import LONGEST, Refused
from gateway.front.verify import Verifier
from gateway.protocol.call import Principal
from gateway.support.metrics import Metrics
from gateway.support.seal import Seal
from gateway.support.tasks import Background
from tests.support.authorization_server import (
    AuthorizationServer,
    SigningKey,
    cutting,
    failing,
    garbage,
    huge,
    late,
    make_key,
    redirecting,
    saying,
    sign,
)
from tests.support.certificates import Authority
from tests.support.running import Clock

GATEWAY = "https://gateway.example/mcp"
NOW = 1_800_000_000.0
KEY = "mcpgw_0123456789abcdef"
HASH = f"sha256:{sha256(KEY.encode()).hexdigest()}"


class Entrance:
    """A verifier, and the clocks it goes by."""

    def __init__(self, settings: dict[str, Any], seal: Seal | None = None) -> None:
        self.clock, self.now = Clock(), Clock(NOW)
        self.metrics = Metrics()
        self.background = Background()
        self.verifier = Verifier(
            Authentication.model_validate(settings),
            seal or Seal(["k" * 32]),
            self.background,
            self.metrics,
            self.now,
            clock=self.clock,
        )

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.now.advance(seconds)

    async def shown(self, token: str, resource: str = GATEWAY) -> Principal | Refused:
        """Return who shows a bearer token, whether it is remembered or not."""
        return await self.sent(f"Bearer {token}", resource)

    async def sent(self, credential: str, resource: str = GATEWAY) -> Principal | Refused:
        found = self.verifier.known(credential, resource)
        return await self.verifier.verify(credential, resource) if found is None else found

    async def who(self, token: str, resource: str = GATEWAY) -> Principal:
        found = await self.shown(token, resource)
        assert isinstance(found, Principal), found
        return found

    async def why(self, token: str, resource: str = GATEWAY) -> str:
        """Return why a token is refused, as invalid."""
        found = await self.shown(token, resource)
        assert isinstance(found, Refused), found
        assert found.error == "invalid_token"
        return found.reason.removeprefix("The token does not count: ")

    async def unavailable(self, token: str) -> bool:
        found = await self.shown(token)
        assert isinstance(found, Refused), found
        if found.error == "unavailable":
            assert found.retry_after >= 1.0
            assert token not in found.reason
        return found.error == "unavailable"

    async def counted(self, sample: str) -> float:
        lines = (await asyncio.to_thread(self.metrics.render)).decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"mcp_gateway_{sample}")
        )


@asynccontextmanager
async def entrance(seal: Seal | None = None, **settings: Any) -> AsyncIterator[Entrance]:
    made = Entrance(settings, seal)
    try:
        yield made
    finally:
        await made.background.close(1.0)
        await made.verifier.close()


@pytest.fixture
async def corp() -> AsyncIterator[AuthorizationServer]:
    async with AuthorizationServer(now=lambda: NOW) as server:
        server.client("gw", "s3cret&/+ ")
        server.extra = {"aud": GATEWAY}
        yield server


def signed(server: AuthorizationServer, **members: Any) -> dict[str, Any]:
    return {"issuer": server.issuer, **members}


def asked(server: AuthorizationServer, **members: Any) -> dict[str, Any]:
    proof = {"client_id": "gw", "client_secret": "s3cret&/+ "}
    return {"issuer": server.issuer, "introspection_url": server.url("introspect"), **proof, **members}


# Signed tokens


@pytest.mark.parametrize("alg", ["RS256", "PS256", "ES256", "EdDSA"])
async def test_a_signed_token_lets_in_whom_it_names(corp: AuthorizationServer, alg: str) -> None:
    """With its scopes and all they include, until it ends; the next request waits for nothing."""
    corp.rotate(alg)
    token = corp.mint("alice", scope="write", groups=["staff"])
    async with entrance(tokens={"corp": signed(corp)}, implies={"write": ["read"]}) as door:
        assert door.verifier.known(f"Bearer {token}", GATEWAY) is None
        who = await door.who(token)
        assert (who.id, who.scopes, who.expires) == ("corp:alice", {"write", "read"}, NOW + 3630)
        assert who.claims["groups"] == ["staff"]
        assert who.authorization == f"Bearer {token}"
        assert door.verifier.known(f"Bearer {token}", GATEWAY) is who
        assert (corp.count("metadata"), corp.count("jwks")) == (1, 1)
        assert await door.counted('verified_total{outcome="ok",source="corp"}') == 1
        assert token not in repr(who) + repr(door.verifier)


async def test_two_tokens_of_one_caller_are_one_caller_and_two_credentials(corp: AuthorizationServer) -> None:
    """Across replicas of one key, too; a caller of the same name elsewhere is another."""
    seal = Seal(["k" * 32])
    async with AuthorizationServer(now=lambda: NOW) as other:
        other.extra = corp.extra
        tokens = {"corp": signed(corp), "other": signed(other)}
        async with entrance(tokens=tokens) as one, entrance(Seal(["k" * 32]), tokens=tokens) as two:
            first, second = await one.who(corp.mint("alice")), await two.who(corp.mint("alice", jti="2"))
            assert first.subject == second.subject
            assert first.partition != second.partition
            assert (await one.who(other.mint("alice"))).subject != first.subject
            assert (await one.who(corp.mint("bob"))).subject != first.subject
            assert first.partition == seal.partition(first.authorization or "")
            # No header names a caller: what stands for one is the hash of no credential.
            assert first.subject not in {seal.partition(text) for text in ("corp:alice", "id corp:alice")}


async def test_a_token_is_for_the_endpoint_that_it_is_for(corp: AuthorizationServer) -> None:
    """Also once it is remembered for another one (Z-07)."""
    async with entrance(tokens={"corp": signed(corp)}) as door:
        token = corp.mint("alice")
        assert (await door.who(token)).id == "corp:alice"
        assert await door.why(token, f"{GATEWAY}/dev") == "it is for another audience"
        assert await door.why(corp.mint(aud="https://upstream.example/mcp")) == "it is for another audience"


async def test_a_remembered_token_ends_when_it_ends(corp: AuthorizationServer) -> None:
    """To the second, the leeway included."""
    async with entrance(tokens={"corp": signed(corp, remember="1h")}) as door:
        token = corp.mint("alice", expires_in=60)
        assert (await door.who(token)).expires == NOW + 90
        door.now.advance(89.9)
        assert (await door.who(token)).id == "corp:alice"
        door.now.advance(0.1)
        assert await door.why(token) == "it has expired"


async def test_forged_tokens_let_nobody_in(corp: AuthorizationServer) -> None:
    """Neither without a signature, nor with somebody else's, nor with a public key as the secret."""
    mine = make_key("RS256", corp.keys[0].kid)
    good = corp.mint("alice")
    head, body, signature = good.split(".")
    claims = corp.claims("root", iat=NOW - 60)
    async with entrance(tokens={"corp": signed(corp)}) as door:
        await door.who(good)
        for token in (
            sign(claims, mine, {"kid": mine.kid}),
            sign(claims, mine, {"kid": None}),
            sign(claims, mine, {"kid": "unknown", "jku": "https://evil.example/jwks"}),
            sign(claims, mine, {"kid": None, "jwk": mine.jwk}),
            f"{head}.{sign(claims, mine, {}).split('.')[1]}.{signature}",
            f"{head}.{body}.{signature[:-8]}AAAAAAAA",
            f"{head}.{body}.AAAA",
        ):
            assert await door.why(token) == "no key of its issuer has signed it"
        for token in (
            sign(claims, mine, {"alg": "none"}),
            sign(claims, mine, {"alg": "HS256"}),
            sign(claims, make_key("ES384"), {}),
        ):
            assert await door.why(token) == "it is signed in a way that is not accepted"
        assert await door.why(f"{head}.{body}.") == "it is no signed token"
        assert (await door.who(good)).id == "corp:alice"


async def test_a_key_is_not_used_for_another_algorithm(corp: AuthorizationServer) -> None:
    """An RSA key that is published for RS256 verifies no PS256."""
    key = corp.keys[0]
    other = SigningKey(key.kid, "PS256", key.private)
    async with entrance(tokens={"corp": signed(corp)}) as door:
        assert await door.why(corp.mint(key=other)) == "no key of its issuer has signed it"


async def test_tokens_without_the_name_of_a_key_are_held_against_all(corp: AuthorizationServer) -> None:
    """Some issuers name none, also after a rotation."""
    corp.keys = [make_key("ES256", None), make_key("ES256", None)]
    async with entrance(tokens={"corp": signed(corp)}) as door:
        for key in corp.keys:
            assert (await door.who(corp.mint(key=key))).id == "corp:alice"
        new = corp.rotate("ES256", kid=None)
        assert (await door.who(corp.mint(key=new))).id == "corp:alice"


async def test_a_new_key_is_found_at_once_and_an_old_one_ends(corp: AuthorizationServer) -> None:
    """Rotation is noticed by the first token of the new key, revocation when keys are fetched again."""
    async with entrance(tokens={"corp": signed(corp, remember="1h")}) as door:
        old = corp.mint("alice", iat=NOW - 60)
        await door.who(old)
        first = corp.keys[0]
        corp.rotate()
        assert (await door.who(corp.mint("bob"))).id == "corp:bob"
        assert corp.count("jwks") == 2
        corp.withdraw(first)
        assert (await door.who(old)).id == "corp:alice"
        door.advance(LOOK_AGAIN)
        await door.why(corp.mint(key=make_key("RS256", "made-up")))  # which has the keys fetched again
        assert await door.why(old) == "no key of its issuer has signed it"


async def test_made_up_keys_do_not_keep_the_issuer_busy(corp: AuthorizationServer) -> None:
    """However many tokens name one that does not exist, at once or one by one."""
    async with entrance(tokens={"corp": signed(corp)}) as door:
        await door.who(corp.mint("alice"))
        key = make_key("RS256", "0", number=9)
        made_up = [corp.mint(key=SigningKey(f"made-up {n}", "RS256", key.private)) for n in range(30)]
        assert await door.why(made_up[0]) == "no key of its issuer has signed it"
        for token in made_up[1:10]:
            assert await door.unavailable(token)
        await asyncio.gather(*(door.shown(token) for token in made_up[10:]))
        assert corp.count("jwks") == 2
        # What would not count anyway is no reason to look, either.
        door.advance(LOOK_AGAIN)
        assert await door.why(corp.mint(key=key, aud="https://other.example")) == "it is for another audience"
        assert corp.count("jwks") == 2


async def test_a_new_key_within_a_moment_of_a_look_is_not_called_made_up(corp: AuthorizationServer) -> None:
    """Its client would throw the token away: it is told to come back, and then the key is looked for."""
    async with entrance(tokens={"corp": signed(corp, leeway="1s")}) as door:
        await door.who(corp.mint("alice"))
        strange = make_key("RS256", "made-up")
        assert await door.why(corp.mint(key=strange)) == "no key of its issuer has signed it"
        door.advance(LOOK_AGAIN / 2)
        corp.rotate()
        new = corp.mint("bob", iat=door.now())
        found = await door.shown(new)
        assert isinstance(found, Refused)
        assert (found.error, found.retry_after) == ("unavailable", LOOK_AGAIN / 2)
        assert "newer" in found.reason
        # What says that it is older than the keys has none that is newer.
        assert await door.why(corp.mint(key=strange, iat=NOW - 60)) == "no key of its issuer has signed it"
        door.advance(found.retry_after)
        assert (await door.who(new)).id == "corp:bob"
        assert corp.count("jwks") == 3


async def test_a_stampede_fetches_the_keys_once(corp: AuthorizationServer) -> None:
    """Fifty callers who come at the same time."""
    held = asyncio.Event()
    corp.on("jwks", late(held))
    async with entrance(tokens={"corp": signed(corp)}) as door:
        tokens = [corp.mint(f"user{n}") for n in range(50)]
        waiting = [asyncio.create_task(door.who(token)) for token in tokens]
        await corp.arrived("jwks")
        held.set()
        assert {who.id for who in await asyncio.gather(*waiting)} == {f"corp:user{n}" for n in range(50)}
        assert (corp.count("metadata"), corp.count("jwks")) == (1, 1)


BROKEN: dict[str, Callable[[AuthorizationServer], Any]] = {
    "keys fail": lambda corp: corp.on("jwks", failing(500)),
    "keys are gone": lambda corp: corp.on("jwks", failing(404)),
    "keys are garbage": lambda corp: corp.on("jwks", garbage()),
    "keys are a list": lambda corp: corp.on("jwks", saying([1])),
    "keys are no keys": lambda corp: corp.on("jwks", saying({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]})),
    "keys never end": lambda corp: corp.on("jwks", huge()),
    "keys never come": lambda corp: corp.on("jwks", late()),
    "keys are elsewhere": lambda corp: corp.on("jwks", redirecting(corp.url("other"))),
    "the connection ends": lambda corp: corp.on("jwks", cutting()),
    "metadata fails": lambda corp: corp.on("metadata", failing(503)),
    "metadata is garbage": lambda corp: corp.on("metadata", garbage()),
    "metadata is nowhere": lambda corp: corp.places.clear(),
    "metadata is of another": lambda corp: corp.metadata.update(issuer=f"{corp.issuer}/"),
    "metadata names no keys": lambda corp: corp.metadata.update(jwks_uri=None),
    "keys are in the clear": lambda corp: corp.metadata.update(jwks_uri="http://keys.example/jwks"),
    "keys are a file": lambda corp: corp.metadata.update(jwks_uri="file:///etc/passwd"),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_an_issuer_in_disorder_lets_nobody_in_and_calls_nobody_a_liar(
    corp: AuthorizationServer, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is our trouble, not the caller's (503); the log says what is wrong, without the token."""
    caplog.set_level(logging.DEBUG)
    BROKEN[broken](corp)
    token = corp.mint("alice")
    async with entrance(tokens={"corp": signed(corp, timeout="1s")}) as door:
        assert await door.unavailable(token)
        assert door.verifier.known(f"Bearer {token}", GATEWAY) is None
        said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert [one for one in said if one.startswith("issuer corp: its keys cannot be fetched: ")]
        assert token not in caplog.text
        assert not corp.seen("other")
        corp.on("jwks", None)
        corp.on("metadata", None)
        corp.metadata, corp.places = {}, {"oidc"}
        door.advance(1.0)
        assert (await door.who(token)).id == "corp:alice"


@pytest.mark.parametrize("place", ["oauth", "oidc", "appended"])
async def test_metadata_is_found_wherever_it_may_stand(corp: AuthorizationServer, place: str) -> None:
    """RFC 8414 first, then OpenID Connect in two ways (Z-11)."""
    corp.places = {place}
    async with entrance(tokens={"corp": signed(corp)}) as door:
        await door.who(corp.mint("alice"))
        assert corp.count("metadata") == ["oauth", "oidc", "appended"].index(place) + 1


async def test_keys_may_be_where_the_operator_says(corp: AuthorizationServer) -> None:
    """No metadata is asked for then."""
    async with entrance(tokens={"corp": signed(corp, jwks_url=corp.url("jwks"))}) as door:
        await door.who(corp.mint("alice"))
        assert corp.count("metadata") == 0


async def test_callers_go_on_while_the_issuer_is_away(corp: AuthorizationServer) -> None:
    """Its keys are known; also those of a configuration before this one."""
    async with entrance(tokens={"corp": signed(corp)}) as before:
        await before.who(corp.mint("alice"))
        await corp.stop()
        before.advance(601)
        assert (await before.who(corp.mint("bob"))).id == "corp:bob"
        async with entrance(tokens={"corp": signed(corp)}) as after:
            after.verifier.adopt(before.verifier)
            assert (await after.who(corp.mint("carol"))).id == "corp:carol"
        async with entrance(tokens={"corp": signed(corp, algorithms=["RS256"])}) as other:
            other.verifier.adopt(before.verifier)
            assert await other.unavailable(corp.mint("dave"))


async def test_keys_may_be_there_before_the_first_caller(corp: AuthorizationServer) -> None:
    """They are fetched as the gateway starts."""
    async with entrance(tokens={"corp": signed(corp)}) as door:
        door.verifier.warm()
        await corp.arrived("jwks")
        await door.who(corp.mint("alice"))
        assert corp.count("jwks") == 1


async def test_an_issuer_behind_tls_is_trusted_by_its_authority(tmp_path: Path) -> None:
    """And by that one alone."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with AuthorizationServer(tls=authority.issue("127.0.0.1"), now=lambda: NOW) as corp:
        corp.extra = {"aud": GATEWAY}
        token = corp.mint("alice")
        trusted = {"corp": signed(corp, tls={"ca_file": str(authority.file)})}
        async with entrance(tokens=trusted) as door:
            assert (await door.who(token)).id == "corp:alice"
        async with entrance(tokens={"corp": signed(corp, tls={"ca_file": str(other.file)})}) as door:
            assert await door.unavailable(token)


# Tokens that their issuer is asked about


@pytest.mark.parametrize("kind", ["opaque", "mint"])
async def test_an_issuer_is_asked_once_about_a_token(corp: AuthorizationServer, kind: str) -> None:
    """For as long as its answer counts, and for all who show the token at the same time."""
    token = getattr(corp, kind)("alice", scope="read", expires_in=3600)
    async with entrance(tokens={"corp": asked(corp)}) as door:
        held = asyncio.Event()
        corp.once("introspect", late(held))
        waiting = [asyncio.create_task(door.who(token)) for _ in range(20)]
        assert (await corp.arrived("introspect")).form == {"token": token, "token_type_hint": "access_token"}
        held.set()
        found = await asyncio.gather(*waiting)
        assert {(who.id, who.scopes, who.expires) for who in found} == {
            ("corp:alice", frozenset({"read"}), NOW + 3630)
        }
        assert (await door.who(token)).id == "corp:alice"
        assert corp.count("introspect") == 1
        corp.revoke(token)
        door.advance(29.9)
        assert (await door.who(token)).id == "corp:alice"
        door.advance(0.1)
        assert await door.why(token) == "its issuer says that it is not active"
        assert await door.why(token) == "its issuer says that it is not active"
        assert corp.count("introspect") == 2


async def test_a_remembered_refusal_ends_as_well(corp: AuthorizationServer) -> None:
    """A token may begin to count."""
    async with entrance(tokens={"corp": asked(corp)}) as door:
        token = corp.opaque("alice")
        corp.once("introspect", saying({"active": False}))
        assert await door.why(token) == "its issuer says that it is not active"
        door.advance(30)
        assert (await door.who(token)).id == "corp:alice"


async def test_nothing_is_remembered_where_nothing_may_be(corp: AuthorizationServer) -> None:
    """With `remember: 0s` a revoked token is refused at once; no answer serves two requests."""
    async with entrance(tokens={"corp": asked(corp, remember="0s")}) as door:
        token = corp.opaque("alice")
        await asyncio.gather(*(door.who(token) for _ in range(5)))
        assert corp.count("introspect") == 5
        corp.revoke(token)
        assert await door.why(token) == "its issuer says that it is not active"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aud": None}, "it is for another audience"),
        ({"aud": "https://other.example"}, "it is for another audience"),
        ({"iss": "https://other.example"}, "it is of another issuer"),
        ({"exp": NOW - 60}, "it has expired"),
        ({"nbf": NOW + 60}, "it does not count yet"),
        ({"sub": None}, "it does not say whose it is"),
        ({"token_type": "DPoP"}, "it is no bearer token"),
        ({"token_type": 1}, "it is no bearer token"),
    ],
)
async def test_what_an_issuer_answers_is_judged(
    corp: AuthorizationServer, changes: dict[str, Any], why: str
) -> None:
    """`active` alone lets nobody in: the token may be for somebody else."""
    said = {"active": True, **corp.claims("alice"), **changes}
    corp.on("introspect", saying({name: value for name, value in said.items() if value is not None}))
    async with entrance(tokens={"corp": asked(corp)}) as door:
        assert await door.why("opaque") == why


@pytest.mark.parametrize(
    "behaviour",
    [
        failing(500),
        failing(401),
        failing(404),
        failing(204),
        garbage(),
        garbage(b"[]"),
        garbage(b"[" * 10_000),
        saying({}),
        saying({"active": "true"}),
        saying({"active": 1, "sub": "alice"}),
        redirecting("http://127.0.0.1:1/"),
        cutting(),
        huge(),
        late(),
    ],
)
async def test_an_issuer_that_does_not_answer_well_lets_nobody_in(
    corp: AuthorizationServer, behaviour: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can tell (503), nothing is remembered, and the log knows neither token nor secret."""
    caplog.set_level(logging.DEBUG)
    token = corp.opaque("alice")
    corp.on("introspect", behaviour)
    async with entrance(tokens={"corp": asked(corp, timeout="1s")}) as door:
        assert await door.unavailable(token)
        corp.on("introspect", None)
        assert (await door.who(token)).id == "corp:alice"
        assert token not in caplog.text
        assert "s3cret" not in caplog.text
        assert [r.getMessage() for r in caplog.records][-1] == "issuer corp answers again"


async def test_an_issuer_that_fails_again_and_again_gets_a_pause(corp: AuthorizationServer) -> None:
    """Callers are told at once instead of waiting for it."""
    async with entrance(tokens={"corp": asked(corp)}) as door:
        corp.on("introspect", failing(500))
        for n in range(10):
            assert await door.unavailable(f"token-{n}")
        assert corp.count("introspect") == 3
        corp.on("introspect", None)
        door.advance(1.0)
        assert (await door.who(corp.opaque("alice"))).id == "corp:alice"


async def test_a_token_is_shown_to_its_own_issuer_alone(corp: AuthorizationServer) -> None:
    """One that names none is shown to those who are asked, one after the other (Z-09)."""
    async with AuthorizationServer(now=lambda: NOW) as other, AuthorizationServer(now=lambda: NOW) as third:
        for server in (other, third):
            server.client("gw", "s3cret&/+ ")
            server.extra = corp.extra
        tokens = {"corp": asked(corp), "other": asked(other), "third": signed(third)}
        async with entrance(tokens=tokens) as door:
            assert (await door.who(other.mint("alice"))).id == "other:alice"
            assert (await door.who(third.mint("alice"))).id == "third:alice"
            assert await door.why(corp.mint(iss="https://evil.example")) == "it is of another issuer"
            assert (corp.count("introspect"), other.count("introspect")) == (0, 1)
            assert (await door.who(other.opaque("bob"))).id == "other:bob"
            assert (corp.count("introspect"), other.count("introspect")) == (1, 2)
            assert await door.why("made-up") == "its issuer says that it is not active"
            corp.on("introspect", failing(500))
            assert (await door.who(other.opaque("carol"))).id == "other:carol"
            assert await door.unavailable("unknown")


async def test_what_is_remembered_is_bounded(corp: AuthorizationServer) -> None:
    """The oldest makes room, and refusals take nothing from those who may come in."""
    async with entrance(tokens={"corp": asked(corp)}, remembered=3) as door:
        good = [corp.opaque(f"user{n}") for n in range(4)]
        for token in good:
            await door.who(token)
        for n in range(10):
            await door.why(f"made-up-{n}")
        assert repr(door.verifier).endswith("3 known, 3 refused>")
        assert [door.verifier.known(f"Bearer {token}", GATEWAY) is None for token in good] == [
            True,
            False,
            False,
            False,
        ]


# Keys


def keys(**members: Any) -> dict[str, Any]:
    other = f"sha256:{sha256(b'other').hexdigest()}"
    return {"ci": {"hash": HASH, "scopes": ["write"], **members}, "other": {"hash": other}}


async def test_a_key_lets_in_whose_it_is() -> None:
    """Shown as a bearer token or in a header of its own, beside tokens or without."""
    async with entrance(keys=keys(), implies={"write": ["read"]}) as door:
        who = await door.who(KEY)
        assert (who.id, who.scopes, who.expires) == ("key:ci", {"write", "read"}, None)
        assert door.verifier.known(f"Bearer {KEY}", GATEWAY) is who
        alone = door.verifier.key(KEY)
        assert isinstance(alone, Principal)
        assert (alone.id, alone.subject, alone.partition) == (who.id, who.subject, who.partition)
        assert alone.authorization is None
        assert (await door.who("other")).id == "key:other"
        assert await door.why(KEY[:-1]) == "The key does not count: nobody has it"
        assert isinstance(door.verifier.key("x"), Refused)
        assert isinstance(door.verifier.key(HASH), Refused)


async def test_a_key_ends_when_it_ends() -> None:
    """Also where it is remembered."""
    async with entrance(keys=keys(expires=NOW + 60)) as door:
        assert (await door.who(KEY)).expires == NOW + 60
        door.now.advance(60)
        assert await door.why(KEY) == "The key does not count: it has expired"
        assert isinstance(door.verifier.key(KEY), Refused)


async def test_keys_and_tokens_go_together(corp: AuthorizationServer) -> None:
    """No issuer is asked about a key, nor about one that is not known here: it may be one elsewhere."""
    async with entrance(keys=keys(), tokens={"corp": asked(corp)}) as door:
        assert (await door.who(KEY)).id == "key:ci"
        assert await door.why(KEY[:-1]) == "The key does not count: nobody has it"
        assert corp.asked == []
        assert (await door.who(corp.opaque("alice"))).id == "corp:alice"


# What is no credential


@pytest.mark.parametrize(
    ("credential", "error"),
    [
        ("Basic YWxpY2U6cw==", "invalid_token"),
        ("Negotiate abc", "invalid_token"),
        (KEY, "invalid_token"),
        ("Bearer", "invalid_request"),
        ("Bearer ", "invalid_request"),
        ("Bearer a b", "invalid_request"),
        ("Bearer {token}", "invalid_request"),
        ("Bearer a,b", "invalid_request"),
        ("Bearer " + "a" * (LONGEST + 1), "invalid_request"),
    ],
)
async def test_a_credential_of_another_kind(corp: AuthorizationServer, credential: str, error: str) -> None:
    """What is malformed is a 400, what is only not ours a 401; nobody is asked about either."""
    async with entrance(keys=keys(), tokens={"corp": asked(corp)}) as door:
        found = await door.sent(credential)
        assert isinstance(found, Refused)
        assert found.error == error
        assert corp.asked == []
        assert await door.counted('verified_total{outcome="refused",source="none"}') == 1


async def test_the_scheme_is_spelled_in_any_case(corp: AuthorizationServer) -> None:
    """As HTTP has it."""
    async with entrance(keys=keys()) as door:
        for scheme in ("bearer", "BEARER", "Bearer "):
            who = await door.sent(f"{scheme} {KEY}")
            assert isinstance(who, Principal)
            assert who.id == "key:ci"


async def test_a_certificate_names_a_caller() -> None:
    """Whoever verified it."""
    async with entrance(certificates={"source": "tls", "scopes": ["read"]}) as door:
        who = door.verifier.certificate("robot")
        assert (who.id, who.scopes, who.authorization) == ("cert:robot", {"read"}, None)
        assert who.subject == who.partition is not None
        assert door.verifier.certificate("other").subject != who.subject


# For operators


@pytest.mark.parametrize(
    ("script", "members", "said", "next"),
    [
        (lambda corp: None, {}, "has 1 key(s), for RS256", None),
        (lambda corp: corp.on("jwks", failing(500)), {}, "HTTP status 500", "jwks_url"),
        (lambda corp: corp.on("jwks", saying({})), {}, "it has no list of keys", "jwks_url"),
        (lambda corp: corp.metadata.update(issuer="x"), {}, "is about another issuer", "issuer, "),
        (lambda corp: None, {"algorithms": ["ES256"]}, "it has keys for RS256, and none", "algorithms"),
        (lambda corp: corp.on("jwks", saying({"keys": []})), {}, "it has no key that is fit", "algorithms"),
    ],
)
async def test_an_operator_is_told_whether_keys_can_be_had(
    corp: AuthorizationServer, script: Any, members: dict[str, Any], said: str, next: str | None
) -> None:
    """And what to correct otherwise, before the first caller is refused."""
    script(corp)
    async with entrance(tokens={"corp": signed(corp, **members)}) as door:
        (found,) = await door.verifier.examine()
        assert found.issuer == "corp"
        assert said in found.said
        assert (found.next is None) if next is None else (next in (found.next or ""))


@pytest.mark.parametrize(
    ("script", "said", "next"),
    [
        (lambda corp: None, "answers questions about tokens", None),
        (lambda corp: corp.clients.clear(), "HTTP status 401", "client_secret"),
        (lambda corp: corp.on("introspect", garbage()), "the answer is no JSON", "introspection_url"),
        (
            lambda corp: corp.on("introspect", saying({"active": True})),
            "it calls a token active that was made up",
            "it verifies nothing",
        ),
    ],
)
async def test_an_operator_is_told_whether_an_issuer_can_be_asked(
    corp: AuthorizationServer, script: Any, said: str, next: str | None
) -> None:
    """It has to refuse what nobody gave out."""
    script(corp)
    async with entrance(tokens={"corp": asked(corp)}) as door:
        (found,) = await door.verifier.examine()
        assert said in found.said
        assert (found.next is None) if next is None else (next in (found.next or ""))


async def test_who_leaves_takes_nothing_from_others(corp: AuthorizationServer) -> None:
    """The question goes on for those who wait; too many of them are told at once that it cannot be said."""
    held = asyncio.Event()
    corp.on("introspect", late(held))
    async with entrance(tokens={"corp": asked(corp, timeout="60s")}) as door:
        token = corp.opaque("alice")
        first, second = (asyncio.create_task(door.who(token)) for _ in range(2))
        await corp.arrived("introspect")
        first.cancel()
        crowd = [asyncio.create_task(door.shown(f"made-up-{n}")) for n in range(WAITING - 1)]
        await asyncio.sleep(0)
        for n in range(5):
            assert await door.unavailable(f"one-too-many-{n}")
        held.set()
        assert (await second).id == "corp:alice"
        # The crowd is no failure of the issuer's: it gets no pause.
        for task in crowd:
            task.cancel()
        await asyncio.wait(crowd)
