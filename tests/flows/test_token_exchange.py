"""A token for each caller, in exchange for his, which goes to the authorization server alone (Z-09)."""

import asyncio
import time
from hashlib import sha256

import pytest

from tests.support.authorization_server import (
    ACCESS_TOKEN,
    EXCHANGE,
    AuthorizationServer,
    denying,
    failing,
    late,
    saying,
)
from tests.support.legacy_upstream import LegacyServer, legacy
from tests.support.protected import Guard
from tests.support.running import ONCE, Clock, running
from tests.support.scripted import ScriptedUpstream, default, tool

SECRET = "s3cret-of-the-gateway"
GATEWAY = "https://gw.example/mcp"


def exchanging(upstream, corp, **members):
    client = {"client_id": "gw", "client_secret": SECRET, "issuer": corp.issuer}
    return {"url": upstream.url, "auth": {"token_exchange": {**client, **members}}}


def token_of(corp, subject, **claims):
    """Return a token of this caller for the gateway."""
    corp.client("gw", SECRET)
    return corp.mint(subject, aud=GATEWAY, **claims)


async def test_the_upstream_sees_whose_request_it_is_and_never_the_callers_token():
    """A token of the same subject, for the upstream; one request for it per caller."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        ann, bob = token_of(corp, "ann"), token_of(corp, "bob")
        alpha.on("*", guard := Guard(corp, alpha))
        async with running({"alpha": exchanging(alpha, corp)}) as gateway:
            assert gateway.status("alpha").state == "up"
            before = len(guard.tokens)
            for token in (ann, bob, ann):
                assert (await gateway.ask("tools/list", token=token)).names == ["alpha__a"]
                assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=token)).status == 200
            shown = guard.tokens[before:]
        assert {guard.subject(token) for token in shown} == {"ann", "bob"}
        assert not {ann, bob} & set(shown)
        assert corp.count("token") == 2
        form = corp.seen("token")[0].form
        assert form == {
            "grant_type": EXCHANGE,
            "subject_token": ann,
            "subject_token_type": ACCESS_TOKEN,
            "requested_token_type": ACCESS_TOKEN,
            "resource": alpha.url,
        }


async def test_each_caller_is_asked_for_as_himself():
    """Lists and calls of one are never answered with the other's (B07, B08)."""
    async with AuthorizationServer() as corp, ScriptedUpstream(scope="private") as alpha:
        ann, bob = token_of(corp, "ann"), token_of(corp, "bob")
        guard = Guard(corp, alpha)

        async def by_subject(exchange):
            alpha.tools = [tool(f"of-{guard.subject(guard.tokens[-1])}")]
            await default(exchange)

        guard.then = by_subject
        alpha.on("*", guard)
        async with running({"alpha": exchanging(alpha, corp)}, clock=Clock()) as gateway:
            for token, name in ((ann, "ann"), (bob, "bob"), (ann, "ann")):
                assert (await gateway.ask("tools/list", token=token)).names == [f"alpha__of-{name}"]
            assert len(alpha.seen("tools/list")) == 2
            refused = await gateway.ask("tools/call", {"name": "alpha__of-bob"}, token=ann)
            assert refused.code == -32602


async def test_a_caller_without_a_token_is_told_to_bring_one():
    """401 of our own for a call; in a merged list that part is missing."""
    async with (
        AuthorizationServer() as corp,
        ScriptedUpstream(tools=[tool("a")], scope="private") as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
    ):
        ann = token_of(corp, "ann")
        alpha.on("*", Guard(corp, alpha))
        async with running({"alpha": exchanging(alpha, corp), "beta": beta}, pace=ONCE) as gateway:
            await gateway.ask("tools/list", token=ann)
            assert (await gateway.ask("tools/list")).missing == ["alpha"]
            known = len(alpha.requests)
            refused = await gateway.ask("tools/call", {"name": "alpha__a"})
            assert refused.status == 401
            assert "it takes a token of the caller's in exchange" in refused.error["message"]
            assert alpha.url.rpartition("/")[0] not in (refused.header("www-authenticate") or "")
            assert len(alpha.requests) == known
        assert all(asked.form.get("subject_token") == ann for asked in corp.seen("token"))


