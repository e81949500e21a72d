"""What crosses the gateway changes in the named places only, and what goes out is what the schema accepts."""

import base64
import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.results import (
    MAX_COMPLETIONS,
    Asking,
    Dressed,
    Foreign,
    Promising,
    completion_target,
    dress_error,
    dress_notice,
    made,
    normalise,
    rewrite_params,
)
from gateway.core.router import Namespace
from gateway.core.shapes import InvalidResult
from gateway.protocol.call import (
    HOP_META,
    META_PROGRESS_TOKEN,
    META_SERVER_INFO,
    META_SUBSCRIPTION_ID,
    Notice,
    UpstreamName,
)
from gateway.protocol.jsonrpc import Json, Malformed, McpError, error_message, notification_message, split
from gateway.protocol.methods import METHODS
from tests.support.wire import check_message, check_result

GH = Namespace(UpstreamName("gh"), "gh")
BARE = Namespace(UpstreamName("only"), "")
WE = b'{"name":"mcp-gateway","version":"0.1.0"}'
CACHEABLE = [method for method, row in METHODS.items() if row.cacheable]

LEAST: dict[str, str] = {
    "tools/call": '"content":[]',
    "prompts/get": '"messages":[]',
    "resources/read": '"contents":[]',
    "completion/complete": '"completion":{"values":[]}',
    "tools/list": '"tools":[]',
    "prompts/list": '"prompts":[]',
    "resources/list": '"resources":[]',
    "resources/templates/list": '"resourceTemplates":[]',
    "server/discover": '"supportedVersions":[],"capabilities":{}',
}
"""The smallest legal body of each method's result."""


def dress(
    method: str, result: Json, *, namespace: Namespace, server_info: Json, **hints: Any
) -> tuple[Json, ...]:
    """Return a finished result as the client is given it."""
    dressed = normalise(method, result, namespace=namespace, server_info=server_info)
    if not isinstance(dressed, Dressed):
        raise InvalidResult("no finished result")
    return dressed.segments(**hints)


def out(method: str, body: str, *, namespace: Namespace = GH, **hints: Any) -> bytes:
    """Return the result as it goes out, from the members of what came in."""
    return b"".join(dress(method, b"{" + body.encode() + b"}", namespace=namespace, server_info=WE, **hints))


def members(method: str, body: str, *, namespace: Namespace = GH) -> dict[str, bytes]:
    """Return the dressed result's members as raw text, after the checker passed it."""
    result = out(method, body, namespace=namespace)
    check_result(method, result)
    return {key: bytes(raw) for key, raw in split(result).items()}


class TestWhatTheGatewayOwns:
    @pytest.mark.parametrize("method", LEAST)
    @pytest.mark.parametrize(
        "type", ['"resultType":"complete",', '"resultType":null,', "", r'"resultType":"\u0063omplete",']
    )
    def test_every_result_says_complete_and_who_answers(self, method: str, type: str) -> None:
        """An absent or null resultType is complete (E-09, A-26); clients reject a missing one."""
        sent = members(method, type + LEAST[method])
        assert sent["resultType"] == b'"complete"'
        assert sent["_meta"] == b'{"io.modelcontextprotocol/serverInfo":' + WE + b"}"

    @pytest.mark.parametrize("type", ['"task"', "1", "{}", "true", '""'])
    @pytest.mark.parametrize("method", LEAST)
    def test_a_result_type_that_makes_no_sense_is_an_invalid_response(self, method: str, type: str) -> None:
        """It is a string (E-09), and only calls may be answered with a task (T-02)."""
        result = f'{{"resultType":{type},"taskId":"t","ttlMs":null,{LEAST[method]}}}'.encode()
        if (method, type) == ("tools/call", '"task"'):
            assert isinstance(normalise(method, result, namespace=GH, server_info=WE), Promising)
            return
        with pytest.raises(InvalidResult):
            normalise(method, result, namespace=GH, server_info=WE)

    @pytest.mark.parametrize("type", ["later", "Complete"])
    @pytest.mark.parametrize("method", LEAST)
    def test_a_kind_of_result_that_is_not_known_is_told_apart_and_left_as_it_is(
        self, method: str, type: str
    ) -> None:
        """K-06: what its members mean, hints among them, only the extension knows."""
        result = f'{{"resultType":"{type}","ttlMs":7,"cacheScope":"x","uri":"a:1","content":[null]}}'.encode()
        foreign = normalise(method, result, namespace=GH, server_info=WE)
        assert isinstance(foreign, Foreign)
        sent = json.loads(b"".join(foreign.dressed(method, server_info=WE).segments()))
        assert sent.pop("_meta") == {META_SERVER_INFO: json.loads(WE)}
        assert sent == json.loads(result)

    @pytest.mark.parametrize("method", LEAST)
    def test_hints_stand_on_the_cacheable_six_and_nowhere_else(self, method: str) -> None:
        """Hints of the upstream are never copied: the gateway writes its own (C-02, K-05)."""
        hints = '"ttlMs":1.5e9,"cacheScope":"everybody",'
        sent = split(out(method, hints + LEAST[method], ttl_ms=1234, scope="public"))
        if method in CACHEABLE:
            assert (bytes(sent["ttlMs"]), bytes(sent["cacheScope"])) == (b"1234", b'"public"')
        else:
            assert not sent.keys() & {"ttlMs", "cacheScope"}

    def test_without_hints_a_result_is_stale_and_private(self) -> None:
        """Python and JS clients refuse a list without hints, so they are filled in (A-27)."""
        sent = members("resources/read", '"contents":[]')
        assert (sent["ttlMs"], sent["cacheScope"]) == (b"0", b'"private"')

    @pytest.mark.parametrize("meta", ["null", '"x"', "[]", "7", "{}"])
    def test_a_meta_that_says_nothing_becomes_ours(self, meta: str) -> None:
        """JS clients cannot connect to a server that says `_meta: null`."""
        sent = members("tools/call", f'"content":[],"_meta":{meta}')
        assert json.loads(sent["_meta"]) == {META_SERVER_INFO: json.loads(WE)}

    def test_hop_meta_is_rewritten_and_vendor_meta_copied(self) -> None:
        """E-24, E-27, F-29, B32: `null` and the number's spelling are the vendor's business."""
        hop = ",".join(f'"{key}":"theirs"' for key in sorted(HOP_META))
        vendor = (
            r'"com.example/a":{"b":1.0,"c":null},"traceparent":"00-a-b-01","com.example/n":null,"\u0078":1e2'
        )
        sent = split(members("tools/call", f'"content":[],"_meta":{{{hop},{vendor}}}')["_meta"])
        assert {key: bytes(raw) for key, raw in sent.items()} == {
            "com.example/a": b'{"b":1.0,"c":null}',
            "traceparent": b'"00-a-b-01"',
            "com.example/n": b"null",
            "x": b"1e2",
            META_SERVER_INFO: WE,
        }

    def test_our_own_results_are_made_without_parsing_them(self) -> None:
        """A merged list or a merged discover gets the same dress."""
        page = made("tools/list", {"tools": b"[]", "nextCursor": b'"c"'}, server_info=WE)
        sent = check_result("tools/list", b"".join(page.segments(5, "public")))
        assert (sent["nextCursor"], sent["ttlMs"], sent["cacheScope"]) == ("c", 5, "public")

    def test_the_end_of_a_subscription_carries_its_id(self) -> None:
        """L-10: in the client's own spelling, which no upstream's `_meta` could bring in."""
        ended = made(
            "subscriptions/listen",
            {"_meta": b'{"io.modelcontextprotocol/subscriptionId":9,"a":1}'},
            server_info=WE,
            own_meta={META_SUBSCRIPTION_ID: b'"listen:0"'},
        )
        sent = check_result("subscriptions/listen", b"".join(ended.segments()))
        assert (sent["_meta"][META_SUBSCRIPTION_ID], sent["_meta"]["a"]) == ("listen:0", 1)


