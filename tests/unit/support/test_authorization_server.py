"""The tests' authorization server does what a real one does: other tests rely on it."""

import asyncio
import base64
import hashlib
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import jwt
import pytest

from tests.support.authorization_server import (
    ACCESS_TOKEN,
    ASSERTION,
    CODE,
    EXCHANGE,
    AuthorizationServer,
    denying,
    failing,
    late,
    make_key,
    sign,
)

GATEWAY = "https://gateway.example/mcp"


async def get(url: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.json() if answer.status == 200 else answer.status


async def post(url: str, form: dict[str, str], auth: tuple[str, str] | None = None) -> tuple[int, Any]:
    basic = None if auth is None else aiohttp.encode_basic_auth(*auth)
    headers = {} if basic is None else {"Authorization": basic}
    async with aiohttp.ClientSession() as session, session.post(url, data=form, headers=headers) as answer:
        return answer.status, await answer.json()


def read(token: str, keys: Any) -> Any:
    """Return a token's claims, as somebody who only knows the published keys verifies them."""
    kid = jwt.get_unverified_header(token)["kid"]
    key = next(one for one in jwt.PyJWKSet.from_dict(keys).keys if one.key_id == kid)
    return jwt.decode(token, key, [key.algorithm_name], audience=GATEWAY)


async def test_metadata_stands_where_all_three_rules_want_it() -> None:
    """Under the issuer's path; a place that is taken away is a 404."""
    async with AuthorizationServer() as corp:
        places = (
            f"{corp.origin}/.well-known/oauth-authorization-server/corp",
            f"{corp.origin}/.well-known/openid-configuration/corp",
            f"{corp.issuer}/.well-known/openid-configuration",
        )
        said = [await get(place) for place in places]
        assert [one["issuer"] for one in said] == [corp.issuer] * 3
        corp.places = {"appended"}
        corp.metadata = {"jwks_uri": None, "issuer": "https://evil.example"}
        assert [await get(place) for place in places[:2]] == [404, 404]
        assert (await get(places[2]))["issuer"] == "https://evil.example"
        assert corp.count("metadata") == 6


@pytest.mark.parametrize("alg", ["RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA"])
async def test_tokens_are_signed_by_published_keys(alg: str) -> None:
    """Before and after a rotation, until the key is withdrawn."""
    async with AuthorizationServer(alg=alg) as corp:
        old = corp.mint("alice", aud=GATEWAY, scope="a b")
        first = corp.keys[0]
        corp.rotate(alg)
        new = corp.mint("bob", aud=GATEWAY)
        published = await get(corp.url("jwks"))
        assert [read(token, published)["sub"] for token in (old, new)] == ["alice", "bob"]
        assert "d" not in published["keys"][0]
        corp.withdraw(first)
        assert [key["kid"] for key in (await get(corp.url("jwks")))["keys"]] == [corp.keys[0].kid]


async def test_a_code_is_worth_a_token_once_and_with_its_verifier_only() -> None:
    """PKCE, the exact redirect, the resource, and a refresh token that is used up."""
    async with AuthorizationServer() as corp:
        corp.client("app", redirect_uris=["http://localhost:1/cb"])
        verifier = "v" * 50
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": "app",
            "redirect_uri": "http://localhost:1/cb",
            "state": "s",
            "scope": "read",
            "resource": GATEWAY,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }

        async def code() -> str:
            async with (
                aiohttp.ClientSession() as session,
                session.get(corp.url("authorize"), params=query, allow_redirects=False) as answer,
            ):
                came = parse_qs(urlsplit(answer.headers["location"]).query)
                assert (came["state"], came["iss"]) == (["s"], [corp.issuer])
                return came["code"][0]

        form = {"grant_type": CODE, "client_id": "app", "redirect_uri": "http://localhost:1/cb"}
        wrong = {**form, "code": await code(), "code_verifier": "w" * 50}
        assert (await post(corp.url("token"), wrong)) == (400, {"error": "invalid_grant"})
        right = {**form, "code": await code(), "code_verifier": verifier}
        status, issued = await post(corp.url("token"), right)
        assert status == 200
        assert read(issued["access_token"], await get(corp.url("jwks")))["scope"] == "read"
        assert (await post(corp.url("token"), right))[0] == 400
        again = {"grant_type": "refresh_token", "client_id": "app", "refresh_token": issued["refresh_token"]}
        assert (await post(corp.url("token"), again))[1]["scope"] == "read"
        assert (await post(corp.url("token"), again))[0] == 400


