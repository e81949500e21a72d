"""The shared cache over TLS, on a Cluster, and on a server that Sentinels know: the same answers and changes.

And what becomes of it when a certificate is not the right one, a user may do too little, or a server dies.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.cache.policy import Lookup, Rules, public_key
from gateway.cache.trial import attempt
from gateway.config import Rate, RedisTls
from gateway.protocol.call import MODERN_VERSION, Change, Reply, UpstreamName
from gateway.protocol.jsonrpc import encode, value
from gateway.support.mailbox import Unreachable, address
from gateway.support.notebook import Unavailable
from gateway.support.rates import LocalRates, RedisRates
from gateway.support.seal import Seal
from tests.support.certificates import Authority, Pair
from tests.support.mailboxes import Post
from tests.support.processes import ROOT, free_port
from tests.support.redis import RedisServer, redis_server
from tests.support.replicas import Place, Replica, replica
from tests.support.running import Clock

GH = UpstreamName("gh")
LISTS = Lookup(GH, "settings", "tools/list", None, "profile", MODERN_VERSION, None, Rules())


@dataclass
class Elsewhere:
    """Where replicas find their Redis, other than on its own socket."""

    url: str


async def answer() -> Reply:
    return Reply(encode({"ttlMs": 60_000, "cacheScope": "public"}))


async def assert_one_cache(place: Place, tls: RedisTls | None = None) -> None:
    """What one fetched the other serves, until one of them hears of a change."""
    async with replica(place, tls=tls) as one, replica(place, tls=tls) as two:
        assert await one.ask(LISTS, answer) == "miss absent"
        assert await two.ask(LISTS, answer) == "hit hit"
        await one.changed(Change(GH, "tools/list"))
        assert two.cache.peek(LISTS) is None
        assert await two.ask(LISTS, answer) == "miss generation"
        assert await one.ask(LISTS, answer) == "hit hit"


async def assert_one_conversation(place: Place) -> None:
    """What one asks the other answers, what one notes the other finds; who is not there is known at once."""
    async with Post(place.url) as one, Post(place.url) as two:
        await converse(one, two)
        with pytest.raises(Unreachable) as refused:
            await one.mailbox.ask(address(), "echo", b"", timeout=None)
        assert refused.value.gone


async def assert_one_count(place: Place) -> None:
    """What one lets in the other does not; each alone would let in as many again."""
    rate = Rate(3, 86400.0)
    async with Post(place.url) as one, Post(place.url) as two:
        seal = Seal(["0123456789abcdef0123456789abcdef"])
        rates = [
            RedisRates(post.redis, seal, prefix="mcpgw", local=LocalRates(Clock())) for post in (one, two)
        ]
        waits = [await each.take("alice", rate) for each in rates * 2]
        assert [wait == 0.0 for wait in waits] == [True, True, True, False]
        assert await rates[0].look("alice", rate) > 0.0
        assert one.redis.answers
        assert two.redis.answers


async def converse(one: Post, two: Post) -> None:
    question = bytes(300_000)
    for asks, other in ((one, two), (two, one)):
        assert await asks.mailbox.ask(other.me, "echo", question, timeout=None) == question
        await asks.notebook.write("session", asks.me.encode(), b"1", 60)
        assert await other.notebook.read("session", asks.me.encode()) == b"1"
        assert await other.notebook.include("uris", asks.me.encode(), [b"1", b"2"], 60, most=2)
        assert await asks.notebook.members("uris", asks.me.encode()) == {b"1", b"2"}


async def converse_again(one: Post, two: Post) -> None:
    """Once the other server is found; until then it is said that nobody can tell, or that nobody is there."""
    while True:
        try:
            return await converse(one, two)
        except (Unreachable, Unavailable):
            await asyncio.sleep(0.05)


async def why_not_cached(place: Place, tls: RedisTls, caplog: pytest.LogCaptureFixture) -> str:
    """Return what the log says, once; a Redis that cannot be used costs the caching, and no answer (C-35)."""
    caplog.clear()
    async with replica(place, tls=tls, linked=False) as one:
        await one.until(lambda: "nothing is cached" in caplog.text)
        assert [await one.ask(LISTS, answer) for _ in range(2)] == ["miss absent"] * 2
        assert not one.bus.hears
    (said,) = [line for line in caplog.messages if "nothing is cached" in line]
    return said


class Upstream:
    """Answers with its version as it is when asked."""

    version = 1

    async def __call__(self) -> Reply:
        return Reply(encode({"version": self.version, "ttlMs": 60_000, "cacheScope": "public"}))


async def version(one: Replica, upstream: Upstream) -> object:
    return value((await one.cache.get(LISTS, upstream)).entry.result)["version"]


async def assert_one_cache_again(upstream: Upstream, one: Replica, two: Replica) -> None:
    """Nobody is served the old one, and both keep the new one, for each other too."""
    for each in (one, two):
        await each.linked()
        assert await version(each, upstream) == upstream.version
    await one.changed(Change(GH, "tools/list"))
    assert (await one.ask(LISTS, upstream), await two.ask(LISTS, upstream)) == ("miss generation", "hit hit")


# Users


def documented_rights() -> list[str]:
    """Return what the documentation says a user needs; the password is hunter2."""
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    (rule,) = re.findall(r"^ACL SETUSER gateway (.+(?:\n {4,}.+)*)$", text, re.MULTILINE)
    return str(rule).replace("PASSWORD", "hunter2").split()


async def test_a_user_with_the_documented_rights_and_no_others_will_do() -> None:
    """The list in the documentation is what is needed: nothing is denied, and nothing on it is spare."""
    rights = documented_rights()
    async with redis_server() as server:
        await server.ask("ACL", "SETUSER", "gateway", *rights)
        place = Elsewhere(server.url.replace("unix://", "unix://gateway:hunter2@"))
        await assert_one_cache(place)
        await assert_one_conversation(place)
        await assert_one_count(place)
        async with replica(place) as one:
            await one.ask(LISTS, answer)
            await one.store.delete(public_key(LISTS))
            assert await attempt(one.redis, prefix="mcpgw", patience=5.0) == []  # leases among the rest
        assert await server.ask("ACL", "LOG") == []
        used = await server.ask("INFO", "commandstats")
    granted = {right[1:] for right in rights if right.startswith("+")}
    assert granted == {name.removeprefix("cmdstat_") for name in used} & granted


async def test_a_password_that_is_wrong_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Without the password (B42)."""
    async with redis_server("--requirepass", "hunter2") as server:
        place = Elsewhere(server.url.replace("unix://", "unix://:hunter3@"))
        assert "invalid username-password pair" in await why_not_cached(place, RedisTls(), caplog)
    assert "hunter3" not in caplog.text


