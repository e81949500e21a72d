"""Makes docs/compatibility.md of what came of the matrix: what works, and in words why the rest does not.

`python -m tests.matrix.page` runs the matrix and writes the page; `make compatibility` does just that. What
stands around the tables is page.md.
"""

import asyncio
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.matrix.clients import CLIENTS
from tests.matrix.expected import CELLS, EXPECTED, NONE
from tests.matrix.operations import OPERATIONS
from tests.matrix.run import UPSTREAMS, Cell, matrix_gateway, outcomes
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "compatibility.md"
_TEMPLATE = Path(__file__).with_name("page.md")

_CLIENTS = {
    "2026-07-28": "2026-07-28",
    "unable": "2026-07-28 that cannot be asked",
    "2025-11-25": "2025-11-25",
    "2025-06-18": "2025-06-18",
    "2025-03-26": "2025-03-26",
    "batches": "2025-03-26 in batches",
}
_SERVERS = {
    "modern": "2026-07-28 over HTTP",
    "sessions": "2025-11-25 over HTTP with sessions",
    "sse": "2025-11-25 over HTTP+SSE",
    "program": "2026-07-28 over stdio",
    "apart": "2025-11-25 over stdio with `isolation: caller`",
    "shared": "2025-11-25 over stdio, one process for everybody (the default)",
}
_OPERATIONS = {
    "lists": "tools, prompts, resources and templates, page by page",
    "call with progress": "a call with progress",
    "cancel": "taking a call back",
    "log level": "log messages from a level on",
    "read": "reading a resource",
    "read what is not there": "reading what is not there",
    "lists changed": "being told that the tools changed",
    "resource updated": "being told that a resource changed",
    "prompt": "getting a prompt",
    "complete": "completing an argument",
    "rich result": "titles, icons, output schemas, structured results, links",
    "data that is no object": "a structured result that is no object",
    "form": "a form for the user (elicitation)",
    "page": "a page for the user to visit (url elicitation)",
    "page before the call": "a page that has to be visited first (error -32042)",
    "sampling": "a text of the client's model (sampling)",
    "sampling with tools": "sampling with tools",
    "roots": "the client's roots",
}
_MARKS = {
    "+": "yes",
    ".": "–",
    "-32602": "error -32602",
    "-32002": "error -32002",
    "as-text": "as text (3)",
    "no-icons": "without icons (3)",
    "untold": "no (4)",
    "told:-32601": "no (2)",
    "told:-32602": "no (2)",
}


def page(found: Mapping[Cell, str]) -> str:
    """Return the text of the page."""
    everywhere = [one for one in OPERATIONS if _words(found, one) == {"+"}]
    by_client = [one for one in OPERATIONS if one not in everywhere and _of_clients_alone(found, one)]
    rest = [one for one in OPERATIONS if one not in (*everywhere, *by_client)]
    by_server = []
    for servers in _alike(found, rest):
        title = _joined([_SERVERS[one] for one in servers])
        by_server.append("\n".join([f"### Servers of {title}", "", *_table(found, rest, servers[0]), ""]))
    errors = {word.partition(":")[0] for word in found.values() if re.match(r"-\d+:", word)}
    told = {word.partition(":")[2] for word in found.values() if word.startswith("told:")}
    return _TEMPLATE.read_text().format(
        cells=len(found),
        clients=_joined([f"**{_CLIENTS[one]}**" for one in CLIENTS]),
        servers="\n".join(f"- {_SERVERS[one]}" for one in UPSTREAMS),
        everywhere="\n".join(f"- {_OPERATIONS[one]}" for one in everywhere),
        by_client="\n".join(_table(found, by_client, UPSTREAMS[0])),
        by_server="\n".join(by_server),
        errors=" or ".join(sorted(errors)),
        told=" or ".join(sorted(told)),
    )


def _words(found: Mapping[Cell, str], operation: str) -> set[str]:
    return {word for cell, word in found.items() if cell[0] == operation}


def _of_clients_alone(found: Mapping[Cell, str], operation: str) -> bool:
    """Whether each client fares alike with all servers."""
    rows = [[found.get((operation, client, one), NONE) for one in UPSTREAMS] for client in CLIENTS]
    return all(len(set(row)) == 1 for row in rows)


def _alike(found: Mapping[Cell, str], operations: Sequence[str]) -> Iterator[list[str]]:
    """Yield the servers that are alike in all of these together."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for upstream in UPSTREAMS:
        words = (found.get((one, client, upstream), NONE) for one in operations for client in CLIENTS)
        groups.setdefault(tuple(words), []).append(upstream)
    yield from groups.values()


def _table(found: Mapping[Cell, str], operations: Sequence[str], upstream: str) -> Iterator[str]:
    yield f"| | {' | '.join(_CLIENTS[client] for client in CLIENTS)} |"
    yield "|---" * (len(CLIENTS) + 1) + "|"
    for operation in operations:
        cells = [_mark(found.get((operation, client, upstream), NONE)) for client in CLIENTS]
        yield f"| {_OPERATIONS[operation]} | {' | '.join(cells)} |"


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _mark(word: str) -> str:
    if word in _MARKS:
        return _MARKS[word]
    code, _, named = word.partition(":")
    return f"{code}: `{named}` (1)"


def main() -> int:
    with matrix_gateway() as running:
        found = asyncio.run(outcomes(running.endpoint, CELLS))
    wrong = {cell: word for cell, word in found.items() if word != EXPECTED[cell]}
    for cell, word in wrong.items():
        sys.stderr.write(f"{' - '.join(cell)}: {word}, not {EXPECTED[cell]}\n")
    if not wrong:
        PAGE.write_text(page(found))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
