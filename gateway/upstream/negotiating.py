"""Settles which version is spoken with a modern upstream that does not take the one it was asked in."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from gateway.protocol.call import Reason, UpstreamName, UpstreamUnavailable
from gateway.protocol.jsonrpc import UNSUPPORTED_PROTOCOL_VERSION
from gateway.upstream.failures import UpstreamError
from gateway.upstream.probing import mutual, no_common_version, supported_versions

Answered = TypeVar("Answered")


class Speaker(Protocol):
    version: str

    @property
    def name(self) -> UpstreamName: ...


async def negotiated(speaker: Speaker, attempt: Callable[[], Awaitable[Answered]]) -> Answered:
    """Make one attempt, and a second one when the upstream only wants another version (U-28).

    Raises UpstreamUnavailable when there is none in common.
    """
    try:
        return await attempt()
    except UpstreamError as error:
        if error.code != UNSUPPORTED_PROTOCOL_VERSION:
            raise
        speaker.version = _version_of(speaker.name, error)
    try:
        # Refusing a version that it names itself happens: the same version is tried once more.
        return await attempt()
    except UpstreamError as error:
        if error.code != UNSUPPORTED_PROTOCOL_VERSION:
            raise
        raise UpstreamUnavailable(speaker.name, Reason.ERA, "it refuses the version it offers") from None


def _version_of(name: UpstreamName, error: UpstreamError) -> str:
    versions = supported_versions(error)
    version = mutual(versions)
    if version is None:
        raise UpstreamUnavailable(name, Reason.ERA, no_common_version(versions)) from error
    return version
