"""Replicas talk to a certain one of them: ask it something, hear what it tells meanwhile, get its answer."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

Tell: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Says something to who asked before there is an answer; waits while he is slow to take it."""
Serve: TypeAlias = Callable[[bytes, Tell], Awaitable[bytes]]
"""Answers a question. It is cancelled when who asked gives up, or is gone; what it raises is no answer."""


class Unreachable(Exception):
    """There will be no answer; whether the question was heard, and what became of it, is not known.

    `gone` says that the process asked is no longer there, or knows nothing of the question any more; else it
    may be there and is out of reach, for want of Redis.
    """

    def __init__(self, why: str, *, gone: bool = False) -> None:
        super().__init__(why)
        self.gone = gone


class Mailbox(Protocol):
    """How a process is asked by the others."""

    @property
    def me(self) -> str:
        """The address of this process: random, unlike any other before or after it."""
        ...

    def serve(self, subject: str, answer: Serve) -> None:
        """Have questions under a subject answered, several at once; every replica serves the same ones."""
        ...

    async def ask(
        self,
        whom: str,
        subject: str,
        question: bytes,
        *,
        timeout: float | None,
        told: Tell | None = None,
    ) -> bytes:
        """Return the answer of a certain process; oneself is asked without a detour.

        What it tells meanwhile goes to `told`, in order. Raises Unreachable, and TimeoutError after
        `timeout` seconds (None: whoever calls keeps the deadline). Cancelling it cancels the work there.
        """
        ...

    def start(self) -> None:
        """Begin to be reached by others; does not wait for that."""
        ...

    async def close(self) -> None:
        """Give up what is asked, and end the work for others."""
        ...


class Served:
    """The questions that a process answers, by subject."""

    def __init__(self) -> None:
        self._answers: dict[str, Serve] = {}

    def add(self, subject: str, answer: Serve) -> None:
        if subject in self._answers:
            raise ValueError(f"{subject} is served already")
        self._answers[subject] = answer

    async def answer(self, subject: str, question: bytes, tell: Tell) -> bytes:
        """Return an answer; raises Unreachable for what nobody here knows, and whatever answering raises."""
        if (answer := self._answers.get(subject)) is None:
            raise Unreachable(f"nobody answers {subject[:64]!r} there", gone=True)
        return await answer(question, tell)


class LocalMailbox:
    """That of a single process, which has only itself to ask."""

    def __init__(self) -> None:
        self.me = address()
        self._served = Served()

    def __repr__(self) -> str:
        return f"<LocalMailbox {self.me}>"

    def serve(self, subject: str, answer: Serve) -> None:
        self._served.add(subject, answer)

    async def ask(
        self,
        whom: str,
        subject: str,
        question: bytes,
        *,
        timeout: float | None,
        told: Tell | None = None,
    ) -> bytes:
        if whom != self.me:
            raise Unreachable("there is no other replica", gone=True)
        return await ask_oneself(self._served, subject, question, timeout=timeout, told=told)

    def start(self) -> None:
        """Nobody else is there."""

    async def close(self) -> None:
        """Whoever asks is at work himself."""


def address() -> str:
    """Return a new address, of 32 hex digits."""
    return os.urandom(16).hex()


async def ask_oneself(
    served: Served, subject: str, question: bytes, *, timeout: float | None, told: Tell | None
) -> bytes:
    """Return what this process answers to itself; raises as `Mailbox.ask` does."""
    async with asyncio.timeout(timeout):
        return await served.answer(subject, question, told or _unheard)


async def _unheard(said: bytes) -> None:
    """Nobody listens to what is told."""
