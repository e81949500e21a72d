"""A cold storm: many clients ask at one moment for a public list that was just purged.

What it costs the upstream is counted there. The list takes its upstream 100 ms, so that every client has
asked before it comes; how long the last of them waits is told as a multiple of what one client alone waits.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.processes import Server, fetch, run_load

UPSTREAM = "/slow/100/mcp"
PATH = "/slow"

_METHOD = "tools/list"
_NAME = "slow"


@dataclass(frozen=True)
class Storm:
    """What the storms of all rounds came to: upstream calls of each, milliseconds as medians."""

    what: str
    gateways: int
    clients: int
    calls: list[int]
    alone_ms: float
    """What one client waited, cold, that came alone."""
    last_ms: float
    warm_ms: float
    """What the last client waited when the storm came once more, to what the first had left."""
    ratio: float
    ratios: list[float] = field(repr=False)

    @property
    def too_many(self) -> bool:
        """Whether a gateway asked more than once."""
        return max(self.calls) > self.gateways


def measure(
    upstream: str, fronts: Sequence[Sequence[Server]], *, rounds: int, clients: int
) -> Iterator[Storm]:
    """Let storms come over one gateway, or several with one Redis, and with them a client alone, in turns."""
    kinds = [(gateways, credentials) for gateways in fronts for credentials in (False, True)]
    for gateways, credentials in kinds:
        calls, alone, last, warm = [], [], [], []
        for _ in range(rounds):
            gateways[0].purge(_NAME)
            alone.append(_storm(gateways[:1], 1, credentials))
            gateways[0].purge(_NAME)
            before = _asked(upstream)
            last.append(_storm(gateways, clients, credentials))
            calls.append(_asked(upstream) - before)
            warm.append(_storm(gateways, clients, credentials))
        ratios = [each / one for each, one in zip(last, alone, strict=True)]
        over = "1 gateway" if len(gateways) == 1 else f"{len(gateways)} gateways, one Redis"
        what = f"over {over}, {'a credential each' if credentials else 'no credentials'}"
        yield Storm(
            what,
            len(gateways),
            clients,
            calls,
            median(alone),
            median(last),
            median(warm),
            median(ratios),
            ratios,
        )


def report(storms: Sequence[Storm]) -> None:
    """Print them as a table."""
    clients = storms[0].clients
    columns = f"{'calls':>7}{'most':>6}{'alone ms':>10}{'last ms':>9}{'warm ms':>9}{'ratio':>7}"
    print(f"{f'cold storm of {clients} clients':<66}{columns}")
    for one in storms:
        print(
            f"{one.what:<66}{median(one.calls):>7.0f}{max(one.calls):>6}{one.alone_ms:>10.0f}"
            f"{one.last_ms:>9.0f}{one.warm_ms:>9.0f}{one.ratio:>7.2f}{'  TOO MANY' if one.too_many else ''}"
        )


def _storm(gateways: Sequence[Server], clients: int, credentials: bool) -> float:
    """Return the milliseconds until the last client had its answer."""
    job = {
        "urls": [one.url for one in gateways],
        "requests": [_request(number if credentials else None) for number in range(clients)],
        "connections": clients,
        "seconds": 0,
    }
    return float(run_load(job)["took_ms"])


def _request(client: int | None) -> Mapping[str, object]:
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": _METHOD,
    }
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": _METHOD, "params": {"_meta": meta}}
    own = {} if client is None else {"authorization": f"Bearer client-{client}"}
    return {"path": PATH, "headers": headers | own, "body": json.dumps(message, separators=(",", ":"))}


def _asked(upstream: str) -> int:
    """Return how often the upstream was asked for its list."""
    return int(json.loads(fetch(f"{upstream}/")).get(f"{UPSTREAM} {_METHOD}", 0))