# TLS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def encrypted(authority: Authority, shows: Pair, *options: str) -> AsyncIterator[Elsewhere]:
    """Run a server that shows this certificate, and takes none from its clients but of the authority."""
    port = str(free_port())
    files = ("--tls-cert-file", str(shows.certificate), "--tls-key-file", str(shows.key))
    trusts = ("--tls-ca-cert-file", str(authority.file), "--tls-auth-clients", "no")
    async with redis_server("--tls-port", port, *files, *trusts, *options):
        yield Elsewhere(f"rediss://127.0.0.1:{port}")


async def test_an_authority_of_ones_own_is_trusted_where_it_is_named(authority: Authority) -> None:
    """In `redis_tls`, besides those of the system."""
    async with encrypted(authority, authority.issue("127.0.0.1")) as place:
        await assert_one_cache(place, RedisTls(ca_file=str(authority.file)))


async def test_the_default_deadline_is_long_enough_for_tls(authority: Authority) -> None:
    """What is needed to verify a certificate is read once, not by every connection."""
    async with (
        encrypted(authority, authority.issue("127.0.0.1")) as place,
        replica(place, tls=RedisTls(ca_file=str(authority.file)), timeout=0.05) as one,
    ):
        while await one.ask(LISTS, answer) != "hit hit":
            one.memory.clear()


