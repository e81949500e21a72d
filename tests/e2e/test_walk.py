"""The official SDK's client, pinned to 2026-07-28, walks every operation through a gateway process."""

import mcp_types as t
import pytest
from mcp import Client, MCPError

from tests.support.processes import RunningGateway

VERSION = "2026-07-28"


@pytest.fixture
def client(demo: RunningGateway) -> Client:
    """Return a client to be entered by the test: its scopes must open and close in one task."""
    return Client(demo.endpoint, mode=VERSION, cache=None, read_timeout_seconds=10)


async def test_the_tools_of_both_servers_are_one_list_in_config_order(client: Client) -> None:
    """Each name carries its upstream's prefix; hints are the least of the parts."""
    async with client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == [
            "notes__add_note",
            "notes__search_notes",
            "notes__delete_note",
            "notes__delete_tagged",
            "notes__summarise_notes",
            "clock__current_time",
            "clock__convert_time",
            "clock__convert_unit",
            "clock__start_timer",
        ]
        assert 0 < listed.ttl_ms <= 5_000
        assert listed.cache_scope == "public"


async def test_a_call_reaches_its_server_and_its_structured_content_comes_back(client: Client) -> None:
    """The prefix routes; the SDK validates the content against the tool's output schema."""
    async with client:
        result = await client.call_tool("clock__convert_unit", {"value": 2, "unit": "mi", "to": "km"})
        assert result.structured_content == {"value": 3.218688, "unit": "km"}


async def test_what_one_call_writes_the_next_one_finds(client: Client) -> None:
    """Calls are never answered from memory."""
    async with client:
        added = await client.call_tool(
            "notes__add_note", {"title": "Ünïcode", "text": "日本語 & 🦊", "tags": ["fox"]}
        )
        assert added.structured_content is not None
        found = await client.call_tool("notes__search_notes", {"words": "🦊"})
        assert found.structured_content == {"result": [added.structured_content]}
        deleted = await client.call_tool("notes__delete_note", {"id": added.structured_content["id"]})
        assert not deleted.is_error


async def test_progress_arrives_in_order_and_before_the_result(client: Client) -> None:
    """Notifications of the call's own stream carry the client's token again."""
    async with client:
        seen: list[tuple[float, float | None]] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            seen.append((done, total))

        result = await client.call_tool("notes__summarise_notes", {"pace": 0.05}, progress_callback=progress)
        assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
        assert result.structured_content is not None
        assert result.structured_content["notes"] == 3


async def test_an_error_inside_a_tool_stays_a_result(client: Client) -> None:
    """isError is for the model; it is no protocol error."""
    async with client:
        result = await client.call_tool("clock__current_time", {"zone": "Mars/Olympus"})
        assert result.is_error


async def test_prompts_are_listed_and_filled(client: Client) -> None:
    """Arguments reach the server under the original name."""
    async with client:
        listed = await client.list_prompts()
        assert [prompt.name for prompt in listed.prompts] == ["notes__review_notes", "clock__plan_meeting"]
        prompt = await client.get_prompt("notes__review_notes", {"tag": "security"})
        assert isinstance(prompt.messages[0].content, t.TextContent)
        assert "Public and private" in prompt.messages[0].content.text


async def test_resources_are_listed_and_read_under_the_uris_that_were_listed(client: Client) -> None:
    """A URI is rewritten outward and inward, in the list and in the contents."""
    async with client:
        listed = await client.list_resources()
        uris = [str(resource.uri) for resource in listed.resources]
        assert uris == [
            "notes+note://guide",
            "notes+note://index",
            "clock+time://zones",
            "clock+time://timers",
        ]
        for uri in uris:
            read = await client.read_resource(uri)
            assert [str(content.uri) for content in read.contents] == [uri]


async def test_templates_are_listed_and_expansions_of_them_are_read(client: Client) -> None:
    """An expanded template is a readable URI, slashes included."""
    async with client:
        listed = await client.list_resource_templates()
        templates = [template.uri_template for template in listed.resource_templates]
        assert templates == ["notes+note://note/{id}", "clock+time://zone/{+zone}"]
        note = await client.read_resource("notes+note://note/1")
        zone = await client.read_resource("clock+time://zone/America/Argentina/Ushuaia")
        assert isinstance(note.contents[0], t.TextResourceContents)
        assert isinstance(zone.contents[0], t.TextResourceContents)
        assert note.contents[0].text.startswith("# Cache hints")
        assert "-0300" in zone.contents[0].text


async def test_arguments_of_prompts_and_templates_are_completed(client: Client) -> None:
    """The reference routes, by prompt name or by template."""
    async with client:
        by_prompt = await client.complete(
            t.PromptReference(name="notes__review_notes"), {"name": "tag", "value": "ca"}
        )
        by_template = await client.complete(
            t.ResourceTemplateReference(uri="clock+time://zone/{+zone}"),
            {"name": "zone", "value": "europe/be"},
        )
        assert by_prompt.completion.values == ["caching"]
        assert by_template.completion.values == ["Europe/Belfast", "Europe/Belgrade", "Europe/Berlin"]


@pytest.mark.parametrize("name", ["nope", "notes__nope", "nobody__add_note", "add_note"])
async def test_an_unknown_tool_is_an_error_about_parameters(client: Client, name: str) -> None:
    """Whether the prefix or the rest is wrong makes no difference."""
    async with client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool(name, {})
        assert caught.value.code == t.INVALID_PARAMS


async def test_an_unknown_resource_is_named_as_it_was_asked_for(client: Client) -> None:
    """The URI inside the error's data is the client's, not the upstream's."""
    async with client:
        with pytest.raises(MCPError) as caught:
            await client.read_resource("notes+note://note/404")
        assert caught.value.code == t.INVALID_PARAMS
        assert caught.value.data == {"uri": "notes+note://note/404"}


async def test_a_public_read_is_answered_from_memory_with_the_time_that_is_left(client: Client) -> None:
    """Two reads of a resource that is good for a day: the second has less left, and the same bytes."""
    async with client:
        first = await client.read_resource("clock+time://zones")
        second = await client.read_resource("clock+time://zones")
        assert second.contents == first.contents
        assert 0 < second.ttl_ms <= first.ttl_ms <= 86_400_000


async def test_a_client_that_asks_first_learns_who_answers_and_for_whom(demo: RunningGateway) -> None:
    """server/discover names the gateway, joins capabilities and labels instructions."""
    async with Client(demo.endpoint, cache=None) as client:
        assert client.protocol_version == VERSION
        assert client.server_info is not None
        assert client.server_info.name == "mcp-gateway"
        capabilities = client.server_capabilities
        assert capabilities.tools is not None
        assert capabilities.prompts is not None
        assert capabilities.resources is not None
        assert capabilities.completions is not None
        assert client.instructions is not None
        assert "Search before you add" in client.instructions
        assert "IANA names" in client.instructions
