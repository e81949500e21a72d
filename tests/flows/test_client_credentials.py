"""Tokens that the gateway is given for itself: found, asked for, shown, replaced (Z-10, Z-11, U-28)."""

import asyncio
import json
import logging

import pytest
from cryptography.hazmat.primitives import serialization

from tests.support.authorization_server import (
    ASSERTION,
    AuthorizationServer,
    denying,
    failing,
    garbage,
    huge,
    late,
    make_key,
    redirecting,
    saying,
)
from tests.support.certificates import Authority
from tests.support.legacy_upstream import LegacyServer, legacy
from tests.support.protected import Guard
from tests.support.running import ONCE, Clock, running
from tests.support.scripted import ScriptedUpstream, default, status, tool
from tests.support.sse_upstream import SseUpstream

SECRET = "s3cret/+:?-of-the-gateway"
CLIENT = {"client_id": "gw", "client_secret": SECRET}
TOKENLESS = "upstream alpha: no access token for it could be had"


def obtaining(upstream, corp=None, **members):
    known = {} if corp is None else {"issuer": corp.issuer}
    return {"url": upstream.url, "auth": {"client_credentials": {**CLIENT, **known, **members}}}


def known(corp, **members):
    corp.client("gw", SECRET, **members)


def elsewhere(document):
    return status(200, json.dumps(document).encode(), "application/json")


# Found and asked for


async def test_everything_is_sent_with_a_token_that_the_issuer_gave_for_this_upstream():
    """Discovery, one request for a token, and no word of it to the client."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", guard := Guard(corp, alpha))
        async with running({"alpha": obtaining(alpha, corp)}) as gateway:
            assert (await gateway.ask("tools/list", token="TOK-A")).names == ["alpha__a"]
            called = await gateway.ask("tools/call", {"name": "alpha__a"}, token="TOK-B")
            assert called.text["tool"] == "a"
        assert corp.count("token") == 1
        assert guard.turned_away == 0
        assert len(set(guard.tokens)) == 1
        asked = corp.seen("token")[0]
        assert asked.form == {"grant_type": "client_credentials", "resource": alpha.url}
        assert asked.basic == ("gw", SECRET)


async def test_where_tokens_are_given_out_is_found_by_the_upstreams_metadata():
    """Nothing about it is in the configuration (RFC 9728)."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", guard := Guard(corp, alpha))
        guard.published = {"scopes_supported": ["read", "list"]}
        async with running({"alpha": obtaining(alpha)}) as gateway:
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        assert guard.turned_away == 0
        assert corp.seen("token")[0].form["scope"] == "read list"


async def test_where_tokens_are_given_out_is_found_by_the_upstreams_challenge():
    """The metadata is at a place of its own, which only the refusal tells; so are the scopes."""
    async with (
        AuthorizationServer() as corp,
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream() as other,
    ):
        known(corp)
        place = {"resource": alpha.url, "authorization_servers": [corp.issuer], "scopes_supported": ["x"]}
        other.on("*", elsewhere(place))
        alpha.on("*", guard := Guard(corp, alpha))
        guard.scope, guard.published, guard.named = "files", None, f"{other.url}/elsewhere"
        async with running({"alpha": obtaining(alpha)}) as gateway:
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        assert guard.tokens[0] is None
        assert guard.turned_away == 1
        assert corp.seen("token")[0].form["scope"] == "files"


async def test_an_upstream_that_says_nowhere_who_gives_out_tokens():
    """It is asked without one; if it wants one, the error says what is missing."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        alpha.on("*", guard := Guard(corp, alpha))
        guard.published = guard.named = None
        async with running({"alpha": obtaining(alpha)}, pace=ONCE) as gateway:
            down = gateway.status("alpha")
            assert down.state == "down"
            assert "set `issuer`" in down.detail
            failed = await gateway.ask("tools/call", {"name": "alpha__a"})
            assert failed.code == -32603
        assert corp.asked == []


@pytest.mark.parametrize("places", [{"oauth"}, {"oidc"}, {"appended"}])
async def test_the_issuers_metadata_is_found_at_each_of_the_three_places(places):
    """In the order that is laid down (Z-11)."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        corp.places = places
        alpha.on("*", Guard(corp, alpha))
        async with running({"alpha": obtaining(alpha, corp)}) as gateway:
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        looked = [asked.path for asked in corp.asked if "well-known" in asked.path]
        assert (
            looked
            == [
                "/.well-known/oauth-authorization-server/corp",
                "/.well-known/openid-configuration/corp",
                "/corp/.well-known/openid-configuration",
            ][: ["oauth", "oidc", "appended"].index(next(iter(places))) + 1]
        )


