"""A replica's share of the conversation between replicas: its mailbox and its notebook, on a real Redis.

python -m tests.support.mailboxes URL     answers `echo`, `size`, `hang` and `tell` until it is killed
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from gateway.config import parse_redis_url
from gateway.support.mailbox import Tell
from gateway.support.metrics import Metrics
from gateway.support.redis import SharedRedis
from gateway.support.redis_mailbox import RedisMailbox
from gateway.support.redis_notebook import RedisNotebook
from gateway.support.seal import Seal
from gateway.support.tasks import Background


class Post:
    """One replica. It answers `echo` with the question, `size` with as many bytes as it is asked for,
    `hang` never, and `tell` with what it told before, a byte at a time.
    """

    def __init__(
        self, url: str, *keys: str, beat: float = 0.1, largest: int = 40 * 2**20, timeout: float = 2.0
    ) -> None:
        self.background = Background()
        self.metrics = Metrics()
        seal = Seal(keys or ("k",))
        self.redis = SharedRedis(parse_redis_url(url), timeout=timeout, metrics=self.metrics)
        self.notebook = RedisNotebook(self.redis, seal, prefix="mcpgw")
        self.mailbox = RedisMailbox(
            self.redis,
            seal,
            prefix="mcpgw",
            background=self.background,
            metrics=self.metrics,
            largest=largest,
            beat=beat,
        )
        self.hanging = 0
        self.asked = 0
        answers: dict[str, Callable[[bytes, Tell], Awaitable[bytes]]] = {
            "echo": self._echo,
            "size": self._size,
            "hang": self._hang,
            "tell": self._tell,
            "fail": self._fail,
        }
        for subject, answer in answers.items():
            self.mailbox.serve(subject, answer)

    @property
    def me(self) -> str:
        return self.mailbox.me

    async def __aenter__(self) -> "Post":
        self.mailbox.start()
        await self.mailbox.linked()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.mailbox.close()
        await self.background.close(1.0)
        await self.redis.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that nothing announces."""
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)

    async def _echo(self, question: bytes, tell: Tell) -> bytes:
        self.asked += 1
        return question

    async def _size(self, question: bytes, tell: Tell) -> bytes:
        return bytes(int(question))

    async def _hang(self, question: bytes, tell: Tell) -> bytes:
        self.hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.hanging -= 1
        return b""

    async def _tell(self, question: bytes, tell: Tell) -> bytes:
        for index in range(len(question)):
            await tell(question[index : index + 1])
        return question

    async def _fail(self, question: bytes, tell: Tell) -> bytes:
        raise RuntimeError("as it was asked to")


async def _main(url: str) -> None:
    async with Post(url) as post:
        sys.stdout.write(f"{post.me}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
