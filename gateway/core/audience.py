"""Knows which downstream streams are to hear of what, and tells them. Nothing here waits.

Streams share what an upstream says only inside one authorization context (L-13): what it says to the
gateway's own credential is for everybody, what it says to a caller's for that caller's streams.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from gateway.cache.policy import ancestors
from gateway.core import access
from gateway.core.router import Namespace
from gateway.core.subscription import Key, Subscription
from gateway.protocol.call import Notice, Partition, UpstreamName
from gateway.protocol.jsonrpc import Json, encode, join, text_or_none
from gateway.protocol.subscriptions import Circular, Wanted, circular

_Key = TypeVar("_Key")

Kind: TypeAlias = Literal["tools", "prompts", "resources"]

KINDS: tuple[Kind, ...] = ("tools", "prompts", "resources")
KIND_OF: Mapping[str, Kind] = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resources",
}
"""Which flag of a listen asks for changes of a list."""

LISTS_OF: Mapping[Kind, tuple[str, ...]] = {
    kind: tuple(method for method, its in KIND_OF.items() if its == kind) for kind in KINDS
}

_ENDS = frozenset({"completed", "failed", "cancelled"})
UPDATED = "notifications/resources/updated"

_CHANGED: Mapping[Kind, str] = {kind: f"notifications/{kind}/list_changed" for kind in KINDS}
_LISTS: Mapping[Kind, tuple[Key, Circular]] = {
    kind: ((method, ""), circular(method, {})) for kind, method in _CHANGED.items()
}


class Followed(NamedTuple):
    """One authorization context at one upstream: None is the gateway's own credential."""

    upstream: UpstreamName
    context: Partition | None


class Place(NamedTuple):
    """Where a URI leads: who is asked about it, and how its upstream spells it."""

    at: Followed
    uri: str


class Tracked(NamedTuple):
    """A task that a stream hears of: who is asked about it, its own id there, and how the client is told."""

    at: Followed
    id: str
    tell: Callable[[Notice], Notice | None]


@dataclass(slots=True)
class _Task:
    """What is known of a task that somebody listens for."""

    heard_by: dict[tuple[Subscription, str], Tracked] = field(default_factory=dict)
    notices: int = 0
    """How often its upstream said something of it."""
    end: str | None = None
    """The terminal status it was told with."""
    updated: datetime | None = None
    """How late the news is that was told."""


Show: TypeAlias = Callable[[str, Partition | None, str, UpstreamName], None]
"""Told of endpoint, caller, URI and owner, where a stream is shown what only that tells the owner of."""


_NO_TASKS: Mapping[str, Tracked] = {}