class TestUris:
    LINK = '{"type":"resource_link","name":"a","uri":"file:///a"}'
    EMBEDDED = '{"type":"resource","resource":{"uri":"file:///a","text":"see file:///a"}}'

    @pytest.mark.parametrize("block", [LINK, EMBEDDED])
    def test_links_and_embedded_resources_of_a_tool_are_exposed(self, block: str) -> None:
        """F-12: tools/call content."""
        sent = members("tools/call", f'"content":[{block}]')
        assert sent["content"] == f"[{block}]".replace('"uri":"file', '"uri":"gh+file').encode()

    @pytest.mark.parametrize("block", [LINK, EMBEDDED])
    def test_links_and_embedded_resources_of_a_prompt_are_exposed(self, block: str) -> None:
        """F-12: prompts/get messages."""
        messages = f'[{{"role":"user","content":{block}}}]'
        sent = members("prompts/get", f'"messages":{messages}')
        assert sent["messages"] == messages.replace('"uri":"file', '"uri":"gh+file').encode()

    def test_contents_of_a_read_are_exposed(self) -> None:
        """F-12, B35: what was read comes back under the URI the client knows; ui: stays ui:."""
        body = (
            '"contents":[{"uri":"config://app","text":"1"},{"uri":"ui://app/x","blob":""},'
            '{"uri":"https://x/","text":""}]'
        )
        sent = members("resources/read", body)
        uris = [content["uri"] for content in json.loads(sent["contents"])]
        assert uris == ["gh+config://app", "ui://gh/app/x", "https://x/"]

    @pytest.mark.parametrize(
        "body",
        [
            '"structuredContent":{"uri":"file:///a","type":"resource_link"},"content":[]',
            '"structuredContent":[{"type":"resource","resource":{"uri":"file:///a"}}],"content":[]',
            '"content":[{"type":"text","text":"{\\"uri\\":\\"file:///a\\"}"}]',
            '"content":[{"type":"text","text":"x","uri":"file:///a"}]',
            '"content":[{"type":"text","text":"x","resource":{"uri":"file:///a"}}]',
            '"content":[{"type":"image","data":"","mimeType":"x","_meta":{"uri":"file:///a"}}]',
            '"content":[{"type":"text","text":"x","annotations":{"uri":"file:///a"}}]',
            '"content":[{"type":"resource_link","name":"n","uri":"https://a/","icons":[{"src":"file:///i"}]}]',
            '"content":[{"type":"resource_link","name":"n","uri":"a:b","_meta":{"uri":"a:b"}}]'.replace(
                "a:b", "https://a"
            ),
            '"content":[],"uri":"file:///a","contents":[{"uri":"file:///a"}],"messages":[]',
        ],
    )
    def test_nothing_else_is_a_uri(self, body: str) -> None:
        """F-13: data, text, icons and unknown members stay the text they are."""
        before, after = split(b"{" + body.encode() + b"}"), members("tools/call", body)
        assert {key: after[key] for key in before} == {key: bytes(raw) for key, raw in before.items()}

    @pytest.mark.parametrize(
        "block",
        [
            '{"type":"hologram","uri":"file:///a","annotations":null}',
            '{"type":"Resource_Link","uri":"file:///a"}',
            '{"type":7,"uri":"file:///a"}',
            '{"type":null,"uri":"file:///a"}',
            '{"uri":"file:///a"}',
            '"resource_link"',
            "null",
            "17",
            '[{"type":"resource_link","uri":"file:///a"}]',
            '{"type":"resource_link","uri":7}',
            '{"type":"resource","resource":"file:///a"}',
            '{"type":"resource","resource":null}',
        ],
    )
    def test_a_block_nobody_knows_passes_and_its_neighbours_are_still_rewritten(self, block: str) -> None:
        """K-03, K-04: a tool that has run is not failed because of one odd block."""
        sent = split(out("tools/call", f'"content":[{self.LINK}, {block} ,{self.EMBEDDED}]'))["content"]
        exposed = [part.replace('"uri":"file', '"uri":"gh+file') for part in (self.LINK, self.EMBEDDED)]
        assert bytes(sent) == f"[{exposed[0]},{block},{exposed[1]}]".encode()

    def test_escapes_hide_neither_type_nor_key(self) -> None:
        """What a block is follows from its decoded text, not from how it was spelled."""
        link = r'{"\u0074ype":"resource\u005flink","name":"a","\u0075ri":"file:\/\/\/\u00e4"}'
        sent = json.loads(members("tools/call", f'"content":[{link}]')["content"])
        assert sent == [{"type": "resource_link", "name": "a", "uri": "gh+file:///ä"}]

    def test_the_last_of_two_equal_keys_is_the_only_one_that_leaves(self) -> None:
        """Readers disagree on which of two wins, so a client gets one: with no upstream URI beside it."""
        link = '{"type":"text","uri":"file:///b","type":"resource_link","name":"a","uri":"file:///a"}'
        sent = members("tools/call", f'"content":[{link}]')["content"]
        assert sent == b'[{"type":"resource_link","uri":"gh+file:///a","name":"a"}]'

    def test_without_a_prefix_nothing_is_touched(self) -> None:
        """A lone upstream's URIs are its own, and its blocks keep their very spelling."""
        content = '[ {"type" : "resource_link","uri":"file:///a" , "name":"a"} ]'
        assert members("tools/call", f'"content":{content}', namespace=BARE)["content"] == content.encode()

    def test_blocks_beside_a_changed_one_keep_their_spelling(self) -> None:
        """Only what must change is written anew."""
        text = '{ "type":"text",\t"text":"\\u00e4" ,"x": 1.0}'
        sent = members("tools/call", f'"content":[{text},{self.LINK}]')["content"]
        assert sent.startswith(b"[" + text.encode() + b",")


