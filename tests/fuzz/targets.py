"""Every target of the fuzz tests, with inputs to begin with and words to put in."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import contents, edge, settings, tokens, trust, wire

_REQUEST = (
    b"content-type: application/json\naccept: application/json, text/event-stream\n"
    b"mcp-protocol-version: 2026-07-28\nmcp-method: tools/call\nmcp-name: alpha__search\n\n"
    b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"alpha__search",'
    b'"arguments":{"q":1.0},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientCapabilities":{},"progressToken":7}}}'
)
_JSON_WORDS = (
    '"jsonrpc":"2.0"',
    '"id":1',
    '"method":"',
    '"params":{',
    '"result":{',
    '"error":{"code":-32602,"message":"',
    '"_meta":{',
    '"io.modelcontextprotocol/protocolVersion":"2026-07-28"',
    '"io.modelcontextprotocol/clientCapabilities":{}',
    '"progressToken":',
    '"x-mcp-header":"',
    '"type":"string"',
    '"properties":{',
    '"inputSchema":{',
    '"nextCursor":"',
    '"ttlMs":',
    '"cacheScope":"public"',
    '"content":[{"type":"text","text":"',
    '"uri":"',
    "\\ud800",
    "\\u0000",
    "1e999",
    "[[[[[[[[",
    "null",
    "tools/call",
    "tools/list",
    "resources/read",
    "subscriptions/listen",
    "initialize",
    "notifications/progress",
    "2025-03-26",
    "=?base64?",
)
_CLAIM_WORDS = (
    '"iss":"https://corp.example"',
    '"aud":["',
    '"exp":1e999',
    '"nbf":',
    '"iat":-1',
    '"sub":""',
    '"scp":["a"]',
    '"cnf":{}',
    "https://gateway.example",
    "NaN",
    "true",
)
_KEY_WORDS = (
    '"kty":"RSA","n":"',
    '"e":"AQAB"',
    '"kty":"EC","crv":"P-256","x":"',
    '"y":"',
    '"kty":"oct","k":"AA"',
    '"alg":"RS256"',
    '"use":"enc"',
    '"key_ops":["verify"]',
    '"d":"',
    "Ed448",
    "P-521",
)
_YAML_WORDS = (
    "upstreams:",
    "endpoints:",
    "listen: ",
    "auth: {",
    "bearer: ",
    "${TOKEN}",
    "${TOKEN:-x}",
    "$$",
    "{file: x}",
    "&a",
    "*a",
    "<<: ",
    "!!python/object",
    "--- ",
    "|",
    "cache: {",
    "tools: {",
    "url: http://",
    "command: ",
    "mcpServers",
    "servers",
    "inputs",
    "envFile",
)


@dataclass(frozen=True)
class Target:
    """One thing to be fed, what to begin with, and how long an input may grow."""

    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    words: tuple[str, ...] = _JSON_WORDS
    longest: int = 2048

    @property
    def name(self) -> str:
        return self.check.__name__


def _message(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


def _tool(**members: object) -> dict[str, object]:
    return {"name": "search", "inputSchema": {"type": "object"}, **members}


_ANNOTATED = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "Region"}}}
_SERVERS = {
    "mcpServers": {
        "a": {"command": "npx", "args": ["-y", "x", "--token=abc"], "env": {"K": "${TOKEN}"}},
        "b": {"url": "https://b.example/mcp?key=abc", "headers": {"Authorization": "Bearer abcdef"}},
    }
}
_CONFIG = b"""\
listen: 127.0.0.1:0
upstreams:
  a: http://127.0.0.1:1/mcp
  b: {url: 'https://b.example/', auth: {bearer: '${TOKEN}'}}
