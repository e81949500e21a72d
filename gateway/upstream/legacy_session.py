"""What every session with a server of an older revision does, over whatever wire its messages travel.

It opens with a handshake, keeps the requests under way by their ids, and gives each message the server sends
a meaning: an answer, something told about a call, a change, or a question. A question is answered by whoever
made the call it came up in: the call is suspended, the question leaves as `input_required`, and the answers
come back with another request (M-19).
"""

import asyncio
import itertools
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from math import inf
from typing import Protocol

from gateway.protocol import legacy_server
from gateway.protocol.call import (
    LOG_LEVELS,
    META_PROGRESS_TOKEN,
    Challenge,
    Emit,
    Notice,
    Reason,
    Reply,
    Request,
    UpstreamName,
    UpstreamUnavailable,
)
from gateway.protocol.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LEGACY_URL_ELICITATION_REQUIRED,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    Incoming,
    Json,
    Malformed,
    McpError,
    encode,
    is_null,
    is_object,
    notification_message,
    read_incoming,
    split,
    text_or_none,
    value,
)
from gateway.protocol.legacy_client import amount
from gateway.protocol.legacy_server import NOTHING, Greeting, Question
from gateway.protocol.methods import METHODS
from gateway.support.metrics import OTHER, Metrics
from gateway.support.tasks import Background
from gateway.upstream.company import UNNAMED, Company
from gateway.upstream.exchange import Exchange
from gateway.upstream.failures import Failed, UpstreamError
from gateway.upstream.incoming import Dropped, Stale
from gateway.upstream.parked import Parked

log = logging.getLogger(__name__)

_OF_TIMEOUT = 0.8
"""How much of a call's timeout it may wait for its turn, so that the server is not blamed for that."""
_LAST_WORDS = 10.0
"""The longest it may take to tell a server of a cancellation, or to answer its ping."""
_MOST_TOLD = 100
"""Messages on their way to the server at once that answer nothing it was asked for."""
_MOST_QUESTIONS = 100
"""Questions of one call at once."""
_MOST_PAGES = 100
"""Pages of one session that users have yet to deal with, as far as anybody is told when they have."""
_OURS_TO_DROP = frozenset({"notifications/tasks/status"})
_CHANGES = frozenset({known.invalidated_by for known in METHODS.values() if known.invalidated_by is not None})


_OF_SESSIONS = re.compile(
    rb"session[^\"]{0,80}(invalid|not found|unknown|expired|missing|required|terminated|exist)"
    rb"|(invalid|no valid|unknown|expired|missing|no)[^\"]{0,40}session|not initialized",
    re.IGNORECASE,
)
"""How servers that do not say 404 say that they know the session no more (B02)."""


class SessionGone(Failed):
    """The server knows the session no more; nothing of the request was done (X-29)."""

    def __init__(self, upstream: UpstreamName, detail: str) -> None:
        super().__init__(upstream, Reason.STATUS, f"{detail}: the session is gone", unsent=True)


def forgets(status: int, text: bytes) -> bool:
    """Whether a refusal by HTTP says that the session is not known any more (B02)."""
    if status == HTTPStatus.BAD_REQUEST:
        return _OF_SESSIONS.search(text) is not None
    return status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)


def is_answer(message: bytes) -> bool:
    """Whether a message of ours answers the server: what a user said is in it then (M-25)."""
    return read_incoming(message).method is None


class Wire(Protocol):
    """How the messages of one session travel. It hands what arrives to `LegacySession.heard`."""

    apart: bool
    """Whether what belongs to a request comes on a stream of its own, which says whose it is (M-22)."""

    async def request(self, exchange: "Exchange") -> None:
        """Send a request.

        Where answers come `apart` it returns once no more can come for it, and else once it is sent. Raises
        UpstreamUnavailable or Challenge. It is cancelled when nobody waits any more; what is begun to be
        written of a message is written whole all the same.
        """
        ...

    async def send(self, message: bytes) -> None:
        """Send a notification, or an answer to a request of the server's; raises Failed."""
        ...

    def greeted(self, greeting: Greeting) -> None:
        """Take note of what the handshake settled; from now on it is spoken."""
        ...