class TestNulls:
    @pytest.mark.parametrize(
        ("method", "before", "after"),
        [
            ("tools/call", '"content":[],"isError":null', {"content": b"[]"}),
            ("tools/call", '"content":null', {"content": b"[]"}),
            ("tools/call", '"structuredContent":{}', {"structuredContent": b"{}", "content": b"[]"}),
            ("prompts/get", '"messages":[],"description":null', {"messages": b"[]"}),
            (
                "completion/complete",
                '"completion":{"values":["a"],"total":null,"hasMore":null}',
                {"completion": b'{"values":["a"]}'},
            ),
            (
                "resources/read",
                '"contents":[{"uri":"https://a","text":"x","mimeType":null,"_meta":null,"blob":null}]',
                {"contents": b'[{"uri":"https://a","text":"x"}]'},
            ),
            (
                "tools/call",
                '"content":[{"type":"text","text":"x","annotations":null,"_meta":null}]',
                {"content": b'[{"type":"text","text":"x"}]'},
            ),
            (
                "tools/call",
                '"content":[{"type":"text","text":"x","annotations":'
                '{"audience":null,"priority":0.5,"lastModified":null,"x":null}}]',
                {"content": b'[{"type":"text","text":"x","annotations":{"priority":0.5,"x":null}}]'},
            ),
            (
                "tools/call",
                '"content":[{"type":"resource_link","name":"a","uri":"https://a","title":null,"size":null,'
                '"description":null,"mimeType":null,'
                '"icons":[{"src":"https://i","sizes":null,"theme":null}]}]',
                {
                    "content": b'[{"type":"resource_link","name":"a","uri":"https://a",'
                    b'"icons":[{"src":"https://i"}]}]'
                },
            ),
        ],
    )
    def test_a_null_that_means_absent_is_left_out(
        self, method: str, before: str, after: dict[str, bytes]
    ) -> None:
        """The official schema knows no null there, JS clients fail on it (E-28); rmcp leaves content out."""
        sent = members(method, before)
        del sent["resultType"], sent["_meta"]
        assert {key: raw for key, raw in sent.items() if key not in ("ttlMs", "cacheScope")} == after

    @pytest.mark.parametrize(
        "body",
        [
            '"content":[],"structuredContent":null',
            '"content":[],"structuredContent":{"isError":null,"a":[null]}',
            '"content":[],"futureField":null',
            '"content":[{"type":"text","text":"x","futureField":null}]',
            '"content":[{"type":"image","data":"","mimeType":"x","title":null}]',
            '"content":[{"type":"text","text":"x","_meta":{"com.example/a":null}}]',
            '"content":[{"type":"text","text":"null"}]',
        ],
    )
    def test_a_null_that_is_data_stays(self, body: str) -> None:
        """E-27, A-43, B12: null is not absent."""
        before, after = split(b"{" + body.encode() + b"}"), members("tools/call", body)
        assert {key: after[key] for key in before} == {key: bytes(raw) for key, raw in before.items()}


