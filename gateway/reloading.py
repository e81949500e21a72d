"""What a reload means: what of a new configuration counts at once, and what it changes for whom. Pure.

Upstreams whose settings are the same go on untouched. What a process is bound to stays as it is until it is
started again, and is named.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter
from typing import TypeVar

from pydantic import BaseModel

from gateway.config import Config, Upstream
from gateway.core.audience import KINDS, Kind
from gateway.core.standing import counts
from gateway.core.turning import Turn
from gateway.protocol.call import UpstreamName

M = TypeVar("M", bound=BaseModel)

RESTART: tuple[str, ...] = (
    "listen",
    "admin",
    "tls",
    "secrets.keys",
    "limits.message",
    "limits.header",
    "limits.request_head",
    "limits.rates_in",
    "tracing.otlp",
    "tracing.headers",
    "tracing.sample",
    "tracing.service_name",
)
"""Settings that a process keeps for as long as it lives."""

RESTART_WITH_REDIS = (
    "cache.redis",
    "cache.redis_tls",
    "cache.redis_timeout",
    "cache.redis_prefix",
    "cache.redis_entry",
    "cache.private_in_redis",
    "cache.coalesce",
    "cache.stale_if_error",
    "subscriptions.lease",
)
"""The same of a process that meets others at a Redis."""

_NAMED = frozenset({"tools", "prompts"})
_ALL: frozenset[Kind] = frozenset(KINDS)
_TOOLS: frozenset[Kind] = frozenset({"tools"})


def applies_at_once(path: str, *, redis: bool = False) -> bool:
    """Whether a reload applies a setting, such as `limits.message`; with `redis` where that is in use."""
    held = (*RESTART, "cache.redis", *(RESTART_WITH_REDIS if redis else ()))
    return not any(path == one or path.startswith(f"{one}.") for one in held)


def applicable(before: Config, wanted: Config) -> tuple[Config, tuple[str, ...]]:
    """Return what of a new configuration counts at once, and the settings that wait for a restart."""
    held = RESTART
    if before.cache.redis is not None or wanted.cache.redis is not None:
        held += RESTART_WITH_REDIS
    late = tuple(path for path in held if attrgetter(path)(before) != attrgetter(path)(wanted))
    return reduce(lambda made, path: _with(made, path.split("."), before), late, wanted), late


def _with(config: Config, path: list[str], before: BaseModel) -> Config:
    """Return a configuration with one setting as it was before."""
    return _set(config, path, reduce(getattr, path, before))


def _set(model: M, path: list[str], value: object) -> M:
    key, *rest = path
    return model.model_copy(update={key: _set(getattr(model, key), rest, value) if rest else value})


@dataclass(frozen=True)
class Difference:
    """What tells two configurations apart, upstream by upstream, for those who keep something of them."""

    removed: frozenset[UpstreamName]
    added: frozenset[UpstreamName]
    stale: frozenset[UpstreamName]
    """Those of which nothing counts any more that was kept of their answers (C-30)."""
    renamed: frozenset[UpstreamName]
    otherwise: Mapping[str, frozenset[Kind]]
    rules: bool

    def __str__(self) -> str:
        """Say in a few words what changes."""
        said = [("new", self.added), ("gone", self.removed), ("changed", self.stale)]
        upstreams = [f"{what} {', '.join(sorted(names))}" for what, names in said if names]
        return "; ".join(upstreams) or "no upstream is another one"

    @property
    def names(self) -> frozenset[UpstreamName]:
        return self.removed | self.added | self.stale


def difference(before: Config, after: Config) -> Difference:
    """Return what changes between two configurations."""
    old, new = before.upstreams, after.upstreams
    both = [name for name in new if name in old]
    everywhere = before.cache.max_ttl != after.cache.max_ttl
    everywhere |= before.cache.single_tenant != after.cache.single_tenant
    stale = [
        name
        for name in both
        if everywhere or (old[name] != new[name] and not _only_shown(old[name], new[name]))
    ]
    renamed = [name for name in both if before.names != after.names or old[name].prefix != new[name].prefix]
    return Difference(
        _set_of(name for name in old if name not in new),
        _set_of(name for name in new if name not in old),
        _set_of(stale),
        _set_of(renamed),
        {
            path: kinds
            for path in after.endpoints
            if path in before.endpoints and (kinds := _shown_otherwise(path, before, after))
        },
        _rules(before) != _rules(after),
    )


def turn(
    difference: Difference, before: Config, after: Config, keeps: Callable[[UpstreamName], bool]
) -> Turn:
    """Return what a new configuration means for those who listen; `keeps` says which upstreams go on."""
    others = {UpstreamName(name) for name in after.upstreams if not keeps(UpstreamName(name))}
    return Turn(
        gone=difference.removed | (others - difference.added),
        come=frozenset(others),
        renamed=difference.renamed,
        otherwise=difference.otherwise,
        rules=difference.rules,
        counts=lambda principal: counts(principal, before.authentication, after.authentication),
    )


def _only_shown(old: Upstream, new: Upstream) -> bool:
    """Whether only how an upstream is shown changes: what it answers, and for how long, is the same."""
    shown = {"prefix", "label", "tools", "methods", "trust_annotations", "list_timeout"}
    return old.model_dump(exclude=shown) == new.model_dump(exclude=shown)


def _shown_otherwise(path: str, before: Config, after: Config) -> frozenset[Kind]:
    """Return the lists that are shown otherwise at one endpoint, although their upstreams list the same."""
    old, new = before.endpoints[path], after.endpoints[path]
    ours = [name for name in before.behind(path) if name in after.behind(path)]
    theirs = [name for name in after.behind(path) if name in ours]
    if ours != theirs or _rules(before) != _rules(after) or before.names != after.names:
        return _ALL
    if before.extensions != after.extensions or any(
        before.upstreams[name].prefix != after.upstreams[name].prefix for name in ours
    ):
        return _ALL
    if old.tools != new.tools or any(
        before.upstreams[name].tools != after.upstreams[name].tools for name in ours
    ):
        return _TOOLS
    return frozenset()


def _rules(config: Config) -> tuple[object, ...]:
    """Return all that decides who may see what."""
    trusted = (
        {name: one.trust_annotations for name, one in config.upstreams.items()} if config.access.on else {}
    )
    return config.access, trusted


def _set_of(names: Iterator[str] | list[str]) -> frozenset[UpstreamName]:
    return frozenset(map(UpstreamName, names))