class LegacySession:
    """One session: opened once, then any number of calls, until the wire or its owner ends it.

    `on_told` hears of changes; `on_idle` is called whenever the last request under way has ended.
    """

    def __init__(
        self,
        name: UpstreamName,
        wire: Wire,
        *,
        capabilities: bytes = NOTHING,
        client_info: bytes,
        background: Background,
        metrics: Metrics,
        on_told: Callable[[Notice], None],
        on_idle: Callable[["LegacySession"], None] | None = None,
        parked: Parked | None = None,
        ids: "itertools.count[int] | None" = None,
        timeout: float = 30.0,
    ) -> None:
        """Declare these capabilities; without a place to park calls, none.

        `timeout` is that of a call; a turn is waited for a little less.
        """
        self.name = name
        self.wire = wire
        self.capabilities = capabilities if parked is not None else NOTHING
        self.greeting: Greeting | None = None
        self._opened = 0.0
        self._client_info = client_info
        self._background = background
        self._metrics = metrics
        self._on_told = on_told
        self._on_idle = on_idle
        self._parked = parked
        self._ids = itertools.count(1) if ids is None else ids
        self._exchanges: dict[int, Exchange] = {}
        self._company = Company()
        self._failure: BaseException | None = None
        self._tellings = 0
        self._told_one = asyncio.Event()
        self._level: str | None = None
        self._levels = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._turn_wait = _OF_TIMEOUT * timeout
        self._pages: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """The pages that users were sent to: whose session that was, and the question's key."""
        self._subscribed: dict[str, int] = {}
        self._subscribing = asyncio.Lock()

    def __repr__(self) -> str:
        version = self.greeting.version if self.greeting else "not open"
        return f"<LegacySession {self.name} {version}: {len(self._exchanges)} under way>"

    @property
    def active(self) -> int:
        """Requests under way, suspended ones included."""
        return len(self._exchanges)

    @property
    def ended(self) -> bool:
        """Whether it can take no request any more."""
        return self._failure is not None

    @property
    def version(self) -> str:
        return legacy_server.OFFERED if self.greeting is None else self.greeting.version

    async def open(self) -> Greeting:
        """Shake hands. Raises UpstreamError for a refusal, Failed, or Failed as ERA for a strange answer."""
        version = legacy_server.OFFERED
        try:
            result = await self._initialize(version)
        except UpstreamError as error:
            # A server that wants an older revision should offer it, but some only name it.
            named = legacy_server.versions_named(error.data)
            if not named or named[0] == version:
                raise
            result = await self._initialize(named[0])
        try:
            self.greeting = legacy_server.read_greeting(result)
        except Malformed as error:
            raise Failed(self.name, Reason.ERA, f"{error}") from None
        self._opened = asyncio.get_running_loop().time()
        self.wire.greeted(self.greeting)
        await self.wire.send(notification_message(legacy_server.INITIALIZED, {}))
        return self.greeting

    async def _initialize(self, version: str) -> Json:
        params = legacy_server.initialize_params(self.capabilities, self._client_info, version)
        exchange = self._begin(Request(legacy_server.INITIALIZE, params))
        try:
            await exchange.next(None)
            return exchange.raise_or_return().result
        finally:
            self._finish(exchange)  # it is never cancelled at the server (U-23)

    async def call(self, request: Request, emit: Emit | None = None) -> Reply:
        """Return the result as a modern server words it, `input_required` when the server asks something.

        Raises UpstreamError, Failed or Challenge. Cancelling tells the server (U-23).
        """
        if request.method == "server/discover" and self.greeting is not None:
            return Reply(self.greeting.discovered)
        await self._hear_logs(request)
        released = None
        if self._asks(request) and not self.wire.apart:
            # Nothing else says whose a question is than that there is only one call (M-22).
            await self._take_turn()
            released = self._turn.release
        try:
            exchange = self._begin(request, released)
        except BaseException:
            if released is not None:
                released()
            raise
        return await self._follow(exchange, emit)

    async def _take_turn(self) -> None:
        """Wait for the calls before this one, but not until it looks as if the server did not answer."""
        try:
            async with asyncio.timeout(self._turn_wait):
                await self._turn.acquire()
        except TimeoutError:
            suspended = any(one.shown and not one.over for one in self._exchanges.values())
            why = "waits for what its user answers" if suspended else "is under way"
            only = "this server takes one at a time that it may ask something about"
            raise McpError(INTERNAL_ERROR, f"Another call of yours {why}; {only}") from None

    async def ping(self) -> None:
        """Return when the server answers, whatever it says; raises as a call does."""
        with suppress(UpstreamError):
            await self._plain(legacy_server.PING, {})

    async def subscribe(self, uri: str) -> bool:
        """Have the server tell of a resource; whether it does. Each time is to be taken back (L-26)."""
        async with self._subscribing:
            if not self._subscribed.get(uri):
                try:
                    await self._plain(legacy_server.SUBSCRIBE, {"uri": encode(uri)})
                except UpstreamError as error:
                    log.debug("upstream %s: no subscription: error %d", self.name, error.code)
                    return False
            self._subscribed[uri] = self._subscribed.get(uri, 0) + 1
            return True

    def unsubscribe(self, uri: str) -> None:
        """Take back one `subscribe`; the server is told of the last."""
        left = self._subscribed.get(uri, 0) - 1
        if left > 0:
            self._subscribed[uri] = left
        elif self._subscribed.pop(uri, None) is not None and not self.ended:
            self._background.start(self._unsubscribed(uri), name=f"unsubscribe at {self.name}")

    async def _unsubscribed(self, uri: str) -> None:
        async with self._subscribing:
            if uri in self._subscribed:  # again, meanwhile
                return
            try:
                async with asyncio.timeout(_LAST_WORDS):
                    await self._plain(legacy_server.UNSUBSCRIBE, {"uri": encode(uri)})
            except (McpError, Failed, TimeoutError) as error:
                log.debug("upstream %s: a subscription stays: %s", self.name, error)

    def note(self, notice: Notice) -> bool:
        """Tell the server what its client has to tell; whether that is any of its business."""
        roots = "roots" in split(self.capabilities)
        if notice.method != legacy_server.ROOTS_CHANGED or not roots or self.greeting is None or self.ended:
            return False
        self._tell(notification_message(notice.method, {}))
        return True

    def report(self, exchange: Exchange, key: str, params: Mapping[str, Json]) -> None:
        """Tell the server how far the client is with an answer, if it wants to know (E-33)."""
        question = exchange.questions.get(key)
        progress = amount(params.get("progress"))
        if question is None or question.token is None or progress is None or self.ended:
            return
        if progress <= exchange.reported.get(key, -inf):
            return
        exchange.reported[key] = progress
        told = {**params, META_PROGRESS_TOKEN: question.token}
        self._tell(notification_message(legacy_server.PROGRESS, told))

    def fail(self, failure: BaseException) -> None:
        """Have all that is under way, and all that comes later, fail."""
        self.retire(failure)
        for exchange in list(self._exchanges.values()):
            exchange.end(failure)

    def retire(self, failure: BaseException) -> None:
        """Have all that comes later fail; what is under way may still be answered."""
        if self._failure is None:
            self._failure = failure
            if self.greeting is not None:
                took = asyncio.get_running_loop().time() - self._opened
                self._metrics.upstream_session_ended(self.name, self.version, _why(failure), took)

    def lose(self, gone: SessionGone, failure: Failed) -> None:
        """Have what the server has taken fail; what is on its way to it is told by its own refusal."""
        self.retire(gone)
        for exchange in list(self._exchanges.values()):
            if exchange.carrying is None or exchange.carrying.done():
                exchange.end(failure)

    async def sent(self, within: float) -> None:
        """Return once nothing is on its way to the server any more, or after this time."""
        going = [one.carrying for one in self._exchanges.values() if one.carrying is not None]
        if going:
            await asyncio.wait(going, timeout=within)

    # A request and its end

    def _begin(self, request: Request, released: Callable[[], None] | None = None) -> Exchange:
        if self._failure is not None:
            raise self._failure
        id = next(self._ids)
        params = legacy_server.request_params(request, id, self.version)
        message = legacy_server.request_message(id, request.method, params)
        exchange = Exchange(id, request, message, released)
        self._company.join(request)
        self._exchanges[id] = exchange
        exchange.carrying = self._background.start(
            self._carry(exchange), name=f"{request.method} at {self.name}"
        )
        return exchange

    async def _carry(self, exchange: Exchange) -> None:
        """Have the wire do its part."""
        try:
            await self.wire.request(exchange)
        except (McpError, UpstreamUnavailable, Challenge) as error:
            exchange.end(error)
        except BaseException:  # cancelled as the gateway stops; or a bug, which the log tells of
            exchange.end(Failed(self.name, Reason.STOPPING))
            raise
        if self.wire.apart:
            exchange.end(
                Failed(self.name, Reason.PROTOCOL, "the stream ended without an answer", transient=True)
            )

    async def _plain(self, method: str, params: Mapping[str, Json]) -> Json:
        """Return the result of a request of the gateway's own, as it came."""
        exchange = self._begin(Request(method, params))
        try:
            await exchange.next(None)
            return exchange.raise_or_return().result
        except asyncio.CancelledError:
            self._cancelled(exchange)
            raise
        finally:
            self._finish(exchange)

    async def _follow(self, exchange: Exchange, emit: Emit | None) -> Reply:
        """Return how a call ends, or what its server asks."""
        suspended = False
        try:
            while not await exchange.next(emit):
                if not await exchange.gathered():
                    suspended = True
                    return self._asking(exchange)
            return self._worded(exchange)
        except BaseException:
            suspended = False
            self._cancelled(exchange)
            raise
        finally:
            if not suspended:
                self._finish(exchange)

    def _finish(self, exchange: Exchange) -> None:
        if self._exchanges.pop(exchange.id, None) is None:
            return
        exchange.withdrawn.clear()
        exchange.end(Failed(self.name, Reason.STOPPING))
        if exchange.carrying is not None and not isinstance(exchange.outcome, Reply):
            exchange.carrying.cancel()  # nothing comes any more that anybody waits for
        for task in exchange.handing:
            asyncio.get_running_loop().call_later(_LAST_WORDS, task.cancel)
        if exchange.released is not None:
            exchange.released()
        if not self._exchanges and self._on_idle is not None:
            self._on_idle(self)

    def _cancelled(self, exchange: Exchange) -> None:
        """Tell the server that nobody waits any more, unless it has answered (X-63)."""
        if exchange.over or self.ended:
            return
        params: dict[str, Json] = {"requestId": encode(exchange.id), "reason": b'"no longer wanted"'}
        self._tell(notification_message(legacy_server.CANCELLED, params), must=True)

    def _worded(self, exchange: Exchange) -> Reply:
        request = exchange.request
        try:
            reply = exchange.raise_or_return()
            return Reply(legacy_server.worded(request.method, reply.result))
        except UpstreamError as error:
            return self._instead_of(error, exchange)
        except Malformed as error:
            raise Failed(self.name, Reason.PROTOCOL, f"in its result: {error}") from None

    def _instead_of(self, error: UpstreamError, exchange: Exchange) -> Reply:
        """Return the pages that an error wants visited, as the question it is, or raise it (M-21)."""
        request = exchange.request
        known = METHODS.get(request.method)
        wants_pages = error.code == LEGACY_URL_ELICITATION_REQUIRED and known is not None and known.may_ask
        if wants_pages and legacy_server.offers_pages(request.capabilities):
            try:
                pages = legacy_server.elicitations(error)
            except Malformed as malformed:
                raise Failed(self.name, Reason.PROTOCOL, f"in its error: {malformed}") from None
            keyed = {exchange.mint(page): page for page in pages[:_MOST_QUESTIONS]}
            for key, page in keyed.items():
                self._sent_to(page, key, request)
            return Reply(legacy_server.asking(keyed, None))
        if error.code in (HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION):
            # In these revisions the numbers are a server's own; what they mean by now it did not mean.
            raise UpstreamError(McpError(INTERNAL_ERROR, error.message, error.data), error.status)
        raise error

    # Questions

    def _asks(self, request: Request) -> bool:
        """Whether the server may ask something about this request."""
        known = METHODS.get(request.method)
        return self.capabilities != NOTHING and known is not None and known.may_ask

    def _asking(self, exchange: Exchange) -> Reply:
        assert self._parked is not None  # without it nothing is declared, and nothing asked
        exchange.shown = set(exchange.questions)
        waiting = _Waiting(self, exchange)
        state = self._parked.park(waiting, exchange.request.context, lambda: exchange.over)
        return Reply(legacy_server.asking(exchange.questions, state))

    async def go_on(self, exchange: Exchange, answers: Mapping[str, Json], emit: Emit | None) -> Reply:
        """Give the server what a client answered, and return the result or what else there is to ask."""
        exchange.withdrawn.clear()
        for key in [] if exchange.over else list(exchange.questions):
            given = answers.get(key)
            if given is not None and is_object(given):
                question = exchange.questions.pop(key)
                handing = self._hand_over(exchange, legacy_server.answer_message(question.id, given))
                task = self._background.start(handing, name=f"answer {self.name}")
                exchange.handing.add(task)
                task.add_done_callback(exchange.handing.discard)
        exchange.shown = set()  # what nobody answered is asked again
        return await self._follow(exchange, emit)

    async def _hand_over(self, exchange: Exchange, answer: bytes) -> None:
        """Send an answer; the result may be there before it is said to have been taken."""
        try:
            await self.wire.send(answer)
        except SessionGone as gone:  # the call itself had been sent
            exchange.end(Failed(self.name, Reason.STATUS, gone.detail))
        except (McpError, UpstreamUnavailable, Challenge) as error:
            self._cancelled(exchange)
            exchange.end(error)

    def drop(self, exchange: Exchange) -> None:
        """End a suspended call."""
        self._cancelled(exchange)
        self._finish(exchange)

    # What is heard

    def heard(self, message: Incoming, of: int | None = None) -> None:
        """Take in a message; `of` is the request on whose own stream it came."""
        if message.method is None:
            self._answered(message, of)
        elif message.id is not None:
            self._asked(message, of)
        else:
            self._told(message, of)

    def _answered(self, message: Incoming, of: int | None) -> None:
        id = of if message.id is None and message.error is not None else number_of(message.id)
        exchange = None if id is None else self._exchanges.get(id)
        if exchange is None:
            self._dropped("notification", "an answer to nothing that is waited for")
        elif message.id is None and not self.wire.apart and not self._company.only([exchange], [exchange]):
            exchange.end(Failed(self.name, Reason.PROTOCOL, UNNAMED))
        elif message.error is not None:
            exchange.end(UpstreamError(message.error, 200))
        elif message.result is None or not is_object(message.result):
            exchange.end(Failed(self.name, Reason.PROTOCOL, "the result is no object"))
        else:
            exchange.end(Reply(message.result))

    def _asked(self, message: Incoming, of: int | None) -> None:
        """Answer a request of the server's, or leave it to the one call it can belong to."""
        id = message.id
        assert id is not None
        if is_null(id):
            self._dropped("request", "its id is null")
            return
        if message.method == legacy_server.PING:
            self._tell(legacy_server.answer_message(id, b"{}"))
            return
        exchange = self._exchanges.get(of) if of is not None else self._only(self._asks)
        try:
            refused = legacy_server.refusal(message, self.capabilities)
            # A call that was answered is over, whether its caller has taken note or not.
            if refused is None and (exchange is None or exchange.over or not self._asks(exchange.request)):
                refused = McpError(METHOD_NOT_FOUND, "no call of the client's is known to ask that")
            elif refused is None and exchange is not None and len(exchange.questions) >= _MOST_QUESTIONS:
                refused = McpError(INTERNAL_ERROR, "too many questions at once")
            question = None if refused else legacy_server.read_question(message)
        except Malformed as error:
            refused, question = McpError(INVALID_PARAMS, f"{error}"), None
        if refused is not None or question is None or exchange is None:
            refused = refused or McpError(METHOD_NOT_FOUND, "Method not found")
            self._dropped("request", f"{(message.method or '')[:80]}: {refused.message}")
            self._tell(legacy_server.refusal_message(id, refused.code, refused.message))
            return
        self._sent_to(question, exchange.asked(question), exchange.request)

    def _sent_to(self, question: Question, key: str, request: Request) -> None:
        """Remember who is sent to a page, to tell when it has been dealt with."""
        if question.page is None or not request.context.session:
            return
        self._pages[question.page] = (request.context.session, key)
        self._pages.move_to_end(question.page)
        if len(self._pages) > _MOST_PAGES:
            self._pages.popitem(last=False)

    def _completed(self, message: Incoming) -> None:
        """Have the one client told that was sent to a page (9.5); a modern one learns of it by its retry."""
        page = text_or_none(members_of(message.params).get("elicitationId"))
        to = None if page is None else self._pages.pop(page, None)
        if to is None or self._parked is None or not self._parked.completed(*to):
            self._dropped("notification", "it is about a page that no older client was sent to")

    def _told(self, message: Incoming, of: int | None) -> None:
        method = message.method or ""
        if method == legacy_server.CANCELLED:
            self._taken_back(message)
            return
        if method == legacy_server.COMPLETED:
            self._completed(message)
            return
        if method in _OURS_TO_DROP:
            self._dropped("notification", f"{method} has no counterpart")
            return
        if method in _CHANGES:
            self._changed(message)
            return
        exchange = self._whose(message, of)
        if exchange is None:
            what = {"notifications/progress": "progress", "notifications/message": "log"}.get(method)
            self._dropped(what or "notification", f"{method[:80]} belongs to no call")
            return
        try:
            meaning = exchange.conversation.meaning(message)
        except Malformed as error:
            meaning = Dropped("notification", f"{error}")
        if isinstance(meaning, Notice) and not exchange.told(meaning):
            meaning = Dropped("notification", "its call hears no more for now")
        if isinstance(meaning, Dropped):
            self._dropped(meaning.what, meaning.why)
        elif isinstance(meaning, Stale):
            self._changed(message)

    def _whose(self, message: Incoming, of: int | None) -> Exchange | None:
        """Return the call that a notification is about, if anything says which (A-14)."""
        match message.method:
            case "notifications/progress":
                params = members_of(message.params)
                id = number_of(params.get(META_PROGRESS_TOKEN))
                return None if id is None else self._exchanges.get(id)
            case "notifications/message" if not self.wire.apart:
                among = list(self._exchanges.values())
                heard = [exchange for exchange in among if exchange.request.log_level is not None]
                return self._company.only(heard, among)
            case _:
                return None if of is None else self._exchanges.get(of)

    def _only(self, such: Callable[[Request], bool]) -> Exchange | None:
        """Return the only call under way that is such a one."""
        found = [exchange for exchange in self._exchanges.values() if such(exchange.request)]
        return found[0] if len(found) == 1 else None

    def _changed(self, message: Incoming) -> None:
        params = members_of(message.params)
        params.pop("_meta", None)
        method = message.method or ""
        if method == "notifications/resources/updated" and text_or_none(params.get("uri")) is None:
            self._dropped("notification", "it names no uri")
            return
        self._on_told(Notice(method, params))

    def _taken_back(self, message: Incoming) -> None:
        id = members_of(message.params).get("requestId")
        if id is None or not any(exchange.taken_back(id) for exchange in self._exchanges.values()):
            self._dropped("notification", "it cancels what was not asked, or is answered already")

    # What is said besides

    async def _hear_logs(self, request: Request) -> None:
        """See to it that the server says as much as a call wants to hear; the rest is sieved out (S-24).

        Its level is one for the whole session: it never rises above what another call wants.
        """
        if request.log_level is None or self.greeting is None or not self.greeting.has("logging"):
            return
        async with self._levels:
            others = [exchange.request.log_level for exchange in self._exchanges.values()]
            if self.capabilities == NOTHING:
                others.append(self._level)  # others may share this session, and have set it
            level = legacy_server.loudest([request.log_level, *others], LOG_LEVELS)
            if level is None or level == self._level:
                return
            try:
                await self._plain(legacy_server.SET_LEVEL, {"level": encode(level)})
                self._level = level
            except UpstreamError as error:
                log.debug("upstream %s: no log level: error %d", self.name, error.code)

    async def room(self) -> None:
        """Return once the server may ask for more: each answer has its time."""
        while self._tellings >= _MOST_TOLD:
            self._told_one.clear()
            await self._told_one.wait()

    def _tell(self, message: bytes, *, must: bool = False) -> None:
        """Send what nobody waits for."""
        if self._tellings >= _MOST_TOLD and not must:
            self._dropped("request", "the server asks faster than it takes answers")
            return
        self._tellings += 1
        self._background.start(self._telling(message), name=f"tell {self.name}")

    async def _telling(self, message: bytes) -> None:
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await self.wire.send(message)
        except Exception as error:  # a refused credential included; a bug shows elsewhere
            log.debug("upstream %s: it could not be told: %s", self.name, error)
        finally:
            self._tellings -= 1
            self._told_one.set()

    def _dropped(self, what: str, why: str) -> None:
        self._metrics.dropped(self.name, what)
        log.debug("upstream %s: %s dropped: %s", self.name, what, why)