class Audience:
    """All streams of the process, by what they want to hear."""

    def __init__(
        self,
        endpoints: Mapping[str, Collection[UpstreamName]],
        namespaces: Mapping[UpstreamName, Namespace],
        forwarding: Collection[UpstreamName],
        *,
        subresources: Literal["exact", "parent"],
        show: Show,
    ) -> None:
        """`forwarding` are the upstreams that see their callers' own credentials."""
        self._show = show
        self.adopt(endpoints, namespaces, forwarding, subresources=subresources)
        # Dicts for sets: they keep their order, so whoever came first is told first.
        self._lists: dict[tuple[str, Kind], dict[Subscription, None]] = defaultdict(dict)
        self._callers: dict[tuple[str, Partition | None], dict[Subscription, None]] = defaultdict(dict)
        self._people: dict[tuple[str, Partition | None], dict[Subscription, None]] = defaultdict(dict)
        """Those of verified callers by who they are, whatever credential each was opened with."""
        self._uris: dict[Followed, dict[str, dict[Subscription, str]]] = {}
        self._places: dict[Subscription, list[Place]] = {}
        self._tasks: dict[Followed, dict[str, _Task]] = {}
        self._tracked: dict[Subscription, Mapping[str, Tracked]] = {}
        self._open = 0

    def adopt(
        self,
        endpoints: Mapping[str, Collection[UpstreamName]],
        namespaces: Mapping[UpstreamName, Namespace],
        forwarding: Collection[UpstreamName],
        *,
        subresources: Literal["exact", "parent"],
    ) -> None:
        """Go on with the same streams by what another configuration says."""
        self._endpoints_of = {
            name: tuple(path for path, names in endpoints.items() if name in names) for name in namespaces
        }
        self._namespaces = namespaces
        self._forwarding = frozenset(forwarding)
        self._exact = subresources == "exact"

    def __len__(self) -> int:
        return self._open

    def __repr__(self) -> str:
        uris = sum(map(len, self._uris.values()))
        tasks = sum(map(len, self._tasks.values()))
        return f"<Audience {self._open} streams, {uris} URIs, {tasks} tasks>"

    def __iter__(self) -> Iterator[Subscription]:
        for streams in list(self._callers.values()):
            yield from list(streams)

    def add(
        self, stream: Subscription, places: Mapping[str, Place], tasks: Mapping[str, Tracked] = _NO_TASKS
    ) -> None:
        """Let a stream hear of what it wants; these say where its URIs and tasks lead, as it spells them."""
        self._open += 1
        self._callers[stream.endpoint, stream.partition][stream] = None
        if stream.who != stream.partition:
            self._people[stream.endpoint, stream.who][stream] = None
        for kind in kinds_of(stream.wanted):
            self._lists[stream.endpoint, kind][stream] = None
        self._place(stream, places)
        self._track(stream, tasks)

    def narrow(
        self, stream: Subscription, places: Mapping[str, Place], tasks: Mapping[str, Tracked] = _NO_TASKS
    ) -> None:
        """Let a stream hear of these resources and tasks only."""
        self._displace(stream)
        self._place(stream, places)
        self._track(stream, tasks)

    def remove(self, stream: Subscription) -> None:
        """Forget a stream and all that was kept for it."""
        self._open -= 1
        _take(self._callers, (stream.endpoint, stream.partition), stream)
        if stream.who != stream.partition:
            _take(self._people, (stream.endpoint, stream.who), stream)
        for kind in kinds_of(stream.wanted):
            _take(self._lists, (stream.endpoint, kind), stream)
        self._displace(stream)

    def _place(self, stream: Subscription, places: Mapping[str, Place]) -> None:
        for exposed, place in places.items():
            self._uris.setdefault(place.at, {}).setdefault(place.uri, {})[stream] = exposed
        if places:
            self._places[stream] = list(places.values())

    def _track(self, stream: Subscription, tasks: Mapping[str, Tracked]) -> None:
        for exposed, tracked in tasks.items():
            task = self._tasks.setdefault(tracked.at, {}).setdefault(tracked.id, _Task())
            task.heard_by[stream, exposed] = tracked
        if tasks:
            self._tracked[stream] = tasks

    def _displace(self, stream: Subscription) -> None:
        for exposed, tracked in self._tracked.pop(stream, _NO_TASKS).items():
            tasks = self._tasks[tracked.at]
            del tasks[tracked.id].heard_by[stream, exposed]
            if not tasks[tracked.id].heard_by:
                del tasks[tracked.id]
            if not tasks:
                del self._tasks[tracked.at]
        for place in self._places.pop(stream, ()):
            uris = self._uris.get(place.at)
            if uris is None or place.uri not in uris:
                continue  # two of its URIs led to the same place
            uris[place.uri].pop(stream, None)
            if not uris[place.uri]:
                del uris[place.uri]
            if not uris:
                del self._uris[place.at]

    # Who hears

    def of(self, at: Followed) -> Iterator[Subscription]:
        """Yield the streams of one context at every endpoint that serves its upstream."""
        for endpoint in self._endpoints_of.get(at.upstream, ()):
            yield from list(self._callers.get((endpoint, at.context), ()))

    def list_changed(self, at: Followed | UpstreamName, kind: Kind) -> tuple[int, int]:
        """Tell those who want it of one context, or of an upstream's every context; return who was told.

        The first number is of those for whom it was news, the second of those who had not been told of the
        last change yet.
        """
        key, news = _LISTS[kind]
        upstream = at.upstream if isinstance(at, Followed) else at
        new = known = 0
        for streams in self._listeners(at, kind):
            told = 0
            hearing = _reached(streams, upstream, kind)
            for stream in hearing:
                told += stream.tell(key, news)
            new += told
            known += len(hearing) - told
        return new, known

    def shown_otherwise(self, endpoint: str, kind: Kind, upstream: UpstreamName | None) -> None:
        """Tell those who want it at one endpoint that something else, of an upstream or of any, is shown."""
        key, news = _LISTS[kind]
        streams = self._lists.get((endpoint, kind), ())
        for stream in list(streams) if upstream is None else _reached(streams, upstream, kind):
            stream.tell(key, news)

    def at(self, endpoint: str) -> Iterator[Subscription]:
        """Yield the streams of one endpoint."""
        for (path, _), streams in list(self._callers.items()):
            if path == endpoint:
                yield from list(streams)

    def named(self, stream: Subscription) -> Iterator[UpstreamName]:
        """Yield the upstreams whose resources and tasks a stream was promised by name."""
        yield from (place.at.upstream for place in self._places.get(stream, ()))
        yield from (tracked.at.upstream for tracked in self._tracked.get(stream, _NO_TASKS).values())

    def listens(self, at: Followed, kind: Kind) -> bool:
        """Whether anybody would be told of a change."""
        return any(self._listeners(at, kind))

    def list_changed_for(
        self, upstream: UpstreamName, kind: Kind, partition: Partition | None
    ) -> tuple[int, int]:
        """Tell the streams of one caller, whatever credential its upstream sees."""
        key, news = _LISTS[kind]
        streams = [
            stream
            for endpoint in self._endpoints_of.get(upstream, ())
            for known in (self._callers, self._people)
            for stream in _reached(known.get((endpoint, partition), ()), upstream, kind)
            if getattr(stream.wanted, kind)
        ]
        new = sum(stream.tell(key, news) for stream in streams)
        return new, len(streams) - new

    def task(self, at: Followed, id: str, notice: Notice) -> bool:
        """Tell those who asked for a task what its upstream says of it, as each may be told (L-23).

        Whether anybody was told. Of a task that ended nothing else is told any more (T-10).
        """
        task = self._tasks.get(at, {}).get(id)
        if task is None:
            return False
        task.notices += 1
        return self._tell_task(task, notice)

    def notices_of(self, at: Followed, id: str) -> int:
        """Return how often an upstream has said something of a task that somebody listens for."""
        task = self._tasks.get(at, {}).get(id)
        return 0 if task is None else task.notices

    def looked(self, at: Followed, id: str, notice: Notice, *, notices: int) -> bool:
        """Tell how a task was when it was looked at, unless its upstream has said something of it since.

        `notices` is what `notices_of` returned before the look.
        """
        task = self._tasks.get(at, {}).get(id)
        if task is None or task.notices != notices:
            return False
        updated = _time(notice.params.get("lastUpdatedAt"))
        if updated is not None and task.updated is not None and updated < task.updated:
            return False
        return self._tell_task(task, notice)

    def _tell_task(self, task: _Task, notice: Notice) -> bool:
        status = text_or_none(notice.params.get("status"))
        if task.end is not None and status != task.end:
            return False
        heard = False
        for (stream, exposed), tracked in task.heard_by.items():
            told = tracked.tell(notice)
            if told is not None:
                heard = True
                params = {key: raw for key, raw in told.params.items() if key != "_meta"}
                stream.tell_large((notice.method, exposed), circular(notice.method, params))
        if heard:
            task.end = status if status in _ENDS else None
            task.updated = _time(notice.params.get("lastUpdatedAt")) or task.updated
        return heard

    def tasks_of(self, at: Followed) -> list[str]:
        """Return the tasks of one context that some stream wants to hear of, by their upstream's ids."""
        return list(self._tasks.get(at, ()))

    def foreign(self, at: Followed, notice: Notice) -> tuple[int, int]:
        """Tell what the specification does not know to those who declared the extension it belongs to (L-22).

        Return how many those are, and for how many of them there was no room: no two such notices are known
        to mean the same, and what a stream was opened for is worth more. It belongs to the extension whose id
        its name starts with.
        """
        name = notice.method.removeprefix("notifications/")
        hearing = [
            stream
            for streams in self._hearing(at)
            for stream in streams
            if any(name.startswith(f"{id}/") for id in stream.extensions)
            and (stream.sight is None or stream.sight.reaches(at.upstream))
        ]
        if not hearing:
            return 0, 0
        params = {key: raw for key, raw in notice.params.items() if key != "_meta"}
        key, news = (notice.method, sha256(join(params)).hexdigest()), circular(notice.method, params)
        return len(hearing), sum(stream.tell_unnamed(key, news) is None for stream in hearing)

    def updated(self, at: Followed | UpstreamName, uri: str, *, asked: bool = False) -> tuple[int, int]:
        """Tell those who asked for a resource of its update, under the URI they know it by (L-14, L-21).

        What the upstream was `asked` about for somebody is for nobody else, though he may have left since or
        listen at another replica.
        """
        new = total = 0
        for followed in self._contexts(at):
            for told in self._updated(followed, uri, asked=asked):
                new += told
                total += 1
        return new, total - new

    def all_updated(self, at: Followed | UpstreamName) -> tuple[int, int]:
        """Tell everybody of every resource asked for, for any may have been updated unseen (L-18)."""
        new = total = 0
        for followed in self._contexts(at):
            for uri in list(self._uris[followed]):
                for told in self._tell_named(followed, uri):
                    new += told
                    total += 1
        return new, total - new

    def _hearing(self, at: Followed) -> Iterator[Collection[Subscription]]:
        """Yield all streams of a context: everybody's where the upstream sees the gateway's credential."""
        for (endpoint, partition), streams in self._callers.items():
            own = at.upstream not in self._forwarding or partition == at.context
            if own and endpoint in self._endpoints_of.get(at.upstream, ()):
                yield streams

    def _listeners(self, at: Followed | UpstreamName, kind: Kind) -> Iterator[Collection[Subscription]]:
        upstream = at.upstream if isinstance(at, Followed) else at
        for endpoint in self._endpoints_of.get(upstream, ()):
            if isinstance(at, Followed) and upstream in self._forwarding:
                own = self._callers.get((endpoint, at.context), ())
                yield [stream for stream in own if getattr(stream.wanted, kind)]
            else:
                yield self._lists.get((endpoint, kind), ())

    def _contexts(self, at: Followed | UpstreamName) -> list[Followed]:
        if isinstance(at, Followed):
            return [at] if at in self._uris else []
        return [followed for followed in self._uris if followed.upstream == at]

    def _updated(self, at: Followed, uri: str, *, asked: bool) -> Iterator[bool]:
        uris = self._uris[at]
        exactly = uris.get(uri, {})
        yield from self._tell_named(at, uri)
        above = [named for named in ancestors(uri) if named in uris]
        if not self._exact:
            for named in above:
                yield from self._tell_named(at, named, about=uri)
            return
        for named in above:
            for stream, exposed in uris[named].items():
                if stream not in exactly and _may_read(stream, at.upstream, uri):
                    yield self._tell_unnamed(at.upstream, uri, stream, instead=exposed)
        if not above and not exactly and not asked:
            # Nobody asked its upstream for it, or for what it belongs to: it may spell in its own way what
            # somebody did ask for.
            for stream in {stream: None for streams in uris.values() for stream in streams}:
                if not _may_read(stream, at.upstream, uri):
                    continue
                yield self._tell_unnamed(at.upstream, uri, stream, instead=None)

    def _tell_named(self, at: Followed, uri: str, about: str | None = None) -> Iterator[bool]:
        """Tell those who named this, `about` what belongs to it if that is what was updated."""
        key, news = _update(uri)
        for stream, exposed in self._uris[at].get(uri, {}).items():
            if about is not None and not _may_read(stream, at.upstream, about):
                continue
            if key[1] != exposed:  # nearly all spell it alike
                key, news = _update(exposed)
            yield stream.tell(key, news)

    def _tell_unnamed(
        self, upstream: UpstreamName, uri: str, stream: Subscription, *, instead: str | None
    ) -> bool:
        """Tell of a URI that the stream did not name, or of the one it did where too many such wait."""
        if upstream not in self._namespaces:
            return False
        exposed = self._namespaces[upstream].expose_uri(uri)
        told = stream.tell_unnamed(*_update(exposed))
        if told is None:
            return instead is not None and stream.tell(*_update(instead))
        if exposed == uri:
            self._show(stream.endpoint, stream.who, uri, upstream)
        return told


