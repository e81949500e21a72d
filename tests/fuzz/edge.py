"""What clients show at the door, and what the log makes of texts; each function is one target."""

from multidict import CIMultiDict

from gateway import config
from gateway.front.auth import identify
from gateway.front.challenges import Denied
from gateway.front.gate import Gate
from gateway.protocol.call import Principal
from gateway.support import logs
from gateway.support.seal import Seal, SealBroken

SEAL = Seal(["a-key-that-is-the-same-in-every-run"], now=lambda: 1.0)
SEALED = "AabTKNTpZtDh8dE2I7VcfDZ05uI1p69FidManHhEFx1Zdr5KrKE4CnfQhhKZJOb2JU514LSKDxUK"
"""`data`, sealed with that key as a cursor for ann."""
_MALFORMED = (
    "there is more than one Authorization header",
    "the Authorization header holds a character that has no place there",
)
CANARY = "canary-5f1d0c9a7b3e"

_SETTINGS = config.Config(
    upstreams={"alpha": "http://127.0.0.1:1/mcp"},
    hosts=["mcp.example", "*.example.org:8443"],
    origins=["https://app.example"],
    cors={"origins": ["https://app.example"]},
    trusted_proxies=["10.0.0.0/8", "::1"],
)
_GATE = Gate(_SETTINGS, [("127.0.0.1", 8080)])


def door(data: bytes) -> None:
    """Any Host, Origin and forwarding headers let in or are refused, and what goes back is whole lines."""
    lines = data.decode("latin-1").split("\n")[:32]
    pairs = [(name, value.strip(" \t")) for name, _, value in (line.partition(":") for line in lines)]
    headers = CIMultiDict(pair for pair in pairs if not set("\r\0") & set("".join(pair)))
    for peer in (None, "10.1.2.3", "203.0.113.9", "::ffff:10.0.0.1", lines[0]):
        _GATE.refuse(headers, peer)
    for value in _GATE.preflight(headers).values():
        assert value.isascii()
        assert value.isprintable()
    told = _GATE.cors_lines(headers.get("Origin")).decode("ascii")
    assert told.endswith("\r\n")
    for line in told.split("\r\n")[:-1]:
        assert line.split(": ")[0] in (
            "Access-Control-Allow-Origin",
            "Access-Control-Expose-Headers",
            "Vary",
        )


def credential(data: bytes) -> None:
    """An Authorization names a partition or is refused, and no answer repeats it."""
    lines = [line.decode("latin-1") for line in data.split(b"\n")[:4]]
    found = identify(CIMultiDict(("Authorization", line) for line in lines), SEAL)
    if isinstance(found, Denied):
        assert found.status == 400
        assert found.message in _MALFORMED
    else:
        assert isinstance(found, Principal)
        assert found.partition is None or len(found.partition) == 64


def sealed_token(data: bytes) -> None:
    """Nothing opens but what was sealed, for its use and its holder."""
    token = data.decode("latin-1")
    for purpose, holder in (("cursor", b"ann"), ("cursor", b"bob"), ("task", b"ann")):
        try:
            opened = SEAL.open(purpose, token, bound_to=holder)
        except SealBroken:
            continue
        assert (purpose, holder, token, opened) == ("cursor", b"ann", SEALED, b"data")


def redaction(data: bytes) -> None:
    """A secret that is known stands in no line, whatever is around it, nor one in a header or a URL."""
    text = data.decode(errors="replace")
    middle = len(text) // 2
    around = text[:middle], text[middle:]
    assert CANARY not in logs.redact(CANARY.join(around), [CANARY])
    assert CANARY not in logs.redact(f"{around[0]} Authorization: Bearer {CANARY} {around[1]}")
    assert CANARY not in logs.redact(f"{around[0]} https://u:{CANARY}@h.example/ {around[1]}")