class TestPayloads:
    @pytest.mark.parametrize("value", ['{"id":1}', "[]", "0", "false", "null", '"x"', '{"b":1,"a":2,"b":3}'])
    def test_structured_content_arrives_as_it_was(self, value: str) -> None:
        """B12: present stays present and byte-equal; no content is invented beside it."""
        sent = members("tools/call", f'"content":[],"structuredContent":{value}')
        assert (sent["structuredContent"], sent["content"]) == (value.encode(), b"[]")

    def test_absent_structured_content_stays_absent(self) -> None:
        """B12: null is not absent."""
        assert "structuredContent" not in members("tools/call", '"content":[]')

    def test_a_tool_error_is_a_result_and_passes(self) -> None:
        """F-32, B13: nothing validates it, nothing replaces it."""
        content = '[{"type":"text","text":"quota used up"}]'
        sent = members("tools/call", f'"isError":true,"content":{content}')
        assert (sent["isError"], sent["content"]) == (b"true", content.encode())

    @pytest.mark.parametrize(
        "number",
        [
            "1.0",
            "1",
            "1e2",
            "-0",
            "9007199254740993",
            "9223372036854775808",
            "18446744073709551616",
            "1234567890123456789012345678901234567890",
            "0.1000000000000000055511151231257827",
            "1e400",
        ],
    )
    def test_numbers_keep_their_very_digits(self, number: str) -> None:
        """B39: also inside a block that is written anew, and through a memoised result."""
        link = f'{{"type":"resource_link","name":"a","uri":"file:///a","size":{number},"x":[{number}]}}'
        body = f'"structuredContent":{{"n":{number}}},"content":[{link}]'.encode()
        dressed = normalise("tools/call", b"{" + body + b"}", namespace=GH, server_info=WE)
        for sent in (b"".join(dressed.segments()), b"".join(dressed.segments())):
            assert bytes(split(sent)["structuredContent"]) == f'{{"n":{number}}}'.encode()
            assert bytes(split(sent)["content"]) == f"[{link}]".replace('"file', '"gh+file').encode()

    def test_schemas_and_their_refs_are_opaque(self) -> None:
        """B10: nothing a result holds is re-modelled, whatever it looks like."""
        schema = (
            '{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","definitions":{"F":{"enum":'
            '["fit"]}},"properties":{"f":{"$ref":"#/definitions/F"}},"dependencies":{},"x-vendor":1}'
        )
        assert members("tools/call", f'"content":[],"inputSchema":{schema}')["inputSchema"] == schema.encode()

    def test_unknown_members_and_their_order_survive(self) -> None:
        """K-02, B32: at every level, in the upstream's order."""
        content = '[{"z":1,"type":"text","futureField":{"k":[1]},"text":""}]'
        body = f'"futureField":{{"k":[1]}},"content":{content},"a":0'
        sent = members("tools/call", body)
        assert list(sent) == ["futureField", "content", "a", "resultType", "_meta"]
        assert sent["content"] == content.encode()

    @pytest.mark.parametrize(
        ("method", "body"),
        [
            ("tools/call", '"content":{}'),
            ("tools/call", '"content":"done"'),
            ("tools/call", '"content":false'),
            ("prompts/get", '"description":"x"'),
            ("prompts/get", '"messages":null'),
            ("resources/read", '"content":[]'),
            ("resources/read", '"contents":null'),
            ("resources/read", '"contents":{"uri":"a","text":""}'),
            ("completion/complete", '"values":[]'),
            ("completion/complete", '"completion":{}'),
            ("completion/complete", '"completion":{"values":"a"}'),
            ("completion/complete", '"completion":[]'),
        ],
    )
    def test_a_payload_no_client_could_read_is_an_invalid_response(self, method: str, body: str) -> None:
        """K-04; a read without contents must not become an empty one (F-16)."""
        with pytest.raises(InvalidResult):
            out(method, body)

    def test_one_completion_more_than_allowed_is_cut_and_said(self) -> None:
        """S-33: clients take a hundred values."""
        values = json.dumps([str(number) for number in range(MAX_COMPLETIONS + 1)])
        sent = json.loads(
            members("completion/complete", f'"completion":{{"values":{values},"total":500,"hasMore":false}}')[
                "completion"
            ]
        )
        assert (len(sent["values"]), sent["total"], sent["hasMore"]) == (MAX_COMPLETIONS, 500, True)

    def test_a_completion_that_is_cut_has_no_nulls_either(self) -> None:
        """E-28 holds for it as for any other; unknown members keep theirs (E-27)."""
        values = json.dumps([str(number) for number in range(MAX_COMPLETIONS + 1)])
        body = f'"completion":{{"values":{values},"total":null,"hasMore":null,"x":null}}'
        sent = json.loads(members("completion/complete", body)["completion"])
        del sent["values"]
        assert sent == {"x": None, "hasMore": True}

    @pytest.mark.parametrize(
        "result", [b"[]", b"null", b'"x"', b"{", b"", b'{"a":}', b"[" * 100_000, b'{"content":[\xff]}']
    )
    def test_what_is_no_object_is_an_invalid_response(self, result: bytes) -> None:
        """One defined error for everything an upstream may come up with."""
        with pytest.raises(InvalidResult):
            dress("tools/call", result, namespace=GH, server_info=WE)


class TestInput:
    @pytest.mark.parametrize("method", [method for method in LEAST if not METHODS[method].may_ask])
    def test_input_required_is_illegal_where_nothing_can_be_asked(self, method: str) -> None:
        """M-01."""
        with pytest.raises(InvalidResult, match="no answer to"):
            out(method, f'"resultType":"input_required","requestState":"s",{LEAST[method]}')

    def test_a_question_is_left_to_whoever_may_pass_it_on(self) -> None:
        """M-01: where it is legal it stays as its upstream wrote it."""
        asked = b'{"resultType":"input_required","requestState":"s","inputRequests":{ "a":1}}'
        for method in ("tools/call", "prompts/get", "resources/read"):
            asking = normalise(method, asked, namespace=GH, server_info=WE)
            assert isinstance(asking, Asking)
            assert bytes(asking.members["inputRequests"]) == b'{ "a":1}'


