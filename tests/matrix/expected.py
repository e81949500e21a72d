"""What is to come of each operation, client by client (rows) and server by server (columns).

The words are those of `operations`; `.` stands where a server cannot do it at all, a row `*` for all clients
that have none of their own. The rules behind it:

- lists, calls and all that asks nobody cross everywhere, in the words of the client's revision (X-01, X-02)
- what is not there is -32602 to modern clients and -32002 to older ones
- a modern server's question to a client that cannot answer it is -32021 to modern clients (M-05), and
  -32603 with the capability's name to older ones, who have no code for it (A-50, M-18)
- a server of an older revision is told -32601, or -32602 for a mode, when it asks what its client did not
  offer, and when nobody knows whom it asks (M-22); the rest is its own affair
- where that is known only from the question, the client is told as with a modern server
- the error -32042 becomes a question to whoever opens pages (M-21)
- what a program's process for one caller says of a resource is not heard: the gateway subscribes in its own
"""

from collections.abc import Iterator

from tests.matrix.clients import CLIENTS
from tests.matrix.operations import OPERATIONS
from tests.matrix.run import UPSTREAMS, Cell

NONE = "."

_TABLE = """
                modern              sessions            sse                 program             apart               shared
lists
  *             +                   +                   +                   +                   +                   +
call with progress
  *             +                   +                   +                   +                   +                   +
cancel
  *             +                   +                   +                   +                   +                   +
log level
  *             +                   +                   +                   +                   +                   +
read
  *             +                   +                   +                   +                   +                   +
read what is not there
  2026-07-28    -32602              -32602              -32602              -32602              -32602              -32602
  unable        -32602              -32602              -32602              -32602              -32602              -32602
  *             -32002              -32002              -32002              -32002              -32002              -32002
lists changed
  *             +                   +                   +                   +                   +                   +
resource updated
  *             +                   +                   +                   +                   untold              +
prompt
  *             +                   +                   +                   +                   +                   +
complete
  *             +                   +                   +                   +                   +                   +
rich result
  2025-06-18    no-icons            no-icons            no-icons            no-icons            no-icons            no-icons
  2025-03-26    as-text             as-text             as-text             as-text             as-text             as-text
  batches       as-text             as-text             as-text             as-text             as-text             as-text
  *             +                   +                   +                   +                   +                   +
data that is no object
  2026-07-28    +                   .                   .                   +                   .                   .
  unable        +                   .                   .                   +                   .                   .
  *             as-text             .                   .                   as-text             .                   .
form
  2026-07-28    +                   +                   +                   +                   +                   told:-32601
  unable        -32021:elicitation.form told:-32601     told:-32601         -32021:elicitation.form told:-32601     told:-32601
  2025-11-25    +                   +                   +                   +                   +                   told:-32601
  2025-06-18    +                   +                   +                   +                   +                   told:-32601
  *             -32603:elicitation.form told:-32601     told:-32601         -32603:elicitation.form told:-32601     told:-32601
page
  2026-07-28    +                   +                   +                   +                   +                   told:-32601
  unable        -32021:elicitation.url  told:-32601     told:-32601         -32021:elicitation.url  told:-32601     told:-32601
  2025-11-25    +                   +                   +                   +                   +                   told:-32601
  2025-06-18    -32603:elicitation.url  told:-32602     told:-32602         -32603:elicitation.url  told:-32602     told:-32601
  *             -32603:elicitation.url  told:-32601     told:-32601         -32603:elicitation.url  told:-32601     told:-32601
page before the call
  2026-07-28    .                   +                   +                   .                   +                   +
  unable        . -32021:elicitation.url -32021:elicitation.url . -32021:elicitation.url -32021:elicitation.url
  2025-11-25    .                   +                   +                   .                   +                   +
  *             . -32603:elicitation.url -32603:elicitation.url . -32603:elicitation.url -32603:elicitation.url
sampling
  unable        -32021:sampling     told:-32601         told:-32601         -32021:sampling     told:-32601         told:-32601
  *             +                   +                   +                   +                   +                   told:-32601
sampling with tools
  2026-07-28    +                   +                   +                   +                   +                   told:-32601
  unable        -32021:sampling.tools   told:-32601     told:-32601         -32021:sampling.tools   told:-32601     told:-32601
  2025-11-25    +                   +                   +                   +                   +                   told:-32601
  * -32603:sampling.tools -32603:sampling.tools -32603:sampling.tools -32603:sampling.tools -32603:sampling.tools told:-32601
roots
  unable        -32021:roots        told:-32601         told:-32601         -32021:roots        told:-32601         told:-32601
  *             +                   +                   +                   +                   +                   told:-32601
"""  # noqa: E501


def _read(table: str) -> Iterator[tuple[Cell, str]]:
    head, *lines = table.strip("\n").splitlines()
    columns = head.split()
    assert columns == list(UPSTREAMS)
    rows: dict[str, dict[str, list[str]]] = {}
    operation = ""
    for line in lines:
        if line.startswith(" "):
            client, *words = line.split()
            assert len(words) == len(columns), line
            rows[operation][client] = words
        else:
            operation = line
            rows[operation] = {}
    assert rows.keys() == OPERATIONS.keys()
    for operation, clients in rows.items():
        assert clients.keys() <= {*CLIENTS, "*"}
        for client in CLIENTS:
            words = clients[client] if client in clients else clients["*"]
            for upstream, word in zip(columns, words, strict=True):
                yield (operation, client, upstream), word


EXPECTED = dict(_read(_TABLE))
CELLS = [cell for cell, word in EXPECTED.items() if word != NONE]