"""

TARGETS = {
    target.name: target
    for target in (
        Target(wire.modern_request, (_REQUEST,)),
        Target(
            wire.accept_line, (b"application/json, text/event-stream;q=0.5\n*/*;q=0",), words=("q=0", "*/*")
        ),
        Target(
            wire.legacy_request,
            (
                b"\0" + _message(id=1, method="initialize", params={"protocolVersion": "2025-06-18"}),
                b"\3[" + _message(id=1, method="ping") + b"," + _message(id=2, result={}) + b"]",
                b"\1" + _message(id=2, method="tools/call", params={"name": "a", "arguments": {}}),
            ),
        ),
        Target(wire.listen_filter, (b'{"notifications":{"toolsListChanged":true,"taskIds":["a"]}}',)),
        Target(
            wire.event_stream,
            (b"abcdefgh\xef\xbb\xbf: hi\r\nid: 7\r\ndata: {}\r\ndata\r\n\r\nevent: x\rdata: a\n\nretry: 5",),
            words=("data: ", "event: ", "id: ", "retry: ", "\r\n", "\n\n"),
        ),
        Target(wire.event_written, (b'{"a":\n1,\r"b":2}',)),
        Target(
            wire.program_lines, (b'abcdefgh{"id":1}\r\n\n' + b'{"id":2,"result":"' + b"x" * 400 + b'"}\n',)
        ),
        Target(
            wire.legacy_server_message,
            (
                b"\0"
                + _message(id=1, result={"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}),
                b"\0" + _message(id=1, method="elicitation/create", params={"mode": "form", "message": "m"}),
                b"\1["
                + _message(id=1, result={"tools": [_tool(execution={"taskSupport": "required"})]})
                + b"]",
                b"\2"
                + _message(id=1, error={"code": -32042, "message": "m", "data": {"elicitations": [{}]}}),
            ),
        ),
        Target(
            wire.envelope,
            (_message(id=1, method="x", params={"a": [1.0, {"b": "\ud83d"}]}), b'{"a":1,"a":2}'),
        ),
        Target(
            wire.mirrored_arguments,
            (json.dumps(_ANNOTATED).encode() + b'\n\n{"r":" pad "}\n\nregion: eu',),
        ),
        Target(wire.header_value, (b"plain", b"=?base64?w7w=?=", "ü\r\nX: y".encode())),
        Target(
            contents.list_page,
            (
                b"\0" + json.dumps({"tools": [_tool(), _tool(name="ü", inputSchema=_ANNOTATED)]}).encode(),
                b"\2" + json.dumps({"resources": [{"uri": "a:1", "name": "r"}], "nextCursor": "c"}).encode(),
            ),
        ),
        Target(
            contents.result,
            (
                b'\0{"content":[{"type":"resource_link","uri":"a:1","name":"r"}],"ttlMs":5,"cacheScope":"public"}',
                b'\2{"contents":[{"uri":"a:1","text":null}]}',
                b'\3{"completion":{"values":["a"],"total":null}}',
                b'\4{"capabilities":{"tools":{"listChanged":true}},"_meta":{}}',
            ),
        ),
        Target(
            contents.upstream_message,
            (
                _message(method="notifications/progress", params={"progressToken": 1, "progress": 0.5}),
                _message(method="notifications/subscriptions/acknowledged", params={"notifications": {}}),
                _message(id=1, error={"code": -32021, "message": "m", "data": {"requiredCapabilities": {}}}),
                _message(id=1, result={}),
            ),
        ),
        Target(
            contents.discovered, (b'{"capabilities":{"tools":{}},"instructions":"a"}\0{"capabilities":{}}',)
        ),
        Target(
            contents.redis_value,
            (b"\x97\xcb\x40\x00\x00\x00\x00\x00\x00\x00\xa6public\x90\x90\x02\xc2\xc4\x02{}",),
        ),
        Target(contents.cursor, (b'["tools/list",5,"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","/mcp"]',)),
        Target(
            settings.config_file,
            (_CONFIG, Path("config/gateway.example.yaml").read_bytes(), json.dumps(_SERVERS).encode()),
            words=_YAML_WORDS,
            longest=4096,
        ),
        Target(settings.servers_file, (json.dumps(_SERVERS).encode(),), words=_YAML_WORDS),
        Target(
            settings.addresses,
            (b"127.0.0.1:80", b"rediss+sentinel://u:p@a:1,b:2/name/0?x=1", b"https://u:p@h.example:1/p?q#f"),
            words=("redis://", "://", "@", "[::1]", "?", "#"),
        ),
        Target(
            edge.door,
            (b"Host: mcp.example\nOrigin: https://app.example\nX-Forwarded-Host: a, b",),
            words=("Host: ", "Origin: ", "null", "Access-Control-Request-Headers: mcp-param-a", "localhost"),
        ),
        Target(edge.credential, (b"Bearer abc", b"Basic dTpw\nBearer x"), words=("Bearer ", "DPoP ")),
        Target(tokens.signed_token, (tokens.TOKEN.encode(),), words=(".", "eyJ", "==")),
        Target(tokens.token_claims, (json.dumps(tokens.CLAIMS).encode(),), words=_CLAIM_WORDS),
        Target(tokens.published_keys, (tokens.JWKS,), words=_KEY_WORDS),
        Target(edge.sealed_token, (edge.SEALED.encode(),), words=()),
        Target(
            edge.redaction,
            (b"GET https://u:p@h/?q=1 Authorization: Basic x",),
            words=("authorization", "token=", "password: ", "://", "@", "Bearer "),
        ),
        Target(
            trust.client_certificate,
            (
                b'By=x;Hash=1;Subject="CN=agent,O=a";URI=spiffe://a/b,By=y;DNS=c',
                b":" + base64.b64encode(trust.CERTIFICATE) + b":",
                b"-----BEGIN%20CERTIFICATE-----" + base64.b64encode(trust.CERTIFICATE),
                trust.CERTIFICATE,
            ),
            words=(";URI=", ",By=", 'Subject="', '\\"', "%0A", "CN="),
        ),
        Target(
            trust.forwarding,
            (
                b"X-Forwarded-For: 203.0.113.9, 10.1.1.1\nX-Forwarded-Host: a, b\nX-Forwarded-Prefix: /x",
                b'Forwarded: for="[2001:db8::1]:80";proto=https;host="a,b", for=10.0.0.2',
            ),
            words=("Forwarded: ", "for=", '"', "\\", ",", ";", "[::ffff:10.0.0.1]", "unknown", "_x"),
        ),
        Target(
            trust.challenge,
            (
                b'Basic realm="x", Bearer error="insufficient_scope", scope="a b", resource_metadata="http://h/"',
                b"Negotiate abc==\nBearer error=invalid_token",
            ),
            words=("Bearer ", 'error="', 'scope="', "\\", '"', "=", ","),
        ),
        Target(
            trust.token_answer,
            (
                b'{"access_token":"abc","token_type":"Bearer","expires_in":3600}',
                b'{"error":"invalid_grant","error_description":"x"}',
                tokens.TOKEN.encode(),
            ),
            words=('"access_token":"', '"expires_in":', '"issued_token_type":"', "1e999", '"iss":"'),
        ),
        Target(
            trust.discovered_metadata,
            (
                b'{"resource":"https://mcp.example","authorization_servers":["https://login.example"]}',
                b'{"issuer":"https://login.example","token_endpoint":"https://login.example/token"}',
                b"https://User@mcp.example:443/a/?q#f",
            ),
            words=("https://", "[::1]", "%2e", "..", "@", '"scopes_supported":["', "\\u0000"),
        ),
        Target(
            trust.address,
            (b"169.254.169.254", b"::ffff:10.0.0.1", b"64:ff9b::7f00:1", b"8.8.8.8"),
            words=("::", "ffff:", "127.0.0.1", "%eth0"),
            longest=64,
        ),
        Target(
            trust.access_rule,
            (
                b'file:///private/%2e%2e/x\0{"readOnlyHint":true}',
                b"delete_all\0{}",
                b"FILE://host/a/../private/",
            ),
            words=("%2e", "%25", "..", "/", "file:///private/", "\\", '"destructiveHint":false'),
        ),
    )
}