async def test_the_systems_trust_counts(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_FILE is how containers are given one."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    async with encrypted(authority, authority.issue("127.0.0.1")) as place:
        await assert_one_cache(place)


async def test_a_client_certificate_is_shown(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """A server may ask for one; without it nothing is cached."""
    own = authority.issue("gateway")
    shown = RedisTls(ca_file=str(authority.file), client_cert=str(own.certificate), client_key=str(own.key))
    async with encrypted(authority, authority.issue("127.0.0.1"), "--tls-auth-clients", "yes") as place:
        await assert_one_cache(place, shown)
        assert await why_not_cached(place, RedisTls(ca_file=str(authority.file)), caplog)


async def test_a_certificate_of_somebody_else_is_refused(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why, once, and requests go on uncached."""
    stranger = Authority(tmp_path, "stranger")
    async with encrypted(stranger, stranger.issue("127.0.0.1")) as place:
        said = await why_not_cached(place, RedisTls(ca_file=str(authority.file)), caplog)
        assert "certificate verify failed" in said


async def test_a_certificate_for_another_name_is_refused_unless_names_do_not_count(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Sentinels and Clusters tell addresses, which not every certificate holds."""
    async with encrypted(authority, authority.issue("redis.example")) as place:
        said = await why_not_cached(place, RedisTls(ca_file=str(authority.file)), caplog)
        assert "certificate is not valid for '127.0.0.1'" in said
        await assert_one_cache(place, RedisTls(ca_file=str(authority.file), check_hostname=False))


async def test_any_certificate_is_taken_where_that_is_said(authority: Authority) -> None:
    """Which the configuration warns of."""
    async with encrypted(authority, authority.issue("redis.example")) as place:
        await assert_one_cache(place, RedisTls(insecure_skip_verify=True))


async def test_a_cluster_and_sentinels_speak_tls_too(authority: Authority) -> None:
    """Every node that is found, and every Sentinel."""
    shows, tls = authority.issue("127.0.0.1"), RedisTls(ca_file=str(authority.file))
    cluster = ("--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--tls-cluster", "yes")
    cluster += ("--cluster-port", str(free_port()))
    async with encrypted(authority, shows, *cluster) as place:
        port = int(place.url.rpartition(":")[2])
        client = Redis(host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=str(authority.file), protocol=2)
        await cover_all_slots(client)
        await client.aclose()
        await assert_one_cache(Elsewhere(place.url.replace("rediss:", "rediss+cluster:")), tls)
    async with encrypted(authority, shows) as place:
        port = int(place.url.rpartition(":")[2])
        files = ("--tls-cert-file", str(shows.certificate), "--tls-key-file", str(shows.key))
        trusts = ("--tls-ca-cert-file", str(authority.file), "--tls-auth-clients", "no")
        async with sentinel(port, *files, *trusts, "--tls-replication", "yes", tls=tls) as (_, guard):
            await assert_one_cache(Elsewhere(f"rediss+sentinel://127.0.0.1:{guard}/main"), tls)


# Clusters and Sentinels


async def cover_all_slots(client: Redis) -> None:
    await client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    while b"cluster_state:ok" not in await client.execute_command("CLUSTER", "INFO"):  # noqa: ASYNC110 - it takes its time
        await asyncio.sleep(0.05)


async def test_a_cluster_is_one_cache_after_its_busiest_shard_failed_over() -> None:
    """The spare takes over entries, counts and the bus; two other masters outvote the dead one."""
    upstream = Upstream()
    async with AsyncExitStack() as stack:
        ports, servers = [], []
        for _ in range(4):
            ports.append((free_port(), free_port()))
            options = ("--port", str(ports[-1][0]), "--cluster-port", str(ports[-1][1]), *SHARD)
            servers.append(await stack.enter_async_context(redis_server(*options)))
        busy, spare = servers[0], servers[3]
        for (port, bus), _ in zip(ports, servers, strict=True):
            await busy.ask("CLUSTER", "MEET", "127.0.0.1", port, bus)
        # Who has no slot has no vote.
        for server, slots in zip(servers[:3], ([2, 16383], [0, 0], [1, 1]), strict=True):
            await server.ask("CLUSTER", "ADDSLOTSRANGE", *slots)
        await until_all_say(servers, b"cluster_known_nodes:4", b"cluster_state:ok")
        await spare.ask("CLUSTER", "REPLICATE", await busy.ask("CLUSTER", "MYID"))
        await until_replicating(spare)
        place = Elsewhere("redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port, _ in ports[1:3]))
        one, two = [await stack.enter_async_context(replica(place)) for _ in range(2)]
        posts = [await stack.enter_async_context(Post(place.url)) for _ in range(2)]
        await converse(*posts)
        assert (await one.ask(LISTS, upstream), await two.ask(LISTS, upstream)) == ("miss absent", "hit hit")
        await busy.kill()
        for each in (one, two):
            await each.until(lambda each=each: not each.bus.hears)  # type: ignore[misc]
        upstream.version += 1
        await one.changed(Change(GH, "tools/list"))
        assert await version(one, upstream) == 2
        await assert_one_cache_again(upstream, one, two)
        await converse_again(*posts)


SHARD = (
    *("--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"),
    *(
        "--cluster-node-timeout",
        "500",
        "--cluster-replica-validity-factor",
        "0",
        *("--repl-diskless-sync-delay", "0"),
    ),
)


async def until_all_say(servers: Sequence[RedisServer], *words: bytes) -> None:
    for server in servers:
        while not _said(await server.ask("CLUSTER", "INFO"), words):  # noqa: ASYNC110 - they tell nobody
            await asyncio.sleep(0.05)


def _said(text: bytes, words: Sequence[bytes]) -> bool:
    return all(word in text for word in words)


async def until_replicating(spare: RedisServer) -> None:
    while (await spare.ask("INFO", "replication")).get("master_link_status") != "up":  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.05)


async def test_a_cluster_is_one_cache() -> None:
    """Entries and counts of an upstream share a slot; what is published at any node is heard at all."""
    port = free_port()
    options = ("--port", str(port), "--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1")
    # Its own default, the port plus 10000, does not exist for the upper ports.
    options += ("--cluster-port", str(free_port()))
    async with redis_server(*options):
        client = Redis(host="127.0.0.1", port=port, protocol=2)
        await cover_all_slots(client)
        more = ("+cluster|slots", "+cluster|shards", "+command")
        await client.execute_command("ACL", "SETUSER", "gateway", *documented_rights(), *more)
        place = Elsewhere(f"redis+cluster://gateway:hunter2@127.0.0.1:{port}")
        await assert_one_cache(place)
        await assert_one_conversation(place)
        await assert_one_count(place)
        assert await client.execute_command("ACL", "LOG") == []
        await client.aclose()


@asynccontextmanager
async def sentinel(
    server_port: int, *options: str, tls: RedisTls | None = None
) -> AsyncIterator[tuple[RedisServer, int]]:
    port = free_port()
    listens = ("--port", str(port)) if tls is None else ("--tls-port", str(port))
    async with redis_server(*listens, *options, "--sentinel", config=True) as guard:
        client = Redis(
            host="127.0.0.1", port=port, protocol=2, ssl=tls is not None, ssl_ca_certs=tls and tls.ca_file
        )
        await client.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", server_port, 1)
        await client.aclose()
        yield guard, port


async def test_a_server_that_sentinels_know_is_found() -> None:
    """The address names the Sentinel, which may ask for a password, and the name the server has there."""
    server_port = free_port()
    async with redis_server("--port", str(server_port)), sentinel(server_port) as (_, port):
        client = Redis(host="127.0.0.1", port=port, protocol=2)
        await client.execute_command("ACL", "SETUSER", "asks", "on", ">hunter2", "-@all", "+sentinel|masters")
        login = "sentinel_username=asks&sentinel_password=hunter2"
        place = Elsewhere(f"redis+sentinel://127.0.0.1:{port}/main?{login}")
        await assert_one_cache(place)
        await assert_one_conversation(place)
        assert await client.execute_command("ACL", "LOG") == []
        await client.aclose()


async def test_replicas_go_on_with_the_server_that_sentinels_promote() -> None:
    """Nobody tells them to; what the dead one had not passed on counts as changed."""
    upstream, port, spare_port = Upstream(), free_port(), free_port()
    async with (
        redis_server("--port", str(port), "--repl-diskless-sync-delay", "0") as server,
        redis_server("--port", str(spare_port), "--replicaof", "127.0.0.1", str(port)) as spare,
    ):
        await until_replicating(spare)
        async with sentinel(port) as (_, guard):
            client = Redis(host="127.0.0.1", port=guard, protocol=2)
            await client.execute_command("SENTINEL", "SET", "main", "down-after-milliseconds", 300)
            while not await client.execute_command("SENTINEL", "REPLICAS", "main"):  # noqa: ASYNC110 - it looks
                await asyncio.sleep(0.05)
            await client.aclose()
            place = Elsewhere(f"redis+sentinel://127.0.0.1:{guard}/main")
            async with (
                replica(place) as one,
                replica(place) as two,
                Post(place.url) as first,
                Post(place.url) as second,
            ):
                await converse(first, second)
                await version(one, upstream)
                assert await two.ask(LISTS, upstream) == "hit hit"
                await server.kill()
                for each in (one, two):
                    await each.until(lambda each=each: not each.bus.hears)  # type: ignore[misc]
                upstream.version += 1
                await one.changed(Change(GH, "tools/list"))
                assert await version(one, upstream) == 2
                await assert_one_cache_again(upstream, one, two)
                await converse_again(first, second)