class TestLargePayloads:
    PICTURE = base64.b64encode(bytes(3_000_000))

    @pytest.mark.parametrize(
        ("method", "start", "end"),
        [
            ("tools/call", b'{"content":[{"type":"image","mimeType":"image/png","data":"', b'"}]}'),
            (
                "tools/call",
                b'{"content":[{"type":"resource","resource":{"uri":"file:///a","blob":"',
                b'"}}]}',
            ),
            (
                "tools/call",
                b'{"content":[{"type":"text","text":""},'
                b'{"type":"audio","annotations":null,"mimeType":"a/b","data":"',
                b'"}]}',
            ),
            ("tools/call", b'{"content":[],"structuredContent":{"data":"', b'"}}'),
            ("resources/read", b'{"contents":[{"uri":"file:///a","blob":"', b'"}]}'),
            (
                "prompts/get",
                b'{"messages":[{"role":"user","content":{"type":"image","mimeType":"a/b","data":"',
                b'"}}]}',
            ),
        ],
    )
    def test_a_picture_is_passed_over_and_not_copied(self, method: str, start: bytes, end: bytes) -> None:
        """4 MB of base64 cost some kilobytes, also where its block is written anew."""
        result = start + self.PICTURE + end
        tracemalloc.start()
        segments = dress(method, result, namespace=GH, server_info=WE)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000
        check_result(method, b"".join(segments))

    def test_small_results_are_one_run(self) -> None:
        """A hundred small pieces would cost a hundred writes."""
        links = ",".join([TestUris.LINK] * 100)
        assert (
            len(dress("tools/call", f'{{"content":[{links}]}}'.encode(), namespace=GH, server_info=WE)) == 2
        )


class TestCrowds:
    """Content of very many values, each of them small."""

    def test_more_values_than_anybody_means_are_refused(self) -> None:
        """Taking them apart would take seconds."""
        content = b",".join([b'{"type":"text","text":"x"}'] * 300_000)
        with pytest.raises(InvalidResult, match="too much"):
            normalise("tools/call", b'{"content":[' + content + b"]}", namespace=GH, server_info=WE)

    def test_a_large_array_is_written_as_a_small_one_is(self) -> None:
        """It is taken apart by its elements and joined in runs; the text is the same."""
        block = (
            '{"type":"resource_link","uri":"file:///a","name":"n","title":null},7,{"type":"new","uri":"u"}'
        )
        (link, *others) = json.loads(out("tools/call", f'"content":[{block}]'))["content"]
        assert "title" not in link
        many = json.loads(out("tools/call", f'"content":[{",".join([block] * 30_000)}]'))["content"]
        assert many == [link, *others] * 30_000


class TestMemoisedResults:
    def test_hits_differ_in_nothing_but_their_hints(self) -> None:
        """The rewriting is done once, a hit costs one splice (C-10)."""
        dressed = normalise(
            "resources/read", b'{"contents":[{"uri":"a:b","text":"x"}]}', namespace=GH, server_info=WE
        )
        first, later = (b"".join(dressed.segments(ttl, "private")) for ttl in (1000, 7))
        assert first.replace(b'"ttlMs":1000', b'"ttlMs":7') == later

    def test_a_memo_is_worth_reading_in_a_test(self) -> None:
        """Equal input gives equal output."""
        assert normalise("tools/call", b'{"content":[]}', namespace=GH, server_info=WE) == Dressed(
            False,
            (
                b'{"content":[],"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":'
                + WE
                + b"}",
            ),
        )