async def test_token_url_needs_no_discovery_and_parameters_are_sent():
    """All is written: nobody else is asked."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", guard := Guard(corp, alpha))
        settings = obtaining(
            alpha,
            token_url=corp.url("token"),
            client_auth="post",
            scopes=["r", "w"],
            resource="",
            parameters={"audience": alpha.url, "grant_type": "other"},
        )
        async with running({"alpha": settings}) as gateway:
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]
        assert [asked.endpoint for asked in corp.asked] == ["token"]
        assert guard.documents == 0
        assert corp.seen("token")[0].form == {
            "grant_type": "client_credentials",
            "scope": "r w",
            "audience": alpha.url,
            "client_id": "gw",
            "client_secret": SECRET,
        }


async def test_a_server_that_only_takes_the_secret_in_the_form_gets_it_there():
    """Its metadata says so, and the configuration says nothing else."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp, auth="client_secret_post")
        corp.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
        alpha.on("*", Guard(corp, alpha))
        async with running({"alpha": obtaining(alpha, corp)}) as gateway:
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]


@pytest.mark.parametrize("alg", ["RS256", "ES256", "EdDSA"])
async def test_a_client_signs_instead_of_showing_a_secret(alg):
    """private_key_jwt: addressed to the issuer, used once (RFC 7523)."""
    key = make_key(alg, number=0)
    pem = key.private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        corp.client("gw", key=key.private.public_key())
        alpha.on("*", Guard(corp, alpha))
        signing = {"client_id": "gw", "client_key": pem, "issuer": corp.issuer}
        settings = {"url": alpha.url, "auth": {"client_credentials": signing}}
        clock = Clock()
        async with running({"alpha": settings}, clock=clock) as gateway:
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]
            clock.advance(3601.0)
            assert (await gateway.ask("tools/call", {"name": "alpha__a"})).status == 200
        forms = [asked.form for asked in corp.seen("token")]
        assert len({form["client_assertion"] for form in forms}) == 2
        assert {form["client_assertion_type"] for form in forms} == {ASSERTION}
        assert all("client_secret" not in form for form in forms)


# Whom the secret is shown to


async def test_the_secret_is_shown_to_no_other_server_later():
    """An upstream that is taken over, or changes its mind, does not get it (Z-11)."""
    async with (
        AuthorizationServer() as corp,
        AuthorizationServer() as evil,
        ScriptedUpstream(tools=[tool("a")]) as alpha,
    ):
        known(corp)
        known(evil)
        alpha.on("*", guard := Guard(corp, alpha))
        clock = Clock()
        async with running({"alpha": obtaining(alpha)}, clock=clock, pace=ONCE) as gateway:
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]
            guard.published = {"authorization_servers": [evil.issuer]}
            clock.advance(3601.0)
            failed = await gateway.ask("tools/call", {"name": "alpha__a"})
            assert (failed.code, failed.error["message"]) == (-32603, TOKENLESS)
        assert evil.count("token") == 0


@pytest.mark.parametrize(
    "named",
    [
        "https://10.0.0.1",
        "https://169.254.169.254",
        "http://as.example",
        "https://user:pw@as.example",
        "file:///etc/passwd",
    ],
)
async def test_an_upstream_cannot_send_the_gateway_into_the_house(named):
    """Neither by its list of servers nor by the place of its metadata (Z-12)."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        alpha.on("*", guard := Guard(corp, alpha))
        guard.published = {"authorization_servers": [named]}
        async with running({"alpha": obtaining(alpha)}, pace=ONCE) as gateway:
            down = gateway.status("alpha")
            assert (down.state, down.outage) == ("down", False)
        guard.published, guard.named = None, f"{named}/metadata"
        async with running({"alpha": obtaining(alpha)}, pace=ONCE) as gateway:
            assert gateway.status("alpha").state == "down"


async def test_metadata_of_another_issuer_does_not_count():
    """It would speak for whom it likes; nor is a redirect followed with a secret."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", Guard(corp, alpha))
        corp.metadata["issuer"] = f"{corp.issuer}/"
        async with running({"alpha": obtaining(alpha, corp)}, pace=ONCE) as gateway:
            assert "another issuer" in gateway.status("alpha").detail
        corp.metadata.clear()
        corp.on("token", redirecting(f"{corp.origin}/elsewhere", status=307))
        async with running({"alpha": obtaining(alpha, corp)}, pace=ONCE) as gateway:
            assert gateway.status("alpha").state == "down"
        assert [asked.path for asked in corp.asked if "elsewhere" in asked.path] == []


