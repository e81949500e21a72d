"""Wires what obtains tokens for one upstream, out of its settings."""

from collections.abc import Callable

from gateway import config
from gateway.protocol.call import UpstreamName
from gateway.support.metrics import Metrics
from gateway.support.tasks import Background
from gateway.support.trust import trust
from gateway.upstream.egress import Egress, Own
from gateway.upstream.issuing import AuthorizationServer
from gateway.upstream.tokens import CallersTokens, OwnTokens, Tokens


def tokens_for(
    name: UpstreamName,
    settings: config.Upstream,
    *,
    own: Own,
    user_agent: str,
    background: Background,
    metrics: Metrics,
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
    random: Callable[[], float],
) -> Tokens | None:
    """Return where the tokens of an upstream come from, None where none are obtained.

    `own` gets documents of the upstream itself. Raises ValueError for a file or a key that will not do.
    """
    auth, url = settings.auth, settings.url
    client = auth.obtained
    if client is None or url is None:
        return None
    place = f"upstreams.{name}.auth.{auth.kind}"
    known = [one for one in (client.issuer, client.token_url) if one is not None]
    secure = not known or any(one.startswith("https:") for one in known)
    egress = Egress(
        url,
        own=own,
        trusted=known,
        tls=trust(f"{place}.tls", client.tls) if secure or client.tls != config.TlsFiles() else True,
        headers={"User-Agent": user_agent},
    )
    server = AuthorizationServer(
        name,
        url,
        client,
        egress,
        metrics=metrics,
        clock=clock,
        wall_clock=wall_clock,
        random=random,
    )
    if auth.token_exchange is not None:
        return CallersTokens(
            name,
            auth.token_exchange,
            server,
            background=background,
            clock=clock,
            wall_clock=wall_clock,
            random=random,
        )
    return OwnTokens(name, client, server, background=background, clock=clock, random=random)