class TestParams:
    @pytest.mark.parametrize(
        ("method", "key"), [("tools/call", "name"), ("prompts/get", "name"), ("resources/read", "uri")]
    )
    def test_the_upstream_is_asked_in_its_own_words(self, method: str, key: str) -> None:
        """U-02: the exposed name or URI becomes the original, the rest passes."""
        params: dict[str, Json] = {
            key: b'"gh__x"',
            "future": b"1.0",
            "arguments": b'{"name":"gh__x","n":null}',
        }
        assert rewrite_params(method, params, 'x"y') == {
            key: b'"x\\"y"',
            "future": b"1.0",
            "arguments": b'{"name":"gh__x","n":null}',
        }

    def test_a_target_that_stays_keeps_its_spelling(self) -> None:
        """An unprefixed URI is sent byte for byte (E-32)."""
        spelled = rb'"file:\/\/\/\u00e4"'
        assert rewrite_params("resources/read", {"uri": spelled}, "file:///ä") == {"uri": spelled}

    @pytest.mark.parametrize(("type", "key"), [("ref/prompt", "name"), ("ref/resource", "uri")])
    def test_a_completion_is_asked_about_the_original(self, type: str, key: str) -> None:
        """F-12, F-34: the ref is renamed, argument and context pass."""
        params: dict[str, Json] = {
            "ref": f'{{"type":"{type}","x":1.0,"{key}":"gh+a:{{b}}","title":null}}'.encode(),
            "argument": b'{"name":"b","value":"gh+a:"}',
            "context": b'{"arguments":{"a":"1"}}',
        }
        assert completion_target(params) == (type, "gh+a:{b}")
        assert rewrite_params("completion/complete", params, "a:{b}") == {
            **params,
            "ref": f'{{"type":"{type}","x":1.0,"{key}":"a:{{b}}"}}'.encode(),
        }

    @pytest.mark.parametrize(
        "ref",
        [
            b"null",
            b"[]",
            b'"ref/prompt"',
            b"{}",
            b'{"type":"ref/prompt"}',
            b'{"type":"ref/prompt","uri":"a:b"}',
            b'{"type":"ref/resource","uri":7}',
            b'{"type":"ref/tool","name":"a"}',
            b'{"type":null,"uri":"a:b"}',
        ],
    )
    def test_a_completion_about_nothing_is_refused(self, ref: bytes) -> None:
        """S-06 step 15."""
        with pytest.raises(McpError) as caught:
            completion_target({"ref": ref})
        assert caught.value.code == -32602
        with pytest.raises(McpError):
            completion_target({})

    def test_params_of_other_eras_and_methods_are_dropped(self) -> None:
        """T-14: a legacy `task` on a call; M-07: inputs where none can have been asked for."""
        inputs: dict[str, Json] = {"inputResponses": b"{}", "requestState": b'"s"', "task": b'{"ttl":1}'}
        assert rewrite_params("tools/call", {"name": b'"a"', **inputs}, "a") == {
            "name": b'"a"',
            "inputResponses": b"{}",
            "requestState": b'"s"',
        }
        assert rewrite_params("tools/list", inputs, "") == {"task": b'{"ttl":1}'}
        update = {"taskId": b'"t"', **inputs}
        assert rewrite_params("tasks/update", update, "o") == {
            "taskId": b'"o"',
            "inputResponses": b"{}",
            "task": b'{"ttl":1}',
        }

    def test_params_of_a_method_that_is_not_known_stay(self) -> None:
        """K-08: whose they are, and what their nulls mean, only the extension knows."""
        params: dict[str, Json] = {"cursor": b"null", "requestState": b'"s"', "task": b"{}", "uri": b'"a:1"'}
        assert rewrite_params("com.example/x", params, "") == params

    def test_null_params_are_absent(self) -> None:
        """E-26, E-28: at the protocol's own optionals only."""
        params: dict[str, Json] = {
            "name": b'"a"',
            "arguments": b"null",
            "requestState": b"null",
            "x": b"null",
        }
        assert rewrite_params("prompts/get", params, "a") == {"name": b'"a"', "x": b"null"}


class TestNotices:
    @pytest.mark.parametrize("token", [b"1", b'"1"', rb'"\u00e4"', b"0"])
    def test_progress_comes_under_the_callers_token(self, token: bytes) -> None:
        """E-33: the very token, its JSON type included; other hops' `_meta` stays here."""
        notice = Notice(
            "notifications/progress",
            {
                "progress": b"1.50",
                "total": b"null",
                "message": b"null",
                "x": b"null",
                "_meta": b'{"io.modelcontextprotocol/subscriptionId":1,"com.example/a":null,'
                b'"progressToken":3}',
            },
        )
        sent = dress_notice(notice, progress_token=token, log_level=None)
        assert sent is not None
        check_message(None, notification_message(sent.method, sent.params))
        assert {key: bytes(raw) for key, raw in sent.params.items()} == {
            META_PROGRESS_TOKEN: token,
            "progress": b"1.50",
            "x": b"null",
            "_meta": b'{"com.example/a":null}',
        }

    @pytest.mark.parametrize("wrong", [b"3", b'"x"', b"true", b"{}", b"[]", b"null"])
    def test_an_optional_of_the_wrong_type_costs_only_itself(self, wrong: bytes) -> None:
        """A strict client would end the stream over it."""
        progress = Notice(
            "notifications/progress", {"progress": b"1", "total": wrong, "message": wrong, "x": wrong}
        )
        logged = Notice("notifications/message", {"level": b'"info"', "data": b"1", "logger": wrong})
        for notice, strings in ((progress, {"message"}), (logged, {"logger"})):
            sent = dress_notice(notice, progress_token=b"1", log_level="debug")
            assert sent is not None
            check_message(None, notification_message(sent.method, sent.params))
            assert bool(strings & sent.params.keys()) is (wrong == b'"x"')
            assert ("total" in sent.params) is (wrong == b"3" and notice is progress)
            assert sent.params.keys() - {META_PROGRESS_TOKEN} >= notice.params.keys() & {
                "x",
                "data",
                "progress",
            }

    @pytest.mark.parametrize("progress", [b"null", b'"1"', b"true", None])
    def test_progress_nobody_could_read_is_dropped(self, progress: bytes | None) -> None:
        """A client that cannot parse a notification may end the stream."""
        params = {} if progress is None else {"progress": progress}
        assert (
            dress_notice(Notice("notifications/progress", params), progress_token=b"1", log_level=None)
            is None
        )

    def test_progress_goes_to_nobody_who_gave_no_token(self) -> None:
        """E-33."""
        assert (
            dress_notice(
                Notice("notifications/progress", {"progress": b"1"}), progress_token=None, log_level=None
            )
            is None
        )

    @pytest.mark.parametrize(
        ("level", "wanted", "passes"),
        [
            (b'"debug"', "debug", True),
            (b'"info"', "debug", True),
            (b'"debug"', "info", False),
            (b'"emergency"', "alert", True),
            (b'"error"', None, False),
            (b'"loud"', "debug", False),
            (b"null", "debug", False),
            (b"3", "debug", False),
        ],
    )
    def test_log_messages_are_for_who_asked_from_that_level_up(
        self, level: bytes, wanted: str | None, passes: bool
    ) -> None:
        """S-24; data may be null (E-27), a null logger is none."""
        notice = Notice("notifications/message", {"level": level, "logger": b"null", "data": b"null"})
        sent = dress_notice(notice, progress_token=b"1", log_level=wanted)
        assert (sent is not None) is passes
        if sent is not None:
            message = notification_message(sent.method, sent.params)
            assert check_message(None, message)["params"] == {"level": json.loads(level), "data": None}

    @pytest.mark.parametrize(
        "method",
        [
            "notifications/tools/list_changed",
            "notifications/resources/updated",
            "notifications/cancelled",
            "notifications/tasks",
            "notifications/subscriptions/acknowledged",
        ],
    )
    def test_other_core_notifications_have_no_place_on_a_requests_stream(self, method: str) -> None:
        """S-19, U-22."""
        assert dress_notice(Notice(method, {}), progress_token=b"1", log_level="debug") is None

    def test_unknown_notifications_pass_without_other_hops_meta(self) -> None:
        """K-07."""
        notice = Notice("notifications/com.example/x", {"a": b"1.0", "_meta": b'{"progressToken":3}'})
        assert dress_notice(notice, progress_token=None, log_level=None) == Notice(
            "notifications/com.example/x", {"a": b"1.0"}
        )