async def test_each_upstream_has_a_token_of_its_own():
    """Of the same client at the same server: no upstream sees what was given for another."""
    async with (
        AuthorizationServer() as corp,
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
    ):
        known(corp)
        guards = [Guard(corp, alpha), Guard(corp, beta)]
        alpha.on("*", guards[0])
        beta.on("*", guards[1])
        async with running({"alpha": obtaining(alpha, corp), "beta": obtaining(beta, corp)}) as gateway:
            assert (await gateway.ask("tools/list")).names == ["alpha__a", "beta__b"]
        assert [guard.turned_away for guard in guards] == [0, 0]
        assert not set(guards[0].tokens) & set(guards[1].tokens)


# How long it is used


async def test_requests_at_the_same_time_wait_for_one_token():
    """One request in flight, however many need it."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", guard := Guard(corp, alpha))
        clock = Clock()
        async with running({"alpha": obtaining(alpha, corp)}, clock=clock, pace=ONCE) as gateway:
            await gateway.ask("tools/list")
            clock.advance(3601.0)
            asked = (gateway.ask("tools/call", {"name": "alpha__a"}, id=n) for n in range(20))
            assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        assert corp.count("token") == 2
        assert guard.turned_away == 0


async def test_a_token_is_replaced_before_its_end_and_nobody_waits_for_it():
    """The old one is shown until the new one is there."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", guard := Guard(corp, alpha))
        clock, there = Clock(), asyncio.Event()
        async with running({"alpha": obtaining(alpha, corp)}, clock=clock, pace=ONCE) as gateway:
            await gateway.ask("tools/list")
            corp.once("token", late(there))
            clock.advance(3580.0)
            assert (await gateway.ask("tools/call", {"name": "alpha__a"})).status == 200
            assert len(set(guard.tokens)) == 1
            there.set()
            await gateway.until_counted('upstream_tokens_total{outcome="obtained",upstream="alpha"}', 2)
            assert (await gateway.ask("tools/call", {"name": "alpha__a"})).status == 200
            assert len(set(guard.tokens)) == 2


@pytest.mark.parametrize(
    "trouble",
    [failing(500), failing(429, Retry_After="5"), garbage(), huge(2**20), denying("invalid_client")],
)
async def test_while_the_authorization_server_is_in_trouble(trouble):
    """A token is used to its end; then it says so, and the server is not asked by each call."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", Guard(corp, alpha))
        clock = Clock()
        async with running({"alpha": obtaining(alpha, corp)}, clock=clock, pace=ONCE) as gateway:
            await gateway.ask("tools/list")
            corp.on("token", trouble)
            clock.advance(3580.0)
            for n in range(5):
                assert (await gateway.ask("tools/call", {"name": "alpha__a"}, id=n)).status == 200
            clock.advance(21.0)
            for n in range(5):
                failed = await gateway.ask("tools/call", {"name": "alpha__a"}, id=n)
                assert (failed.status, failed.code) == (200, -32603)
                assert failed.error["message"] == TOKENLESS
                assert failed.header("www-authenticate") is None
            assert corp.count("token") == 3
            corp.on("token", None)
            clock.advance(10.0)
            assert (await gateway.ask("tools/call", {"name": "alpha__a"})).status == 200


async def test_a_server_that_does_not_answer_costs_no_more_than_its_timeout():
    """`timeout` of the client's settings, whatever the upstream's is."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        corp.on("token", late())
        settings = obtaining(alpha, corp, timeout="50ms")
        async with running({"alpha": settings}, pace=ONCE) as gateway:
            down = gateway.status("alpha")
            assert (down.state, down.outage) == ("down", True)
            assert "no answer within 0.05s" in down.detail
        assert alpha.requests == []