async def test_clients_prove_who_they_are() -> None:
    """With a secret sent either way, or by signing; each assertion counts once."""
    async with AuthorizationServer() as corp:
        corp.client("gw", "s3cret+/ &")
        corp.client("strict", "x", auth="client_secret_post")
        signer = make_key("ES256")
        corp.client("signs", key=signer.private.public_key())
        form = {"grant_type": "client_credentials", "resource": GATEWAY}
        # RFC 6749 2.3.1: id and secret are form-encoded first.
        assert (await post(corp.url("token"), form, ("gw", "s3cret%2B%2F+%26")))[0] == 200
        assert (await post(corp.url("token"), form, ("gw", "wrong")))[0] == 401
        assert (await post(corp.url("token"), form, ("strict", "x")))[0] == 401
        posted = {**form, "client_id": "strict", "client_secret": "x"}
        assert (await post(corp.url("token"), posted))[0] == 200
        claims = corp.claims("signs", iss="signs", aud=corp.url("token"), expires_in=60)
        signed = {"client_assertion_type": ASSERTION, "client_assertion": sign(claims, signer, {})}
        status, issued = await post(corp.url("token"), {**form, **signed})
        assert status == 200
        assert read(issued["access_token"], await get(corp.url("jwks")))["sub"] == "signs"
        assert (await post(corp.url("token"), {**form, **signed}))[0] == 401


async def test_a_token_is_exchanged_for_one_of_another_audience() -> None:
    """It ends no later than the one it is given for, and names who acts."""
    async with AuthorizationServer() as corp:
        corp.client("gw", "s")
        form = {
            "grant_type": EXCHANGE,
            "subject_token": corp.mint("alice", aud="https://front.example", expires_in=60),
            "subject_token_type": ACCESS_TOKEN,
            "resource": GATEWAY,
            "scope": "read",
        }
        status, issued = await post(corp.url("token"), form, ("gw", "s"))
        assert (status, issued["issued_token_type"]) == (200, ACCESS_TOKEN)
        claims = read(issued["access_token"], await get(corp.url("jwks")))
        assert (claims["sub"], claims["act"]) == ("alice", {"sub": "gw"})
        assert 0 < issued["expires_in"] <= 60
        corp.revoke(form["subject_token"])
        assert (await post(corp.url("token"), form, ("gw", "s"))) == (400, {"error": "invalid_grant"})


async def test_introspection_tells_who_may_ask_what_a_token_says() -> None:
    """Of JWTs and opaque ones alike, until they are revoked."""
    async with AuthorizationServer() as corp:
        corp.client("gw", "s")
        for token in (corp.opaque("alice", aud=GATEWAY), corp.mint("alice", aud=GATEWAY)):
            status, said = await post(corp.url("introspect"), {"token": token}, ("gw", "s"))
            assert (status, said["active"], said["sub"], said["aud"]) == (200, True, "alice", GATEWAY)
            assert (await post(corp.url("introspect"), {"token": token}, ("gw", "x")))[0] == 401
            await post_empty(corp.url("revoke"), {"token": token}, ("gw", "s"))
            assert (await post(corp.url("introspect"), {"token": token}, ("gw", "s")))[1] == {"active": False}


async def post_empty(url: str, form: dict[str, str], auth: tuple[str, str]) -> None:
    headers = {"Authorization": aiohttp.encode_basic_auth(*auth)}
    async with aiohttp.ClientSession() as session, session.post(url, data=form, headers=headers) as answer:
        assert answer.status == 200


async def test_it_misbehaves_as_it_is_told() -> None:
    """Once or from now on, and it counts what it was asked all the same."""
    async with AuthorizationServer() as corp:
        corp.once("jwks", failing(503))
        assert await get(corp.url("jwks")) == 503
        assert (await get(corp.url("jwks")))["keys"]
        corp.client("gw", "s")
        corp.on("token", denying("invalid_scope"))
        assert (await post(corp.url("token"), {}, ("gw", "s"))) == (400, {"error": "invalid_scope"})
        corp.on("token", None)
        held = asyncio.Event()
        corp.on("jwks", late(held))
        waiting = asyncio.create_task(get(corp.url("jwks")))
        for _ in range(3):
            await corp.arrived("jwks")
        assert not waiting.done()
        held.set()
        assert (await waiting)["keys"]
