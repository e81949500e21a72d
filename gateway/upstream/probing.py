"""Judges what the answer to a `server/discover` probe says about an upstream (U-16, U-17). No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.protocol.call import (
    LEGACY_VERSIONS,
    MODERN_VERSION,
    Challenge,
    Era,
    Reason,
    Reply,
    Request,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import (
    HEADER_MISMATCH,
    MISSING_CLIENT_CAPABILITY,
    UNSUPPORTED_PROTOCOL_VERSION,
    Json,
    Malformed,
    is_null,
    items,
    split,
    text_of,
)
from gateway.upstream.failures import Failed, UpstreamError

PROBE = Request("server/discover")
PROBE_TIMEOUT = 10.0
"""The longest a probe is waited for, unless the upstream's `timeout` is shorter (U-19)."""
SPOKEN = (MODERN_VERSION,)
"""Versions spoken to upstreams, preferred first."""

# Answers that speak of access or of the moment, and so say nothing about the era (U-17).
_SILENT = frozenset({401, 403, 407, 408, 425, 429})
_OLD = "it does not speak 2026-07-28"


@dataclass(frozen=True, slots=True)
class Discovered:
    """What an upstream said about itself, to the gateway's own probe."""

    capabilities: Mapping[str, Json] = field(default_factory=dict)
    instructions: str | None = None
    versions: tuple[str, ...] = ()
    result: bytes = b"{}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe told: usable when `reason` is None."""

    era: Era | None
    version: str | None = None
    discovered: Discovered | None = None
    reason: Reason | None = None
    detail: str = ""
    outage: bool = False
    """Whether it was out of reach or out of order, rather than refused."""
    silent: bool = False
    """Whether it lets in nobody without a credential of theirs; its era is not known then (U-17)."""
    refused: bool = False
    """Whether it does not serve a handshake where it was asked."""


def judge(
    answer: Reply | UpstreamError | Failed | Challenge | UpstreamUnavailable, *, forced: bool
) -> Verdict:
    """Return what the probe's outcome means; `forced` when the configuration says the upstream is modern."""
    match answer:
        case Reply():
            return _judge_result(answer.result, forced)
        case UpstreamError():
            return _judge_error(answer, forced)
        case Challenge():
            # With `auth: forward` the gateway has nothing of its own to show: somebody is there, that is all.
            return let_nobody_in(answer)
        case Failed(status=int(status)) if (
            answer.reason is Reason.STATUS and speaks_of_era(status) and not forced
        ):
            return Verdict("legacy", reason=Reason.ERA, detail=f"{answer.detail} to server/discover: {_OLD}")
        case _:
            return Verdict(None, reason=answer.reason, detail=answer.detail, outage=answer.outage)


def let_nobody_in(challenge: Challenge) -> Verdict:
    """Return what is known of a server that wants a caller's own credential."""
    detail = f"HTTP {challenge.status} without a caller's credential"
    return Verdict("modern", MODERN_VERSION, detail=detail, silent=True)


def mutual(supported: Sequence[str]) -> str | None:
    """Return the version to speak with a peer that supports these, None when there is none."""
    return next((version for version in SPOKEN if version in supported), None)


def supported_versions(error: UpstreamError) -> tuple[str, ...]:
    """Return the versions that a -32022 error names."""
    try:
        return _strings(split(error.data or b"{}").get("supported"))
    except Malformed:
        return ()


def no_common_version(versions: Sequence[str]) -> str:
    """Return why an upstream that supports only these versions cannot be used."""
    if any(version in LEGACY_VERSIONS for version in versions):
        return f"it supports {_listed(versions)}"
    return f"it supports {_listed(versions)}, the gateway {_listed(SPOKEN)}"


def _judge_result(result: Json, forced: bool) -> Verdict:
    try:
        members = split(result)
        if "supportedVersions" not in members and not forced:
            # What some older servers answer to whatever they do not know, `{}` mostly.
            return Verdict("legacy", reason=Reason.ERA, detail=f"no versions from server/discover: {_OLD}")
        versions = _strings(members.get("supportedVersions"))
        capabilities = members.get("capabilities")
        # Copied out of the message, which would otherwise live as long as the upstream.
        known: dict[str, Json] = (
            {}
            if capabilities is None or is_null(capabilities)
            else {key: bytes(raw) for key, raw in split(capabilities).items()}
        )
    except Malformed as error:
        return Verdict(None, reason=Reason.PROTOCOL, detail=f"server/discover: {error}")
    version = mutual(versions)
    if version is None:
        era: Era = "legacy" if any(one in LEGACY_VERSIONS for one in versions) else "modern"
        return Verdict(era, reason=Reason.ERA, detail=no_common_version(versions))
    instructions = text_of(members.get("instructions"))
    return Verdict("modern", version, Discovered(known, instructions, versions, bytes(result)))


def _judge_error(error: UpstreamError, forced: bool) -> Verdict:
    if error.code == UNSUPPORTED_PROTOCOL_VERSION:
        versions = supported_versions(error)
        era: Era = "legacy" if any(one in LEGACY_VERSIONS for one in versions) else "modern"
        return Verdict(era, reason=Reason.ERA, detail=no_common_version(versions))
    if error.code in (HEADER_MISMATCH, MISSING_CLIENT_CAPABILITY) or forced:
        # Modern, and unhappy with our probe only: calls may well be served.
        return Verdict("modern", MODERN_VERSION, detail=f"error {error.code} to server/discover")
    if error.status in _SILENT or error.status >= 500:
        return Verdict(None, reason=Reason.STATUS, detail=f"HTTP {error.status}, error {error.code}")
    return Verdict("legacy", reason=Reason.ERA, detail=f"error {error.code} to server/discover: {_OLD}")


def speaks_of_era(status: int) -> bool:
    """Whether an answer with this status, and no modern body, is that of a server of another era."""
    return 400 <= status < 500 and status not in _SILENT


def _strings(raw: Json | None) -> tuple[str, ...]:
    if raw is None or is_null(raw):
        return ()
    return tuple(text for text in map(text_of, items(raw)) if text is not None)


def _listed(versions: Sequence[str]) -> str:
    return ", ".join(version[:20] for version in versions[:10]) or "no version"