class TestErrors:
    def answer(self, error: McpError, declared: bytes = b"{}", namespace: Namespace = GH) -> dict[str, Any]:
        """Return the error as a modern caller reads it."""
        sent = dress_error(error, namespace=namespace, declared=declared)
        result: dict[str, Any] = check_message("tools/call", error_message(b"1", sent))["error"]
        return result

    @pytest.mark.parametrize(
        "code", [1, 0, -1, -32000, -32001, -32019, -32100, -32601, -32602, -32603, -32800, 2**40]
    )
    @pytest.mark.parametrize("data", [None, b"null", b'{"a":1.0,"b":null}', b'"file:///a"', b"[1e400]"])
    def test_an_upstreams_error_passes_unchanged(self, code: int, data: bytes | None) -> None:
        """F-31, B13, E-12: code, message and data, null data included."""
        sent = dress_error(McpError(code, "no \u00e4", data), namespace=GH, declared=b"{}")
        assert (sent.code, sent.message, sent.data) == (code, "no \u00e4", data)

    def test_not_found_becomes_the_modern_code_with_the_exposed_uri(self) -> None:
        """F-16, F-31, X-02: the URI in data is the one the client asked for, the rest of data stays."""
        error = McpError(
            -32002, "Resource not found", b'{"uri":"file:///a","x":1.0,"deep":{"uri":"file:///a"}}'
        )
        sent = dress_error(error, namespace=GH, declared=b"{}")
        assert (sent.code, sent.message) == (-32602, "Resource not found")
        assert sent.data == b'{"uri":"gh+file:///a","x":1.0,"deep":{"uri":"file:///a"}}'
        assert self.answer(error, namespace=BARE)["data"]["uri"] == "file:///a"

    @pytest.mark.parametrize("code", [-32700, -32600, -32020, -32022])
    def test_what_blames_the_gateway_is_the_gateways_failure(self, code: int) -> None:
        """F-31: relayed, it would blame the client; the upstream is named, its words stay here."""
        sent = self.answer(McpError(code, "bad header at http://10.0.0.1/?token=x", b'{"supported":["1"]}'))
        assert sent == {"code": -32603, "message": f"upstream gh refused the gateway's request ({code})"}

    @pytest.mark.parametrize("code", [-32023, -32041, -32043, -32099])
    def test_undefined_reserved_codes_arrive_wrapped(self, code: int) -> None:
        """F-31, E-11: the original is in data."""
        sent = self.answer(McpError(code, "odd", b'{"uri":"a:b"}'))
        assert sent["code"] == -32603
        assert sent["data"] == {"code": code, "message": "odd", "data": {"uri": "gh+a:b"}}
        assert self.answer(McpError(code, "odd"))["data"] == {"code": code, "message": "odd"}

    def test_a_missing_capability_reaches_who_did_not_declare_it(self) -> None:
        """F-31: with its data, as the upstream wrote it."""
        data = b'{"requiredCapabilities":{"sampling":{}},"x":1.0}'
        sent = dress_error(
            McpError(-32021, "need sampling", data), namespace=GH, declared=b'{"sampling":null}'
        )
        assert (sent.code, sent.message, sent.data) == (-32021, "need sampling", data)

    @pytest.mark.parametrize(
        ("required", "declared"),
        [
            ('{"sampling":{}}', '{"sampling":{}}'),
            ('{"elicitation":{}}', '{"elicitation":{"form":{}}}'),
            ('{"elicitation":{"form":{}}}', '{"elicitation":{}}'),
            ('{"sampling":null}', "{}"),
            ("{}", "{}"),
            ('["sampling"]', "{}"),
            ("null", "{}"),
            ('"sampling"', "{}"),
        ],
    )
    def test_a_capability_the_caller_has_is_what_the_gateway_lacks(
        self, required: str, declared: str
    ) -> None:
        """F-31: -32021 that names nothing the client could add is no help to it."""
        error = McpError(-32021, "x", f'{{"requiredCapabilities":{required}}}'.encode())
        assert self.answer(error, declared.encode())["code"] == -32603
        assert self.answer(McpError(-32021, "x"))["code"] == -32603

    @pytest.mark.parametrize("required", ['{"sampling":true,"roots":null}', '{"sampling":{"tools":1}}'])
    def test_a_badly_written_requirement_is_written_well(self, required: str) -> None:
        """E-15: leaves are objects."""
        sent = self.answer(McpError(-32021, "x", f'{{"requiredCapabilities":{required}}}'.encode()))
        assert sent["code"] == -32021
        assert "sampling" in sent["data"]["requiredCapabilities"]

    def test_the_old_url_elicitation_error_names_what_is_missing(self) -> None:
        """M-21, E-11: -32042 exists for 2025-11-25 clients only."""
        error = McpError(-32042, "go there", b'{"elicitations":[]}')
        assert self.answer(error)["data"] == {"requiredCapabilities": {"elicitation": {"url": {}}}}
        assert self.answer(error, b'{"elicitation":{"url":{}}}')["code"] == -32603

    @given(
        code=st.integers(-33000, -31000),
        data=st.none() | st.sampled_from([b"null", b"{}", b"[]", b'{"requiredCapabilities":{"a":{}}}']),
    )
    def test_no_error_leaves_that_a_modern_client_must_not_see(self, code: int, data: bytes | None) -> None:
        """E-11: whatever an upstream comes up with."""
        self.answer(McpError(code, "x", data))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NUMBERS = st.sampled_from(["1.0", "1e2", "-0", "18446744073709551616", "0", "1e400"])