async def test_callers_without_a_token_come_through_where_the_operator_lets_them():
    """Without any credential: whether that is enough is the upstream's to say."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        settings = exchanging(alpha, corp, anonymous=True)
        async with running({"alpha": settings}, pace=ONCE) as gateway:
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]
            assert (await gateway.ask("tools/call", {"name": "alpha__a"})).status == 200
            alpha.on("tools/call", Guard(corp, alpha))
            assert (await gateway.ask("tools/call", {"name": "alpha__a"})).status == 401
        assert corp.asked == []
        assert {seen.header("authorization") for seen in alpha.requests} == {None}


async def test_what_is_given_is_shown_no_longer_than_the_callers_own_token_lasts():
    """Whatever lifetime it has itself."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        wall, clock = Clock(), Clock()
        wall.now = time.time()
        ann = token_of(corp, "ann", expires_in=100)
        alpha.on("*", guard := Guard(corp, alpha))
        answer = {"token_type": "Bearer", "issued_token_type": ACCESS_TOKEN, "expires_in": 36000}
        corp.on("token", saying({**answer, "access_token": corp.mint("ann", aud=alpha.url)}))
        async with running({"alpha": exchanging(alpha, corp)}, clock=clock, wall_clock=wall) as gateway:
            assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=ann)).status == 200
            shown = len(guard.tokens)
            wall.advance(101.0)
            clock.advance(101.0)
            over = await gateway.ask("tools/call", {"name": "alpha__a"}, token=ann)
            assert over.status == 401
            assert 'error="invalid_token"' in (over.header("www-authenticate") or "")
            assert len(guard.tokens) == shown


async def test_the_trouble_of_one_caller_is_not_anothers():
    """A refused exchange is the gateway's matter, is not tried again by each call, and stops nobody else."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        ann, bob = token_of(corp, "ann"), token_of(corp, "bob")
        alpha.on("*", Guard(corp, alpha))
        async with running({"alpha": exchanging(alpha, corp)}, clock=Clock(), pace=ONCE) as gateway:
            assert (await gateway.ask("tools/list", token=ann)).names == ["alpha__a"]
            corp.revoke(bob)
            for n in range(5):
                failed = await gateway.ask("tools/call", {"name": "alpha__a"}, token=bob, id=n)
                assert (failed.status, failed.code) == (200, -32603)
                assert failed.header("www-authenticate") is None
            assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=ann)).status == 200
            eve = token_of(corp, "eve")
            assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=eve)).status == 200
        assert sum(asked.form["subject_token"] == bob for asked in corp.seen("token")) == 1


@pytest.mark.parametrize("trouble", [failing(503), denying("invalid_client", status=401)])
async def test_a_server_in_trouble_is_left_alone_by_all_callers(trouble):
    """Two callers' questions, for one alone may be what is wrong; then a rest, however many there are."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        ann = token_of(corp, "ann")
        alpha.on("*", Guard(corp, alpha))
        clock = Clock()
        async with running({"alpha": exchanging(alpha, corp)}, clock=clock, pace=ONCE) as gateway:
            assert (await gateway.ask("tools/list", token=ann)).names == ["alpha__a"]
            corp.on("token", trouble)
            for n in range(10):
                token = token_of(corp, f"caller-{n}")
                failed = await gateway.ask("tools/call", {"name": "alpha__a"}, token=token)
                assert failed.code == -32603
            assert corp.count("token") == 3
            assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=ann)).status == 200
            # When the rest is over, one of them alone does not prolong it.
            clock.advance(60.0)
            failed = await gateway.ask("tools/call", {"name": "alpha__a"}, token=token_of(corp, "caller-1"))
            assert failed.code == -32603
            corp.on("token", None)
            assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=token)).status == 200


class Poison:
    """Fails on what these callers' tokens are exchanged for, and on nothing else."""

    def __init__(self, corp, trouble, *tokens):
        self.tokens = set(tokens)
        self.struck = 0
        self._corp = corp
        self._trouble = trouble
        corp.on("token", self)

    async def __call__(self, asked):
        if asked.form["subject_token"] not in self.tokens:
            return await self._corp.default(asked)
        self.struck += 1
        return await self._trouble(asked)


