"""The checker that judges every message in the other tests must itself refuse what a peer would refuse."""

import pytest

from tests.support.wire import check_message, check_result

WE = '"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"x","version":"1"}}'
HINTS = '"ttlMs":0,"cacheScope":"private"'


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("tools/call", '"content":[],"structuredContent":null'),
        ("tools/call", '"content":[],"structuredContent":{"a":1,"a":2}'),
        ("tools/list", f'"tools":[],{HINTS}'),
        ("server/discover", f'"supportedVersions":[],"capabilities":{{}},{HINTS}'),
        ("prompts/get", '"messages":[],"future":null'),
    ],
)
def test_good_results_pass(method: str, result: str) -> None:
    """Unknown members and data are nobody's business."""
    check_result(method, f'{{"resultType":"complete",{result},{WE}}}'.encode())


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("tools/call", f'"content":[],{WE}'),
        ("tools/call", f'"resultType":null,"content":[],{WE}'),
        ("tools/call", '"resultType":"complete","content":[]'),
        ("tools/call", '"resultType":"complete","content":[],"_meta":null'),
        ("tools/call", f'"resultType":"complete",{WE}'),
        ("tools/call", f'"resultType":"complete","content":null,{WE}'),
        ("tools/call", f'"resultType":"complete","content":[],"isError":null,{WE}'),
        ("tools/call", f'"resultType":"complete","content":[],{HINTS},{WE}'),
        ("tools/call", f'"resultType":"complete","content":[],"content":[],{WE}'),
        ("tools/call", f'"resultType":"complete","content":[{{"type":"text","text":"","_meta":null}}],{WE}'),
        ("tools/list", f'"resultType":"complete","tools":[],"nextCursor":null,{HINTS},{WE}'),
        ("tools/list", f'"resultType":"complete","tools":[],"ttlMs":0,{WE}'),
        ("tools/list", f'"resultType":"complete","tools":[],"ttlMs":-1,"cacheScope":"private",{WE}'),
        ("tools/list", f'"resultType":"complete","tools":[],"ttlMs":5.0,"cacheScope":"private",{WE}'),
        ("tools/list", f'"resultType":"complete","tools":[],"ttlMs":5,"cacheScope":"all",{WE}'),
        (
            "tools/call",
            '"resultType":"complete","content":[],"_meta":{"io.modelcontextprotocol/serverInfo":'
            '{"name":"x","version":"1"},"progressToken":1}',
        ),
        (
            "resources/read",
            f'"resultType":"complete","contents":[{{"uri":"no uri","text":""}}],{HINTS},{WE}',
        ),
    ],
)
def test_results_that_break_a_client_fail(method: str, result: str) -> None:
    """Every one of these is refused by the python or the JS client, or by the conformance suite."""
    with pytest.raises(AssertionError):
        check_result(method, f"{{{result}}}".encode())


@pytest.mark.parametrize(
    "message",
    [
        '{"jsonrpc":"2.0","id":0,"error":{"code":-32603,"message":""}}',
        '{"jsonrpc":"2.0","error":{"code":-32700,"message":"","data":null}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"","data":{"supported":[],"requested":"x"}}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":7,"message":"","data":[]}}',
        '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":"a"}}',
        '{"jsonrpc":"2.0","method":"com.example/x"}',
    ],
)
def test_good_errors_and_notifications_pass(message: str) -> None:
    """An unreadable id is left out."""
    check_message(None, message.encode())


@pytest.mark.parametrize(
    "message",
    [
        "[]",
        '{"jsonrpc":"1.0","id":1,"error":{"code":1,"message":""}}',
        '{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}',
        '{"jsonrpc":"2.0","id":1.5,"error":{"code":1,"message":""}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":1.0,"message":""}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":null}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":""}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":""}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":-32050,"message":""}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":""}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":-32021,"message":"","data":{"requiredCapabilities":["a"]}}}',
        '{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}',
        '{"jsonrpc":"2.0","id":1,"method":"roots/list"}',
        '{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{}}',
        '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
        '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}',
        '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"progressToken":1,"total":null}}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"","data":NaN}}',
    ],
)
def test_errors_and_notifications_that_break_a_client_fail(message: str) -> None:
    """Envelope, codes and shapes a modern client cannot take."""
    with pytest.raises(AssertionError):
        check_message("tools/call", message.encode())
