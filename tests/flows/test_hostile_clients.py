"""What no peer could use is refused in the protocol's words; what nobody reads is left as it is."""

import pytest

from tests.support.running import message, running
from tests.support.scripted import ScriptedUpstream

HUGE = [b"1e400", b"9" * 5000]


def listen(notifications):
    return message("subscriptions/listen", {"notifications": "HERE"}).replace(b'"HERE"', notifications)


@pytest.mark.parametrize("number", HUGE)
async def test_a_number_that_nobody_reads_costs_no_listen(number):
    """An unknown member of the filter is none of our business, whatever it holds (K-02)."""
    body = listen(b'{"x":' + number + b',"toolsListChanged":true,"resourceSubscriptions":["a:b"]}')
    async with (
        ScriptedUpstream() as alpha,
        running({"alpha": alpha}) as gateway,
        gateway.open("subscriptions/listen", body=body, judged=False) as exchange,
    ):
        assert (await exchange.event())["method"] == "notifications/subscriptions/acknowledged"


@pytest.mark.parametrize(
    "filter",
    [
        b"1e400",
        b"[]",
        b"null",
        b'{"toolsListChanged":1e400}',
        b'{"promptsListChanged":"true"}',
        b'{"resourcesListChanged":' + b"9" * 5000 + b"}",
        b'{"resourceSubscriptions":[1e400]}',
        b'{"resourceSubscriptions":["a:b",null]}',
        b'{"taskIds":' + b"9" * 5000 + b"}",
        b'{"taskIds":{}}',
    ],
)
async def test_a_filter_that_says_nothing_is_invalid_params(filter):
    """Also where the value is a number that no double holds (L-01)."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}) as gateway:
        refused = await gateway.ask("subscriptions/listen", body=listen(filter))
        assert refused.code == -32602
        assert "notifications" in refused.error["message"]


async def test_task_ids_need_the_tasks_extension():
    """A listen that asks for none needs nothing (L-23)."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}) as gateway:
        assert (await gateway.ask("subscriptions/listen", body=listen(b'{"taskIds":["t"]}'))).code == -32021
        for nothing in (b'{"taskIds":[]}', b'{"taskIds":null}'):
            async with gateway.open("subscriptions/listen", body=listen(nothing), judged=False) as exchange:
                assert (await exchange.event())["method"] == "notifications/subscriptions/acknowledged"