_HEARD: Mapping[Kind, access.Kind] = {"tools": "tool", "prompts": "prompt", "resources": "resource"}


def _reached(
    streams: Collection[Subscription], upstream: UpstreamName, kind: Kind
) -> Collection[Subscription]:
    """Return the streams whose clients may know that an upstream has such things."""
    if not any(stream.sight for stream in islice(streams, 1)):  # rules count for all of an endpoint, or none
        return streams
    sights = {stream.sight for stream in streams}
    heard = {one for one in sights if one is None or one.reaches(upstream, _HEARD[kind])}
    return [stream for stream in streams if stream.sight in heard]


def _may_read(stream: Subscription, upstream: UpstreamName, uri: str) -> bool:
    return stream.sight is None or stream.sight.judge(upstream, "resource", uri).allowed


def _update(uri: str) -> tuple[Key, Circular]:
    return (UPDATED, uri), circular(UPDATED, {"uri": encode(uri)})


def _time(raw: Json | None) -> datetime | None:
    try:
        time = datetime.fromisoformat(text_or_none(raw) or "")
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def kinds_of(wanted: Wanted) -> list[Kind]:
    """Return the lists of which a filter asks to be told."""
    return [kind for kind in KINDS if getattr(wanted, kind)]


def _take(index: dict[_Key, dict[Subscription, None]], key: _Key, stream: Subscription) -> None:
    streams = index[key]
    streams.pop(stream, None)
    if not streams:
        del index[key]
