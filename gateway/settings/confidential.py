"""Says which texts of a configuration are secret, so that nothing that is written down shows them."""

from gateway.settings.document import MASKED_FROM
from gateway.settings.models import Config
from gateway.settings.outgoing import TokenClient
from gateway.settings.redis_url import parse_redis_url

_NO_SECRETS = frozenset({"audience", "resource", "scope"})
"""Parameters for authorization servers that anybody may know."""


def confidential(config: Config) -> list[str]:
    """Return every secret of the configuration, for the log to leave out."""
    found = [key.get_secret_value() for key in config.secrets.keys]
    if config.cache.redis is not None:
        url = config.cache.redis.get_secret_value()
        found += [secret for secret in (url, parse_redis_url(url).password) if secret]
    for issuer in config.authentication.tokens.values():
        if issuer.client_secret is not None:
            found.append(issuer.client_secret.get_secret_value())
    found += [secret.get_secret_value() for secret in config.tracing.headers.values()]
    for upstream in config.upstreams.values():
        if upstream.auth.bearer is not None:
            found.append(upstream.auth.bearer.get_secret_value())
        found += [secret.get_secret_value() for secret in upstream.auth.headers.values()]
        found += _of_a_client(upstream.auth.obtained)
        # Of what a program is given, such as DEBUG=1, only what is long enough can be a secret.
        given = [secret.get_secret_value() for secret in upstream.env.values()]
        found += [text for text in given if len(text) >= MASKED_FROM]
    return found


def _of_a_client(client: TokenClient | None) -> list[str]:
    """Return what an authorization server is shown; of a key each line, for a text may quote one of them."""
    if client is None:
        return []
    found = [] if client.client_secret is None else [client.client_secret.get_secret_value()]
    key = "" if client.client_key is None else client.client_key.get_secret_value()
    lines = [line.strip() for line in key.splitlines() if "-----" not in line]
    given = [text for name, text in client.parameters.items() if name not in _NO_SECRETS]
    return found + [text for text in (*lines, *given) if len(text) >= MASKED_FROM]