class _Waiting:
    """A call of a session's that waits for answers."""

    def __init__(self, session: LegacySession, exchange: Exchange) -> None:
        self._session = session
        self._exchange = exchange

    def __repr__(self) -> str:
        return f"<_Waiting {self._exchange!r}>"

    async def go_on(self, answers: Mapping[str, Json], emit: Emit | None) -> Reply:
        return await self._session.go_on(self._exchange, answers, emit)

    def report(self, key: str, params: Mapping[str, Json]) -> None:
        self._session.report(self._exchange, key, params)

    def on_withdrawn(self, key: str, tell: Callable[[], None]) -> None:
        self._exchange.on_withdrawn(key, tell)

    async def drop(self) -> None:
        self._session.drop(self._exchange)


def _why(failure: BaseException) -> str:
    """Return what ended a session, as metrics count it; it is empty where the gateway did."""
    match failure:
        case SessionGone():
            return "forgotten"
        case UpstreamUnavailable():
            return "" if failure.reason is Reason.STOPPING else failure.reason.name.lower()
        case _:
            return OTHER


def members_of(raw: Json | None) -> dict[str, Json]:
    """Return the members of a message's params, none for what is no object."""
    try:
        return {} if raw is None or is_null(raw) else dict(split(raw))
    except Malformed:
        return {}


def number_of(raw: Json | None) -> int | None:
    """Return the id that a message names; some servers give it back as a string (B22)."""
    if raw is None:
        return None
    try:
        given = value(raw)
    except Malformed:
        return None
    if isinstance(given, str) and given.isascii() and given.isdecimal() and len(given) < 20:
        return int(given)
    return given if isinstance(given, int) and not isinstance(given, bool) else None