SPACE = st.sampled_from(["", "", " ", "\t\n"])


def spelled(value: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return JSON texts with whitespace around the value."""
    return st.builds(lambda a, v, b: a + v + b, SPACE, value, SPACE)


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return JSON objects with known and unknown, plain and escaped keys."""
    known = [
        "type", "uri", "resource", "content", "contents", "messages", "completion", "values", "annotations",
        "_meta", "isError", "structuredContent", "resultType", "ttlMs", "icons", "text", "total",
        "description",
    ]  # fmt: skip
    keys = (st.sampled_from(known) | TEXT).flatmap(
        lambda key: st.sampled_from([json.dumps(key), json.dumps(key, ensure_ascii=False), _escaped(key)])
    )
    return st.lists(st.tuples(keys, values), max_size=6).map(
        lambda pairs: "{" + ",".join(f"{key}:{value}" for key, value in pairs) + "}"
    )


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be")
    return '"' + "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)) + '"'


LEAVES = (
    st.sampled_from(
        [
            "null",
            "true",
            "false",
            '"complete"',
            '"resource_link"',
            '"resource"',
            '"text"',
            '"file:///a"',
            '"https://a"',
        ]
    )
    | NUMBERS
    | TEXT.map(json.dumps)
)
VALUES = st.recursive(
    spelled(LEAVES),
    lambda inner: spelled(
        objects(inner) | st.lists(inner, max_size=3).map(lambda v: "[" + ",".join(v) + "]")
    ),
    max_leaves=15,
)
READ_MEMBERS = {"content", "contents", "messages", "completion", "isError", "description"}


class TestAnyResult:
    @given(method=st.sampled_from(sorted(METHODS)), result=spelled(objects(VALUES)))
    def test_a_result_is_refused_or_its_untouched_members_are_byte_equal(
        self, method: str, result: str
    ) -> None:
        """The one property all rewriting has to keep."""
        self.check(method, result)

    @given(
        body=VALUES,
        method=st.sampled_from(["tools/call", "prompts/get", "resources/read", "completion/complete"]),
    )
    def test_so_does_one_with_the_right_payload(self, method: str, body: str) -> None:
        """The same, past the first check."""
        key = {"tools/call": "content", "prompts/get": "messages", "resources/read": "contents"}.get(method)
        payload = f'"{key}":[{body}]' if key else f'"completion":{{"values":[],"x":{body}}}'
        self.check(method, f'{{{payload},"x":{body}}}')

    def check(self, method: str, result: str) -> None:
        """Dress the result and compare what no rule names."""
        try:
            sent = b"".join(dress(method, result.encode(), namespace=GH, server_info=WE))
        except InvalidResult:
            return
        before, after = split(result.encode()), split(sent)
        owned = {"resultType", "_meta", "ttlMs", "cacheScope"} | READ_MEMBERS
        assert {k: bytes(v) for k, v in before.items() if k not in owned} == {
            k: bytes(v) for k, v in after.items() if k not in owned
        }
        assert bytes(after["resultType"]) == b'"complete"'
        bare = b"".join(dress(method, result.encode(), namespace=BARE, server_info=WE))
        # Without a prefix the only change is that nulls vanish: what is left says the same.
        assert without_nulls(msgspec_value(bare), owned) == without_nulls(
            msgspec_value(result.encode()), owned
        )


def msgspec_value(raw: bytes) -> Any:
    """Return the text decoded with every number kept as its text."""
    return json.loads(raw, parse_int=str, parse_float=str)


def without_nulls(value: Any, owned: set[str]) -> Any:
    """Return the value without its null members, and on top without those that were the gateway's to set."""
    cleaned = _cleaned(value)
    skipped = owned - READ_MEMBERS
    return {key: inner for key, inner in cleaned.items() if key not in skipped and inner != []}


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cleaned(inner) for key, inner in value.items() if inner is not None}
    return [_cleaned(inner) for inner in value] if isinstance(value, list) else value


def test_a_raw_view_is_as_good_as_bytes() -> None:
    """A reply holds its result as a view into the whole message."""
    message = b'{"id":1,"result": {"content":[]} }'
    raw = msgspec.json.decode(message, type=dict[str, msgspec.Raw])["result"]
    as_view = dress("tools/call", raw, namespace=GH, server_info=WE)
    assert as_view == dress("tools/call", bytes(raw), namespace=GH, server_info=WE)


def test_invalid_results_are_malformed_messages() -> None:
    """Whoever guards against a broken upstream needs one except clause."""
    assert issubclass(InvalidResult, Malformed)