async def test_a_server_out_of_reach_is_an_outage_that_stale_answers_bridge():
    """What it said before may stand in (C-33)."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")], ttl_ms=1000) as alpha:
        known(corp)
        alpha.on("*", Guard(corp, alpha))
        clock = Clock()
        cache = {"stale_if_error": "2h"}
        async with running({"alpha": obtaining(alpha, corp)}, clock=clock, pace=ONCE, cache=cache) as gateway:
            await gateway.ask("tools/list", token="T")
            await corp.stop()
            clock.advance(3601.0)
            assert (await gateway.ask("tools/list", token="T")).names == ["alpha__a"]


# Refused


async def test_a_token_that_is_taken_back_is_replaced_and_the_call_made_once_more():
    """Once: the tool runs once (U-28)."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        ran = []

        async def run(exchange):
            if exchange.received.method == "tools/call":
                ran.append(exchange.received.header("authorization"))
            await default(exchange)

        alpha.on("*", guard := Guard(corp, alpha, then=run))
        async with running({"alpha": obtaining(alpha, corp)}, pace=ONCE) as gateway:
            await gateway.ask("tools/list")
            guard.reject(guard.tokens[-1])
            asked = (gateway.ask("tools/call", {"name": "alpha__a"}, id=n) for n in range(10))
            assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        assert len(ran) == 10
        assert corp.count("token") == 2


async def test_an_upstream_that_refuses_every_token_is_no_load_for_the_authorization_server():
    """The call fails as the gateway's matter, not the client's (B15); new tokens are asked for seldom."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", Guard(corp, alpha))
        async with running({"alpha": obtaining(alpha, corp)}, pace=ONCE, clock=Clock()) as gateway:
            await gateway.ask("tools/list")
            alpha.on("tools/call", status(401, WWW_Authenticate='Bearer error="invalid_token"'))
            for n in range(10):
                failed = await gateway.ask("tools/call", {"name": "alpha__a"}, id=n)
                assert (failed.status, failed.code) == (200, -32603)
                assert failed.error["message"] == "upstream alpha: it rejected the gateway's credentials"
                assert failed.header("www-authenticate") is None
        assert corp.count("token") == 2


async def test_in_a_merged_list_only_that_part_is_missing():
    """Whatever keeps the token away (B15)."""
    async with (
        AuthorizationServer() as corp,
        ScriptedUpstream(tools=[tool("a")]) as alpha,
        ScriptedUpstream(tools=[tool("b")]) as beta,
    ):
        corp.client("gw", "another secret")
        alpha.on("*", Guard(corp, alpha))
        async with running({"alpha": obtaining(alpha, corp), "beta": beta}, pace=ONCE) as gateway:
            listed = await gateway.ask("tools/list")
            assert (listed.names, listed.missing) == (["beta__b"], ["alpha"])
            assert gateway.status("alpha").detail.endswith("HTTP 401, invalid_client")


async def test_more_scopes_are_asked_for_once_they_are_missed():
    """Those that there were and those that the refusal names; from then on at once (Z-16)."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", guard := Guard(corp, alpha))
        guard.published = {"scopes_supported": ["read"]}
        guard.scopes["tools/call"] = {"write"}
        clock = Clock()
        async with running({"alpha": obtaining(alpha)}, clock=clock, pace=ONCE) as gateway:
            await gateway.ask("tools/list")
            for n in range(3):
                assert (await gateway.ask("tools/call", {"name": "alpha__a"}, id=n)).status == 200
            clock.advance(3601.0)
            assert (await gateway.ask("tools/call", {"name": "alpha__a"})).status == 200
        assert [asked.form["scope"] for asked in corp.seen("token")] == ["read", "read write", "read write"]
        assert guard.turned_away == 1


async def test_scopes_that_are_not_granted_cost_nothing_else():
    """The token that there is serves on, and the refusal is not tried again by each call."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", guard := Guard(corp, alpha))
        guard.scopes["tools/call"] = {"admin"}
        async with running({"alpha": obtaining(alpha)}, clock=Clock(), pace=ONCE) as gateway:
            await gateway.ask("tools/list")
            corp.on("token", denying("invalid_scope"))
            for n in range(5):
                failed = await gateway.ask("tools/call", {"name": "alpha__a"}, id=n)
                assert (failed.status, failed.code) == (200, -32603)
            assert (await gateway.ask("prompts/list")).status == 200
        assert corp.count("token") == 2


async def test_an_upstream_cannot_widen_what_the_operator_wrote():
    """`scopes` is the most that is asked for."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", guard := Guard(corp, alpha))
        guard.scopes["tools/call"] = {"admin"}
        async with running({"alpha": obtaining(alpha, corp, scopes=["read"])}, pace=ONCE) as gateway:
            await gateway.ask("tools/list")
            failed = await gateway.ask("tools/call", {"name": "alpha__a"})
            assert failed.code == -32603
        assert [asked.form["scope"] for asked in corp.seen("token")] == ["read"]


