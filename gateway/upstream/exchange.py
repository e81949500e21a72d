"""One request under way at a server of an older revision: what came for it, and what it still waits for."""

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from gateway.protocol import legacy_questions
from gateway.protocol.call import Emit, Notice, Reply, Request
from gateway.protocol.jsonrpc import Json
from gateway.protocol.legacy_server import Question
from gateway.upstream.incoming import Conversation

GATHER = 0.05
"""How long a server's first question waits for others to go with it (M-19)."""
_MOST_NOTICES = 256
"""Notices of one call that may wait for whoever made it."""


class Exchange:
    """From its sending until whoever made it has the answer."""

    def __init__(
        self, id: int, request: Request, message: bytes, released: Callable[[], None] | None
    ) -> None:
        """Call `released`, if anything, once it is done with."""
        self.id = id
        self.request = request
        self.message = message
        self.conversation = Conversation(id, progress=request.wants_progress, log_level=request.log_level)
        self.outcome: Reply | BaseException | None = None
        self.notices: deque[Notice] = deque()
        self.questions: dict[str, Question] = {}
        """What the server waits for, by the key the client was or will be given."""
        self.reported: dict[str, float] = {}
        """How far the answers are, by the same keys."""
        self.withdrawn: dict[str, Callable[[], None]] = {}
        """Told, by the same keys, once an answer is not wanted any more."""
        self.shown: set[str] = set()
        self.carrying: asyncio.Task[None] | None = None
        self.handing: set[asyncio.Task[None]] = set()
        """Answers on their way to the server."""
        self.released = released
        self._keys = itertools.count(1)
        self._stir = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def __repr__(self) -> str:
        state = "waits" if self.outcome is None else "over"
        return f"<Exchange {self.id} {self.request.method}: {state}, {len(self.questions)} questions>"

    @property
    def over(self) -> bool:
        return self.outcome is not None

    def end(self, outcome: Reply | BaseException) -> None:
        """Settle how it ends; the first word counts."""
        if self.outcome is None:
            self.outcome = outcome
            self._stir.set()
            for key in list(self.withdrawn):
                self._withdraw(key)

    def told(self, notice: Notice) -> bool:
        """Take a notice for whoever made the call; whether there was room for it."""
        if len(self.notices) >= _MOST_NOTICES:
            return False
        self.notices.append(notice)
        if len(self.notices) >= _MOST_NOTICES:
            self._room.clear()
        self._stir.set()
        return True

    def asked(self, question: Question) -> str:
        """Take a question of the server's, and return its key."""
        key = self.mint(question)
        self.questions[key] = question
        self._stir.set()
        return key

    def mint(self, question: Question) -> str:
        """Return a key for a question; only to clients of older eras more can be told of it."""
        older = bool(self.request.context.session)
        return legacy_questions.key(
            next(self._keys),
            progress=older and question.token is not None,
            page=secrets.token_hex(16) if older and question.page is not None else None,
        )

    def taken_back(self, id: Json) -> bool:
        """Forget a question that the server does not want answered any more; whether it was one of this."""
        for key, question in self.questions.items():
            if question.id == bytes(id):
                del self.questions[key]
                self._withdraw(key)
                self._stir.set()
                return True
        return False

    def on_withdrawn(self, key: str, tell: Callable[[], None]) -> None:
        """Have it told, at once if need be, that nobody waits for this answer any more."""
        self.withdrawn[key] = tell
        if self.over or key not in self.questions:
            self._withdraw(key)

    def _withdraw(self, key: str) -> None:
        tell = self.withdrawn.pop(key, None)
        if tell is not None:
            tell()

    async def room(self) -> None:
        """Return once more can be told: a caller that is slow slows its own stream down."""
        await self._room.wait()

    async def next(self, emit: Emit | None) -> bool:
        """Hand on what was told until it is over (true) or something is asked (false)."""
        while True:
            self._stir.clear()
            while self.notices:
                notice = self.notices.popleft()
                self._room.set()
                if emit is not None:
                    await emit(notice)
            if self.outcome is not None:
                return True
            if self.questions.keys() - self.shown:
                return False
            await self._stir.wait()

    async def gathered(self) -> bool:
        """Wait a moment for what else is asked; whether it is over meanwhile, or all of it is taken back."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER):
                while not self.over and self.questions.keys() - self.shown:
                    self._stir.clear()
                    await self._stir.wait()
        return self.over or not self.questions.keys() - self.shown

    def raise_or_return(self) -> Reply:
        """Return how it ended, or raise it."""
        assert self.outcome is not None
        if isinstance(self.outcome, Reply):
            return self.outcome
        raise self.outcome
