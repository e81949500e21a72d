"""What replicas say to each other, on a real Redis: the mailbox, notebook and parked calls of one of them.

python -m tests.support.mailboxes URL hold N         parks N calls, and writes the state of each
python -m tests.support.mailboxes URL resume STATE   goes on with a call, and writes what comes of it

Both write a line for whatever happens to their calls, and end with SIGTERM as the gateway does.
"""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping

from gateway.config import parse_redis_url
from gateway.protocol.call import Context, Emit, Notice, Reply
from gateway.protocol.jsonrpc import Json, McpError
from gateway.support.mailbox import Tell
from gateway.support.metrics import Metrics
from gateway.support.redis import SharedRedis
from gateway.support.redis_mailbox import RedisMailbox
from gateway.support.redis_notebook import RedisNotebook
from gateway.support.seal import Seal
from gateway.support.tasks import Background
from gateway.upstream.parked import Parked

ME = Context(caller="me", session="mine")


class Call:
    """An upstream's call that waits for answers, and says what happens to it.

    It tells of as many steps as it is to, then waits for `go`, then returns the answers, or raises `error`.
    """

    def __init__(
        self, say: Callable[[str], None] | None = None, *, steps: int = 0, error: Exception | None = None
    ) -> None:
        self.answers: list[Mapping[str, Json]] = []
        self.go = asyncio.Event()
        self.asked = asyncio.Event()
        self.dropped = asyncio.Event()
        self.cancelled = asyncio.Event()
        self._say = say or (lambda what: None)
        self._steps = steps
        self._error = error

    async def go_on(self, answers: Mapping[str, Json], emit: Emit | None) -> Reply:
        self.answers.append(answers)
        self.asked.set()
        self._say("asked")
        try:
            for step in range(self._steps):
                if emit is not None:
                    await emit(Notice("notifications/progress", {"progress": b"%d" % step}))
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            self._say("cancelled")
            raise
        if self._error is not None:
            raise self._error
        return Reply(
            b"{" + b",".join(b'"%s":%s' % (key.encode(), bytes(one)) for key, one in answers.items()) + b"}"
        )

    async def drop(self) -> None:
        self.dropped.set()
        self._say("dropped")


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
        self.parked = Parked(self.mailbox, self.background, each=1000, metrics=self.metrics)
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
        await self.parked.close()
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


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _main(url: str, doing: str, what: str) -> None:
    ends = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)
    async with Post(url, beat=0.2) as post:
        if doing == "hold":
            for _ in range(int(what)):
                call = Call(_write)
                call.go.set()
                _write(post.parked.park(call, ME))
            await ends.wait()
            return
        try:
            _write((await post.parked.resume(what, ME, {"a": b"1"})).result.decode())
        except McpError as error:
            _write(str(error.code))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:4]))