# Other ways to speak


async def test_a_stream_of_changes_is_opened_with_a_token_too():
    """And with a new one when the first was taken back."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", guard := Guard(corp, alpha))
        async with running({"alpha": obtaining(alpha, corp)}) as gateway:
            await alpha.arrived("subscriptions/listen")
            async with gateway.open(
                "subscriptions/listen", {"notifications": {"toolsListChanged": True}}
            ) as one:
                await one.event()
                await alpha.notify("notifications/tools/list_changed")
                assert (await one.event())["method"] == "notifications/tools/list_changed"
        assert guard.turned_away == 0


async def test_a_session_of_an_older_server_goes_on_with_the_next_token():
    """The session is the gateway's: another token of the same client is no other caller (B07)."""
    async with AuthorizationServer() as corp, LegacyServer(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.replaces = True
        alpha.on("*", guard := Guard(corp, alpha, then=legacy))
        clock = Clock()
        async with running({"alpha": obtaining(alpha, corp)}, clock=clock, pace=ONCE) as gateway:
            assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token="T")).status == 200
            begun = alpha.initialized
            clock.advance(3601.0)
            assert (await gateway.ask("tools/call", {"name": "alpha__a"}, token="T")).status == 200
            assert alpha.initialized == begun
            shown = [seen.header("authorization") for seen in alpha.requests if seen.method == "tools/call"]
        assert len(set(shown)) == 2
        assert guard.turned_away == 0


async def test_a_server_of_http_and_sse_is_shown_each_token_in_its_time():
    """The stream with the first, what is posted later with the next."""
    async with AuthorizationServer() as corp, SseUpstream() as old:
        known(corp)
        clock = Clock()
        async with running({"old": obtaining(old, corp)}, clock=clock, pace=ONCE) as gateway:
            clock.advance(3601.0)
            assert (await gateway.ask("tools/call", {"name": "old__echo"})).status == 200
        shown = dict.fromkeys(shown for _, shown in old.authorizations)
        assert None not in shown
        assert len(shown) == 2
        assert corp.count("token") == 2


# Secrets


async def test_no_token_and_no_secret_reaches_the_log(caplog):
    """Whatever goes wrong, at debug level (B42)."""
    caplog.set_level(logging.DEBUG)
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        known(corp)
        alpha.on("*", guard := Guard(corp, alpha))
        async with running({"alpha": obtaining(alpha, corp)}, pace=ONCE) as gateway:
            await gateway.ask("tools/list")
            alpha.on(
                "tools/call", status(500, b"you sent " + (guard.tokens[-1] or "").encode(), "text/plain")
            )
            await gateway.ask("tools/call", {"name": "alpha__a"})
            corp.on("token", saying({"error": "invalid_client", "error_description": SECRET}, status=400))
            guard.reject(guard.tokens[-1])
            alpha.on("tools/call", None)
            await gateway.ask("tools/call", {"name": "alpha__a"})
        text = caplog.text
        assert "no access token" in text
        for secret in (SECRET, *filter(None, guard.tokens)):
            assert secret not in text


# The way there


async def test_an_authorization_server_is_trusted_as_written(tmp_path):
    """By the system's authorities, or those of `tls` beside it; the failure says which check it was (B49)."""
    authority = Authority(tmp_path)
    async with (
        AuthorizationServer(tls=authority.issue("127.0.0.1")) as corp,
        ScriptedUpstream(tools=[tool("a")]) as alpha,
    ):
        known(corp)
        alpha.on("*", Guard(corp, alpha))
        async with running({"alpha": obtaining(alpha, corp)}, pace=ONCE) as gateway:
            assert "certificate verify failed" in gateway.status("alpha").detail
        assert corp.asked == []
        trusting = obtaining(alpha, corp, tls={"ca_file": str(authority.file)})
        async with running({"alpha": trusting}, pace=ONCE) as gateway:
            assert (await gateway.ask("tools/list")).names == ["alpha__a"]