@pytest.mark.parametrize("trouble", [failing(500), failing(429, Retry_After="3600"), late()])
async def test_a_token_on_which_the_server_fails_puts_nobody_elses_to_rest(trouble):
    """Whatever it does to the authorization server, and however often: the others are asked for as ever."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        ann, eve = token_of(corp, "ann"), token_of(corp, "eve")
        alpha.on("*", Guard(corp, alpha))
        clock = Clock()
        settings = exchanging(alpha, corp, timeout="1s")
        async with running({"alpha": settings}, clock=clock, pace=ONCE) as gateway:
            assert (await gateway.ask("tools/list", token=ann)).names == ["alpha__a"]
            poison = Poison(corp, trouble, eve)
            for n in range(3):
                for again in range(2):
                    failed = await gateway.ask(
                        "tools/call", {"name": "alpha__a"}, token=eve, id=10 * n + again
                    )
                    assert failed.code == -32603
                assert poison.struck == n + 1  # she rests, too
                fresh = token_of(corp, f"caller-{n}")
                assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=fresh)).status == 200
                clock.advance(301.0)


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("had_one", [False, True])
async def test_who_waits_for_a_token_is_in_nobodys_way(era, had_one):
    """The only connection stays free, be it for the first token or for another one after a refusal."""
    upstream = ScriptedUpstream if era == "modern" else LegacyServer
    async with AuthorizationServer() as corp, upstream(tools=[tool("a")]) as alpha:
        ann, eve = token_of(corp, "ann"), token_of(corp, "eve")
        guard = Guard(corp, alpha, then=default if era == "modern" else legacy)
        if isinstance(alpha, LegacyServer):
            alpha.replaces = True
        alpha.on("*", guard)
        settings = {**exchanging(alpha, corp), "connections": 1}
        async with running({"alpha": settings}, clock=Clock(), pace=ONCE) as gateway:

            async def call(token):
                return await gateway.ask("tools/call", {"name": "alpha__a"}, token=token)

            assert (await call(ann)).status == 200
            if had_one:
                assert (await call(eve)).status == 200
                guard.reject(guard.tokens[-1])
            known, answer = corp.count("token"), asyncio.Event()
            for _ in range(known):
                await corp.arrived("token")
            corp.on("token", late(answer))
            waits = asyncio.create_task(call(eve))
            assert (await corp.arrived("token")).form["subject_token"] == eve
            assert (await call(ann)).status == 200
            assert not waits.done()
            answer.set()
            assert (await waits).status == 200
            assert gateway.status("alpha").active == 0


async def test_one_caller_exchanges_few_tokens_at_once():
    """However many he brings, connections are left to the others."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        ann = token_of(corp, "ann")
        alpha.on("*", Guard(corp, alpha))
        settings = {
            "authentication": {"tokens": {"corp": {"issuer": corp.issuer}}},
            "public_url": GATEWAY.removesuffix("/mcp"),
        }
        async with running({"alpha": exchanging(alpha, corp)}, pace=ONCE, **settings) as gateway:

            async def call(token):
                return await gateway.ask("tools/call", {"name": "alpha__a"}, token=token)

            assert (await call(ann)).status == 200
            answer, eves = asyncio.Event(), 0

            async def held(asked):
                nonlocal eves
                if corp.look(asked.form["subject_token"])["sub"] != "eve":
                    return await corp.default(asked)
                eves += 1
                assert eves <= 4
                try:
                    return await late(answer)(asked)
                finally:
                    eves -= 1

            corp.on("token", held)
            calls = [asyncio.create_task(call(token_of(corp, "eve", jti=f"{n}"))) for n in range(30)]
            for _ in range(5):
                await corp.arrived("token")
            assert (await call(token_of(corp, "bob"))).status == 200
            answer.set()
            assert {answer.status for answer in await asyncio.gather(*calls)} == {200}
        assert corp.count("token") == 32


async def test_a_token_that_is_given_back_as_it_is_reaches_no_upstream():
    """It is the caller's, for the gateway alone (Z-09)."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        ann, eve = token_of(corp, "ann"), token_of(corp, "eve")
        alpha.on("*", guard := Guard(corp, alpha))
        async with running({"alpha": exchanging(alpha, corp)}, clock=Clock(), pace=ONCE) as gateway:
            assert (await gateway.ask("tools/list", token=ann)).names == ["alpha__a"]
            corp.on("token", saying({"access_token": eve, "token_type": "Bearer"}))
            failed = await gateway.ask("tools/call", {"name": "alpha__a"}, token=eve)
            assert failed.code == -32603
        assert eve not in guard.tokens


async def test_requests_of_one_caller_wait_for_one_exchange():
    """However many come at once."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        ann = token_of(corp, "ann")
        alpha.on("*", Guard(corp, alpha))
        async with running({"alpha": exchanging(alpha, corp)}, pace=ONCE) as gateway:
            asked = (gateway.ask("tools/call", {"name": "alpha__a"}, token=ann, id=n) for n in range(10))
            assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        assert corp.count("token") == 1


