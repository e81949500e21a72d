"""Whether a caller would be let in again by another configuration, with the credential he came with. Pure."""

from collections.abc import Mapping

from gateway.config import Authentication
from gateway.protocol.call import Principal
from gateway.protocol.jsonrpc import INTERNAL_ERROR, McpError

_WAYS: Mapping[str, object] = {"keys": {}, "tokens": {}, "certificates": None, "remembered": 0}


class LetGo(McpError):
    """The caller was let in by a configuration before, and would not be by the one in force."""

    def __init__(self) -> None:
        super().__init__(INTERNAL_ERROR, "This credential is not accepted any more")


def counts(principal: Principal, before: Authentication, after: Authentication) -> bool:
    """Whether a caller would be let in as the same one again, with the credential he came with."""
    if before == after:
        return True
    if before.on != after.on or before.model_copy(update=_WAYS) != after.model_copy(update=_WAYS):
        return False
    kind, _, name = principal.id.partition(":")
    if kind in ("", "anonymous"):
        return not after.on or after.anonymous
    if kind == "key":
        return name in before.keys and before.keys.get(name) == after.keys.get(name)
    if kind == "cert":
        return before.certificates == after.certificates
    return kind in before.tokens and before.tokens.get(kind) == after.tokens.get(kind)
