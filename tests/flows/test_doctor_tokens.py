"""The doctor about tokens that the gateway obtains: whether there is one, and what is wrong if not."""

from typing import Any

import pytest

from gateway.doctor.asking import Token
from gateway.doctor.examine import examine
from tests.support.authorization_server import AuthorizationServer, Behaviour, denying, failing
from tests.support.protected import Guard
from tests.support.running import settings
from tests.support.scripted import ScriptedUpstream, tool

SECRET = "s3cret-of-the-gateway"


def own(upstream: ScriptedUpstream, **members: Any) -> dict[str, Any]:
    client = {"client_id": "gw", "client_secret": SECRET, **members}
    return {"url": upstream.url, "auth": {"client_credentials": client}}


async def examined(upstream: Any, *tokens: Token) -> tuple[str, list[tuple[str, str]]]:
    """Return what is said of its auth, and the problems with what to do about them."""
    report = await examine(settings({"alpha": upstream}), tokens=tokens)
    assert SECRET not in repr(report)
    return report.upstreams[0].auth.result, [(one.what, one.next) for one in report.problems]


async def test_a_token_that_is_taken() -> None:
    """Nothing is to be mended."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        corp.client("gw", SECRET)
        alpha.on("*", Guard(corp, alpha))
        assert await examined(own(alpha, issuer=corp.issuer)) == ("accepted", [])


@pytest.mark.parametrize(
    ("answer", "next"),
    [
        (denying("invalid_client", status=401), "client_id"),
        (denying("invalid_scope"), "upstreams.alpha.auth.client_credentials.scopes"),
        (denying("invalid_target"), "upstreams.alpha.auth.client_credentials.resource"),
        (failing(500), "whether the authorization server runs"),
    ],
)
async def test_an_authorization_server_that_gives_none(answer: Behaviour, next: str) -> None:
    """Its own word for why, and what to change."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        corp.client("gw", SECRET)
        corp.on("token", answer)
        alpha.on("*", Guard(corp, alpha))
        result, ((what, advice),) = await examined(own(alpha, issuer=corp.issuer))
        assert result.startswith("no token (")
        assert result in what
        assert next in advice


async def test_an_authorization_server_that_is_not_found() -> None:
    """By a name that is spelled otherwise, at no place that may be gone to, or not at all."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        alpha.on("*", guard := Guard(corp, alpha))
        guard.published = {"authorization_servers": ["https://10.0.0.1"]}
        assert "if you trust that place" in (await examined(own(alpha)))[1][0][1]
        guard.published = guard.named = None
        assert (await examined(own(alpha)))[1][0][1] == "write upstreams.alpha.auth.client_credentials.issuer"
        corp.metadata["issuer"] = corp.issuer + "/"
        assert (
            "as the authorization server spells it"
            in (await examined(own(alpha, issuer=corp.issuer)))[1][0][1]
        )
        corp.metadata.clear()
        corp.places = set()
        advice = (await examined(own(alpha, issuer=corp.issuer)))[1][0][1]
        assert advice == "write upstreams.alpha.auth.client_credentials.token_url"


async def test_a_token_that_the_upstream_does_not_take() -> None:
    """It was given, and is for something else."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        corp.client("gw", SECRET)
        alpha.on("*", Guard(corp, alpha))
        settings = own(alpha, issuer=corp.issuer, resource="https://other.example/mcp")
        result, ((_, advice),) = await examined(settings)
        assert result == "refused (HTTP 401, invalid_token)"
        assert "resource" in advice


async def test_a_token_in_exchange() -> None:
    """Without a caller's token it tells that it wants one; a token that is not exchanged is a problem."""
    async with AuthorizationServer() as corp, ScriptedUpstream(tools=[tool("a")]) as alpha:
        corp.client("gw", SECRET)
        alpha.on("*", Guard(corp, alpha))
        client = {"client_id": "gw", "client_secret": SECRET, "issuer": corp.issuer}
        crm = {"url": alpha.url, "auth": {"token_exchange": client}}
        assert await examined(crm) == ("wants the caller's token (HTTP 401)", [])
        ann = corp.mint("ann")
        assert await examined(crm, Token("ANN", f"Bearer {ann}")) == ("accepted", [])
        corp.revoke(ann)
        result, ((_, advice),) = await examined(crm, Token("ANN", f"Bearer {ann}"))
        assert "invalid_grant" in result
        assert "ANN" in advice