async def test_only_so_many_callers_are_remembered():
    """The one who was away longest is asked for anew."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        tokens = [token_of(corp, f"caller-{n}") for n in range(3)]
        alpha.on("*", Guard(corp, alpha))
        settings = exchanging(alpha, corp, remembered=2)
        async with running({"alpha": settings}, clock=Clock(), pace=ONCE) as gateway:
            for token in (*tokens, tokens[2], tokens[0]):
                assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=token)).status == 200
        assert corp.count("token") == 4


async def test_audience_and_the_kind_of_token_are_sent_as_written():
    """Where the authorization server knows the upstream by a name."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        ann = token_of(corp, "ann")
        settings = exchanging(
            alpha, corp, audience="crm", resource="", subject_token_type="jwt", scopes=["read"]
        )
        async with running({"alpha": settings}, pace=ONCE) as gateway:
            assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=ann)).status == 200
        form = corp.seen("token")[0].form
        assert (form["audience"], form["scope"], "resource" in form) == ("crm", "read", False)
        assert form["subject_token_type"] == "urn:ietf:params:oauth:token-type:jwt"


async def test_sessions_of_an_older_server_are_each_callers_own():
    """Two callers never meet in one; another token of a caller begins another (B07)."""
    async with AuthorizationServer() as corp, LegacyServer(tools=[tool("a")]) as alpha:
        ann, bob, again = (token_of(corp, name) for name in ("ann", "bob", "ann"))
        guard = Guard(corp, alpha, then=legacy)
        sessions = {}

        async def kept(exchange):
            if exchange.received.method == "tools/call":
                whose = guard.subject(guard.tokens[-1])
                sessions.setdefault(whose, []).append(exchange.received.header("mcp-session-id"))
            await legacy(exchange)

        guard.then = kept
        alpha.on("*", guard)
        async with running({"alpha": exchanging(alpha, corp)}, pace=ONCE) as gateway:
            for token in (ann, bob, ann, again):
                assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=token)).status == 200
        assert sessions["ann"][0] == sessions["ann"][1] != sessions["ann"][2]
        assert not set(sessions["ann"]) & set(sessions["bob"])


async def test_a_credential_that_is_no_token_is_not_exchanged():
    """A login goes nowhere."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        ann = token_of(corp, "ann")
        async with running({"alpha": exchanging(alpha, corp)}, pace=ONCE) as gateway:
            await gateway.ask("tools/list", token=ann)
            refused = await gateway.ask(
                "tools/call", {"name": "alpha__a"}, headers={"authorization": "Basic dXNlcjpwdw=="}
            )
            assert refused.status == 401
        assert corp.count("token") == 1


async def test_a_verified_callers_token_is_exchanged_and_an_api_key_is_not():
    """From one end to the other: who is let in by an API key has nothing to exchange (Z-09)."""
    key = "mcpgw_0123456789abcdef"
    keys = {"ci": {"hash": f"sha256:{sha256(key.encode()).hexdigest()}"}}
    async with (
        AuthorizationServer() as corp,
        ScriptedUpstream(tools=[tool("a")], scope="private") as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
    ):
        ann = token_of(corp, "ann")
        alpha.on("*", guard := Guard(corp, alpha))
        settings = {
            "authentication": {"tokens": {"corp": {"issuer": corp.issuer}}, "keys": keys},
            "public_url": GATEWAY.removesuffix("/mcp"),
        }
        upstreams = {"alpha": exchanging(alpha, corp), "beta": beta}
        async with running(upstreams, pace=ONCE, **settings) as gateway:
            assert (await gateway.ask("tools/list", token=ann)).names == ["alpha__a", "beta__b"]
            assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token=ann)).status == 200
            listed = await gateway.ask("tools/list", token=key)
            assert (listed.names, listed.missing) == (["beta__b"], ["alpha"])
            assert (await gateway.ask("tools/call", {"name": "beta__b"}, token=key)).status == 200
            refused = await gateway.ask("tools/call", {"name": "alpha__a"}, token=key)
            assert refused.status == 401
            assert GATEWAY.removesuffix("/mcp") in (refused.header("www-authenticate") or "")
            stranger = await gateway.ask("tools/list", token=corp.mint("eve", aud="https://other.example"))
            assert stranger.status == 401
        shown = [token for token in guard.tokens if token is not None]
        assert {guard.subject(token) for token in shown} == {"ann"}
        assert [asked.form["subject_token"] for asked in corp.seen("token")] == [ann]
