"""The official SDK's client answers what a server of the official SDK asks, through two gateway processes."""

from collections.abc import Iterator
from typing import Any

import mcp_types as t
import pytest
from mcp import Client, MCPError
from mcp.client import ClientRequestContext

from tests.support.processes import RunningGateway, gateway, reference_server

VERSION = "2026-07-28"
KEYS = "secrets: {keys: [a-key-of-both-replicas]}"


@pytest.fixture(scope="module")
def replicas() -> Iterator[tuple[RunningGateway, RunningGateway]]:
    """Run two gateways with the same key in front of one server that has every kind of question."""
    with (
        reference_server() as url,
        gateway(f"{{all: '{url}'}}", KEYS) as one,
        gateway(f"{{all: '{url}'}}", KEYS) as other,
    ):
        yield one, other


class User:
    """Answers every question, and remembers what it was shown."""

    def __init__(self, action: str = "accept") -> None:
        self.action = action
        self.shown: list[str] = []

    async def elicitation(self, context: ClientRequestContext, params: Any) -> t.ElicitResult:
        self.shown.append(params.message)
        if self.action != "accept":
            return t.ElicitResult(action=self.action)
        if isinstance(params, t.ElicitRequestURLParams):
            return t.ElicitResult(action="accept")
        names = params.requested_schema["properties"]
        kinds = {name: schema["type"] for name, schema in names.items()}
        answers = {name: True if kind == "boolean" else f"my {name}" for name, kind in kinds.items()}
        return t.ElicitResult(action="accept", content=answers)

    async def sampling(
        self, context: ClientRequestContext, params: t.CreateMessageRequestParams
    ) -> t.CreateMessageResult:
        block = t.TextContent(type="text", text="Paris")
        return t.CreateMessageResult(role="assistant", content=block, model="m")

    async def roots(self, context: ClientRequestContext) -> t.ListRootsResult:
        return t.ListRootsResult(roots=[t.Root(uri="file:///home/ann")])


def client(at: RunningGateway, user: User | None = None) -> Client:
    if user is None:
        return Client(at.endpoint, mode=VERSION, cache=None, read_timeout_seconds=20)
    return Client(
        at.endpoint,
        mode=VERSION,
        cache=None,
        read_timeout_seconds=20,
        elicitation_callback=user.elicitation,
        sampling_callback=user.sampling,
        list_roots_callback=user.roots,
    )


Replicas = tuple[RunningGateway, RunningGateway]


@pytest.mark.parametrize(
    ("tool", "said", "shown"),
    [
        ("elicitation", "Hello, my name!", ["[all] What is your name?"]),
        ("sampling", "The model said: Paris", []),
        ("list_roots", "roots: file:///home/ann", []),
        ("request_state", "state-ok", ["[all] Please confirm"]),
        ("multiple_inputs", "got all three", ["[all] What is your name?"]),
        (
            "multi_round",
            "my name likes my color",
            ["[all] Step 1: What is your name?", "[all] Step 2: What is your favorite color?"],
        ),
    ],
)
async def test_a_tool_asks_and_goes_on_with_the_answer(
    replicas: Replicas, tool: str, said: str, shown: list[str]
) -> None:
    """Forms, a model's text and roots, alone and together, in one round and in two."""
    user = User()
    async with client(replicas[0], user) as session:
        result = await session.call_tool(f"all__test_input_required_result_{tool}", {})
    (block,) = result.content
    assert isinstance(block, t.TextContent)
    assert block.text == said
    assert user.shown == shown


async def test_a_prompt_and_a_resource_ask_too(replicas: Replicas) -> None:
    """On the methods beside tools/call (M-01)."""
    user = User()
    async with client(replicas[0], user) as session:
        prompt = await session.get_prompt("all__test_input_required_result_prompt")
        assert isinstance(prompt.messages[0].content, t.TextContent)
        assert prompt.messages[0].content.text == "Context: my context"
        read = await session.read_resource("all+test://needs-input")
        assert isinstance(read.contents[0], t.TextResourceContents)
        assert read.contents[0].text == "Read by my name"
    assert user.shown == ["[all] What context should the prompt use?", "[all] Who reads?"]


@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_a_user_is_sent_to_a_page_or_declines(replicas: Replicas, action: str) -> None:
    """The url mode, and an answer that is no consent."""
    user = User(action)
    async with client(replicas[0], user) as session:
        result = await session.call_tool("all__test_url_elicitation", {})
    assert result.content[0].model_dump()["text"] == f"visit: {action}"
    assert user.shown == ["[all] Please sign in"]


async def test_a_client_that_cannot_answer_is_told_what_it_lacks(replicas: Replicas) -> None:
    """M-05: the server asks whatever was declared; the gateway does not pass it on."""
    async with client(replicas[0]) as session:
        with pytest.raises(MCPError) as caught:
            await session.call_tool("all__test_input_required_result_elicitation", {})
    assert caught.value.error.code == -32021
    assert caught.value.error.data == {"requiredCapabilities": {"elicitation": {"form": {}}}}


async def test_another_replica_goes_on_with_the_call(replicas: Replicas) -> None:
    """M-13: nothing of it is kept in the gateway that was asked first."""
    name = "all__test_input_required_result_request_state"
    async with client(replicas[0], User()) as first:
        asked = await first.session.call_tool(name, {}, allow_input_required=True)
    assert isinstance(asked, t.InputRequiredResult)
    assert asked.request_state != "plain state"
    answers: Any = {"confirm": t.ElicitResult(action="accept", content={"ok": True})}
    async with client(replicas[1], User()) as second:
        done = await second.session.call_tool(
            name, {}, input_responses=answers, request_state=asked.request_state
        )
    assert isinstance(done, t.CallToolResult)
    assert done.content[0].model_dump()["text"] == "state-ok"
