"""A process that is alone asks itself, and nobody else."""

import pytest

from gateway.support.mailbox import LocalMailbox, Tell, Unreachable


async def test_one_asks_oneself_and_hears_what_is_told_meanwhile() -> None:
    mailbox = LocalMailbox()
    heard = []

    async def answer(question: bytes, tell: Tell) -> bytes:
        await tell(b"soon")
        return question * 2

    async def told(said: bytes) -> None:
        heard.append(said)

    mailbox.serve("twice", answer)
    assert await mailbox.ask(mailbox.me, "twice", b"ab", timeout=None, told=told) == b"abab"
    assert await mailbox.ask(mailbox.me, "twice", b"c", timeout=None) == b"cc"
    assert heard == [b"soon"]


async def test_nobody_else_is_there() -> None:
    mailbox = LocalMailbox()
    with pytest.raises(Unreachable) as refused:
        await mailbox.ask(LocalMailbox().me, "twice", b"", timeout=1)
    assert refused.value.gone


async def test_what_nobody_answers_is_gone() -> None:
    mailbox = LocalMailbox()
    with pytest.raises(Unreachable, match="'twice'"):
        await mailbox.ask(mailbox.me, "twice", b"", timeout=1)
