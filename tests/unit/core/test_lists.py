"""Lists: cut, given exposed names, joined; every other byte stays."""

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ToolRules
from gateway.core.lists import (
    Cursor,
    Item,
    Page,
    View,
    decode_cursor,
    encode_cursor,
    expose_item,
    exposed_items,
    join_parts,
    merge_pages,
    parse_page,
)
from gateway.core.router import Namespace, NameTable
from gateway.protocol.call import UpstreamName
from gateway.protocol.jsonrpc import Malformed, split
from gateway.protocol.methods import METHODS

ALPHA = Namespace(UpstreamName("alpha"), "alpha")
BETA = Namespace(UpstreamName("beta"), "beta")
BARE = Namespace(UpstreamName("bare"), "")

LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
KEYS = dict(zip(LISTS, ("name", "name", "uri", "uriTemplate"), strict=True))


def page(method: str, *items: str, more: str = "") -> Page:
    """Return the page an upstream answers with these items."""
    return parse_page(method, f'{{"{METHODS[method].items}":[{",".join(items)}]{more}}}'.encode())


def tool(name: str, more: str = "") -> str:
    return f'{{"name":{json.dumps(name)},"inputSchema":{{"type":"object"}}{more}}}'


def one(method: str, item: str) -> Item:
    (only,) = page(method, item).items
    return only


def exposed(method: str, item: str, key: str, describe: str | None = None) -> str:
    cut = one(method, item)
    return expose_item(method, cut, key, describe=describe, namespace=ALPHA).decode()


def by_key(method: str, items: Iterable[Item], **how: Any) -> dict[str, bytes]:
    return {key: text for _, key, text in exposed_items(method, items, **how)}


class TestPages:
    """What parse_page takes and what it leaves out."""

    def test_a_page_is_cut_into_items_in_order(self) -> None:
        """Order is the upstream's (F-28)."""
        cut = page("tools/list", tool("b"), tool("a"), more=',"ttlMs":5,"nextCursor":"c"')
        assert [item.key for item in cut.items] == ["b", "a"]
        assert cut.next_cursor == "c"
        assert cut.excluded == ()

    @pytest.mark.parametrize(
        ("more", "cursor"),
        [("", None), (',"nextCursor":null', None), (',"nextCursor":""', ""), (',"nextCursor":"ü\\n"', "ü\n")],
    )
    def test_only_an_absent_or_null_cursor_is_the_end(self, more: str, cursor: str | None) -> None:
        """F-18: the empty string is a cursor like any other."""
        assert page("tools/list", more=more).next_cursor == cursor

    @pytest.mark.parametrize("method", LISTS)
    @pytest.mark.parametrize("wrong", [None, "null", "{}", "5", '"x"', "true"])
    def test_a_page_without_its_array_is_malformed(self, method: str, wrong: str | None) -> None:
        """It says which member is wrong (K-04)."""
        member = METHODS[method].items
        body = "{}" if wrong is None else f'{{"{member}":{wrong}}}'
        with pytest.raises(Malformed, match=f"{member} is "):
            parse_page(method, body.encode())

    @pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"tools":[', b"[" * 100_000, b'{"tools":[]}x'])
    def test_what_is_no_object_is_malformed(self, body: bytes) -> None:
        """Whatever arrives, nothing else is raised."""
        with pytest.raises(Malformed):
            parse_page("tools/list", body)

    @pytest.mark.parametrize("wrong", ["5", "{}", "[]", "true"])
    def test_a_cursor_that_is_no_string_is_malformed(self, wrong: str) -> None:
        """A wrong type at a member that is read."""
        with pytest.raises(Malformed, match="nextCursor"):
            page("tools/list", more=f',"nextCursor":{wrong}')

    @given(st.sampled_from(LISTS), st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
    def test_any_bytes_give_a_page_or_malformed(self, method: str, body: bytes) -> None:
        """Also as the elements of the list."""
        member = (METHODS[method].items or "").encode()
        for text in (body, b'{"' + member + b'":[' + body + b"]}"):
            with suppress(Malformed):
                parse_page(method, text)

    @pytest.mark.parametrize(
        ("schema"),
        [
            '{"type":"object","properties":{"p":true}}',
            '{"anyOf":[{"type":"object"}]}',
            '{"type":"object","properties":{"n":{"type":"int"}}}',
            '{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"F":{}},"x-vendor":1.0}',
            '{"type":"object","properties":{"f":{"$ref":"https://example.invalid/s.json"}}}',
            '{"default":null,"properties":{"a":{"const":null,"title":null}}}',
            "{}",
        ],
    )
    def test_an_unusual_schema_passes_to_the_byte(self, schema: str) -> None:
        """B10, B11: schemas are opaque, their nulls too."""
        item = f'{{"name":"a","inputSchema":{schema},"outputSchema":{schema}}}'
        assert exposed("tools/list", item, "a") == item

    @pytest.mark.parametrize(
        ("broken", "label", "reason"),
        [
            ('{"name":"bad"}', "bad", "inputSchema"),
            ('{"name":"bad","inputSchema":null}', "bad", "null"),
            ('{"name":"bad","inputSchema":true}', "bad", "inputSchema"),
            ('{"name":"bad","inputSchema":{},"outputSchema":true}', "bad", "outputSchema"),
            ('{"name":"bad","inputSchema":{},"description":5}', "bad", "description"),
            ('{"name":"bad","inputSchema":{},"_meta":"x"}', "bad", "_meta"),
            ('{"name":5,"inputSchema":{}}', "item 1", "name"),
            ('{"inputSchema":{}}', "item 1", "name"),
            ("null", "item 1", "null"),
            ('"x"', "item 1", "str"),
            ("[" * 900 + "]" * 900, "item 1", "object"),
        ],
    )
    def test_a_broken_tool_affects_itself_only(self, broken: str, label: str, reason: str) -> None:
        """Its neighbours stay, since a client would refuse the whole list because of it (B11)."""
        cut = page("tools/list", tool("a"), broken, tool("b"), more=',"nextCursor":"c"')
        assert [item.key for item in cut.items] == ["a", "b"]
        assert cut.next_cursor == "c"
        ((name, why),) = cut.excluded
        assert name == label
        assert reason in why

    @pytest.mark.parametrize(
        ("method", "good", "broken"),
        [
            ("prompts/list", '{"name":"a","arguments":[{"name":"x"}]}', '{"name":"a","arguments":[{}]}'),
            ("resources/list", '{"uri":"a:b","name":"a","size":100}', '{"uri":"a:b","name":"a","title":1}'),
            ("resources/list", '{"uri":"a:b","name":""}', '{"uri":"a:b"}'),
            ("resources/list", '{"name":"a","uri":""}', '{"name":"a","uri":null}'),
            ("resources/templates/list", '{"uriTemplate":"a:{b}","name":"a"}', '{"uri":"a:b","name":"a"}'),
        ],
    )
    def test_every_kind_of_list_knows_what_clients_need(self, method: str, good: str, broken: str) -> None:
        """Not only tools."""
        cut = page(method, good, broken)
        assert len(cut.items) == len(cut.excluded) == 1
        assert exposed(method, good, cut.items[0].key) == good

    @pytest.mark.parametrize(
        ("method", "sent", "kept"),
        [
            (
                "tools/list",
                '"icons":[{"src":"a:b","theme":"blue","x":1.0},{"src":""},{"src":"s"},7,{"theme":"dark"}]',
                '"icons":[{"src":"a:b","x":1.0}]',
            ),
            ("tools/list", '"icons":[{"src":"a:b","sizes":"48x48","mimeType":1}]', '"icons":[{"src":"a:b"}]'),
            ("prompts/list", '"icons":[{"src":""},{}]', ""),
            ("prompts/list", '"icons":{"src":"a:b"}', ""),
            ("tools/list", '"annotations":[]', ""),
            (
                "tools/list",
                '"annotations":{"title":5,"readOnlyHint":true,"destructiveHint":"no","x":null}',
                '"annotations":{"readOnlyHint":true,"x":null}',
            ),
            ("tools/list", '"execution":{"taskSupport":"maybe","x":1}', '"execution":{"x":1}'),
            ("tools/list", '"execution":"x"', ""),
            (
                "resources/list",
                '"annotations":{"priority":2,"audience":["user"],"lastModified":"x"}',
                '"annotations":{"audience":["user"],"lastModified":"x"}',
            ),
            (
                "resources/templates/list",
                '"annotations":{"priority":0.50,"audience":["bot"]}',
                '"annotations":{"priority":0.50}',
            ),
            ("resources/list", '"annotations":{"priority":1e400}', '"annotations":{}'),
            ("resources/list", '"size":1.5', ""),
            ("resources/list", '"size":"1"', ""),
            ("resources/list", f'"size":{"9" * 5000}', ""),
            ("resources/list", '"size":1e400', ""),
            ("resources/list", '"size":18446744073709551616', ""),
        ],
    )
    def test_a_decoration_nobody_can_read_costs_itself_only(self, method: str, sent: str, kept: str) -> None:
        """Strict clients refuse the whole list over one; the item is as good without it (B11)."""
        bare = {
            "tools/list": '"name":"n","inputSchema":{}',
            "prompts/list": '"name":"n"',
            "resources/list": '"uri":"a:b","name":"n"',
            "resources/templates/list": '"uriTemplate":"a:{b}","name":"n"',
        }[method]
        cut = page(method, f'{{{bare},{sent},"z":1.0}}')
        (item,) = cut.items
        after = f"{bare},{kept}" if kept else bare
        assert expose_item(method, item, item.key, namespace=BARE).decode() == f'{{{after},"z":1.0}}'
        assert cut.excluded == ()
        ((key, reason),) = cut.trimmed
        assert key == item.key
        assert sent[1:5] in reason

    def test_what_else_is_wrong_with_a_trimmed_item_still_leaves_it_out(self) -> None:
        """And is what is told of it."""
        cut = page("tools/list", '{"name":"n","inputSchema":5,"icons":5}', tool("b"))
        assert [item.key for item in cut.items] == ["b"]
        assert cut.trimmed == ()
        ((name, reason),) = cut.excluded
        assert (name, "inputSchema" in reason) == ("n", True)

    @pytest.mark.parametrize("spelled", ["x-mcp-header", "\\u0078-mcp-header", "x-mcp-\\u0068eader"])
    def test_an_invalid_header_annotation_excludes_its_tool(self, spelled: str) -> None:
        """U-08, however the annotation is spelled; a valid one is kept for the calls to come."""
        schema = '"inputSchema":{"type":"object","properties":{"r":{"type":"%s","' + spelled + '":"Region"}}}'
        cut = page(
            "tools/list",
            tool("plain"),
            '{"name":"good",' + schema % "string" + "}",
            '{"name":"bad",' + schema % "number" + "}",
        )
        assert [item.key for item in cut.items] == ["plain", "good"]
        assert [name for name, _ in cut.excluded] == ["bad"]
        assert [[param.token for param in item.header_params] for item in cut.items] == [[], ["Region"]]

    @pytest.mark.parametrize("odd", ["9" * 5000, '{"a":' * 600 + "{}" + "}" * 600])
    def test_a_schema_is_decoded_only_where_annotations_are(self, odd: str) -> None:
        """What cannot be decoded passes; beside an annotation it costs that tool alone (B11)."""
        annotated = (
            '{"name":"good","inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"R"}}%s}}'
        )
        plain = f'{{"name":"odd","inputSchema":{{"default":{odd}}}}}'
        cut = page(
            "tools/list", annotated % "", plain, annotated.replace("good", "bad") % f',"default":{odd}'
        )
        assert [item.key for item in cut.items][:2] == ["good", "odd"]
        assert exposed("tools/list", plain, "odd") == plain

    def test_annotations_of_headers_mean_nothing_in_other_lists(self) -> None:
        """A resource may well describe them."""
        cut = page("resources/list", '{"uri":"a:b","name":"x-mcp-header"}')
        assert len(cut.items) == 1

    def test_duplicates_across_pages_are_kept_once(self) -> None:
        """F-05, B05: the first one, at its place."""
        first = page("tools/list", tool("a", ',"title":"1"'), tool("b"), tool("a", ',"title":"2"'))
        second = page("tools/list", tool("c"), tool("b", ',"title":"3"'))
        merged = merge_pages([first, second])
        assert [item.key for item in merged] == ["a", "b", "c"]
        assert bytes(merged[0].members["title"]) == b'"1"'
        assert "title" not in merged[1].members


class TestNulls:
    """E-28, E-27: which nulls go and which are data."""

    def test_known_optionals_that_are_null_are_dropped(self) -> None:
        """Strict clients refuse the whole list because of one."""
        item = (
            '{"name":"a","title":null,"description" : null ,'
            '"inputSchema":{"default":null},"outputSchema":null,'
            '"annotations":{"title":null,"readOnlyHint":true,"x":null},'
            '"icons":[{"src":"s:","mimeType":null,"sizes":null,"theme":null,"x":null},{"src":"t:"}],'
            '"_meta":null,"future":null}'
        )
        assert exposed("tools/list", item, "a") == (
            '{"name":"a","inputSchema":{"default":null},'
            '"annotations":{"readOnlyHint":true,"x":null},'
            '"icons":[{"src":"s:","x":null},{"src":"t:"}],'
            '"future":null}'
        )

    @pytest.mark.parametrize(
        ("method", "item", "kept"),
        [
            (
                "prompts/list",
                '{"name":"a","arguments":[{"name":"x","title":null,"required":null,"y":null}],"annotations":null}',
                '{"name":"a","arguments":[{"name":"x","y":null}],"annotations":null}',
            ),
            (
                "resources/list",
                '{"uri":"u","name":"a","mimeType":null,"size":null,'
                '"annotations":{"audience":null,"priority":null,"lastModified":null}}',
                '{"uri":"u","name":"a","annotations":{}}',
            ),
            (
                "resources/templates/list",
                '{"uriTemplate":"u","name":"a","mimeType":null,"icons":null,"size":null}',
                '{"uriTemplate":"u","name":"a","size":null}',
            ),
            (
                "tools/list",
                '{"name":"a","inputSchema":{},"icons":[ ]}',
                '{"name":"a","inputSchema":{},"icons":[ ]}',
            ),
        ],
    )
    def test_each_list_has_its_own_known_members(self, method: str, item: str, kept: str) -> None:
        """A member that a kind does not know is data there."""
        assert exposed(method, item, one(method, item).key) == kept

    @pytest.mark.parametrize("meta", ['{"com.example/a":null}', '{"ui":null}', '{"ui/resourceUri":null}'])
    def test_vendor_meta_keeps_its_nulls(self, meta: str) -> None:
        """Unknown `_meta` is nobody's business but its owner's."""
        item = tool("a", f',"_meta":{meta}')
        assert exposed("tools/list", item, "a") == item


class TestExposedItems:
    """What clients get of one item."""

    def test_only_the_name_changes(self) -> None:
        """Order, numbers, escapes, inner whitespace and unknown members stay (B32, B39)."""
        item = (
            '{"futureField":{"k":[1.0, 1e2]},"name":"search","inputSchema":{ "maximum":18446744073709551616},'
            '"title":"\\u00e4\\/","annotations":{"title":"T"},"icons":[{"src":"https://h/i"}],"_meta":{"a/b":-0}}'
        )
        assert exposed("tools/list", item, "alpha__search") == item.replace('"search"', '"alpha__search"')

    def test_a_resource_keeps_its_name_and_gets_its_uri(self) -> None:
        """Clients show the name and read the URI."""
        item = '{"name":"app","uri":"config:\\/\\/app","_meta":{"ui":{"csp":{},"resourceUri":"ui://x"}}}'
        assert exposed("resources/list", item, "alpha+config://app") == item.replace(
            "config:\\/\\/app", "alpha+config://app"
        )

    def test_a_description_of_the_operator_replaces_the_upstreams(self) -> None:
        """At its place, or at the end where there was none, or only a null."""
        assert exposed("tools/list", '{"description":"x","name":"a","inputSchema":{}}', "b", 'say "hi"') == (
            '{"description":"say \\"hi\\"","name":"b","inputSchema":{}}'
        )
        for missing in ("", ',"description":null'):
            assert exposed("tools/list", tool("a", missing), "b", "hi") == tool("b", ',"description":"hi"')

    def test_a_tool_points_to_its_app_by_the_exposed_uri(self) -> None:
        """F-12, K-09: in both places, with everything beside them untouched."""
        meta = '{"ui":{"visibility":["app"],"resourceUri":"ui://w/x","p":1.0},"ui/resourceUri":"ui:\\/\\/w","z":1}'
        assert exposed("tools/list", tool("a", f',"_meta":{meta}'), "a") == tool(
            "a",
            ',"_meta":{"ui":{"visibility":["app"],"resourceUri":"ui://alpha/w/x","p":1.0},'
            '"ui/resourceUri":"ui://alpha/w","z":1}',
        )

    def test_an_escaped_spelling_of_the_app_is_found_too(self) -> None:
        """JSON has many spellings of one key."""
        item = tool("a", ',"_meta":{"\\u0075i":{"resource\\u0055ri":"ui://w"}}')
        assert json.loads(exposed("tools/list", item, "a"))["_meta"] == {
            "ui": {"resourceUri": "ui://alpha/w"}
        }

    @pytest.mark.parametrize(
        "meta", ['{"ui":"resourceUri"}', '{"ui":{"resourceUri":5}}', '{"x":{"resourceUri":"ui://w"}}', "{ }"]
    )
    def test_what_only_looks_like_an_app_stays(self, meta: str) -> None:
        """F-13: no other `_meta` is rewritten."""
        item = tool("a", f',"_meta":{meta}')
        assert exposed("tools/list", item, "a") == item

    @given(
        st.sampled_from(LISTS),
        st.dictionaries(
            st.text(max_size=8).map("?{}".format),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                lambda inner: (
                    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
                ),
                max_leaves=6,
            ),
            max_size=5,
        ),
        st.text(max_size=10),
        st.text(max_size=10),
        st.booleans(),
    )
    def test_splicing_changes_nothing_else(
        self, method: str, unknown: dict[str, Any], key: str, new: str, escaped: bool
    ) -> None:
        """Unknown members keep their bytes and places, names are any Unicode in any spelling."""
        item = {**unknown, "name": "n", "inputSchema": {}, KEYS[method]: key}
        text = json.dumps(item, ensure_ascii=escaped)
        before = split(text.encode())
        raw = expose_item(method, one(method, text), new, namespace=BARE)
        after = split(raw)
        assert json.loads(raw) == {**item, KEYS[method]: new}
        assert list(after) == list(before)
        assert all(bytes(after[name]) == bytes(before[name]) for name in before if name != KEYS[method])


class TestParts:
    """Several upstreams' items as one list."""

    def test_tools_are_named_by_the_table_and_hidden_ones_left_out(self) -> None:
        """Configuration order, then the upstream's; the operator's descriptions on top."""
        items = page("tools/list", tool("b"), tool("hidden"), tool("a")).items
        names = NameTable(
            [(space, [item.key for item in items]) for space in (BETA, ALPHA)],
            upstream_rules={ALPHA.upstream: ToolRules(rename={"a": "z"}, describe={"b": "B"})},
            endpoint_rules=ToolRules(deny=["*hidden"]),
        )
        joined = join_parts(
            by_key("tools/list", items, namespace=space, names=names) for space in (BETA, ALPHA)
        )
        assert [item.decode() for item in joined] == [
            tool("beta__b"),
            tool("beta__a"),
            tool("alpha__b", ',"description":"B"'),
            tool("alpha__z"),
        ]

    def test_resources_and_templates_are_named_by_their_uri(self) -> None:
        """An https URI that two upstreams list stands once, where reading it leads (A-41)."""
        items = [
            page(
                "resources/list",
                '{"uri":"config://app","name":"a"}',
                f'{{"uri":"https://h","name":"{name}"}}',
            ).items
            for name in "xy"
        ]
        joined = join_parts(
            by_key("resources/list", part, namespace=space)
            for part, space in zip(items, (ALPHA, BETA), strict=True)
        )
        assert [(item["uri"], item["name"]) for item in map(json.loads, joined)] == [
            ("alpha+config://app", "a"),
            ("https://h", "x"),
            ("beta+config://app", "a"),
        ]
        templates = page("resources/templates/list", '{"uriTemplate":"file:///{p}","name":"t"}').items
        assert list(by_key("resources/templates/list", templates, namespace=ALPHA)) == ["alpha+file:///{p}"]


class TestViews:
    """What pages are cut from."""

    def view(self, *items: bytes) -> View:
        return View("tools/list", items, scope="public", expires=9.0)

    @given(st.integers(0, 12), st.integers(1, 14))
    def test_pages_hold_every_item_once(self, count: int, size: int) -> None:
        """In order, whatever the size of a page; the last page has no next one."""
        view = self.view(*(b"%d" % number for number in range(count)))
        found: list[int] = []
        offset: int | None = 0
        while offset is not None:
            body, offset = view.slice(offset, size)
            found += json.loads(body)
        assert found == json.loads(view.body) == list(range(count))

    def test_a_list_that_fits_is_joined_once(self) -> None:
        """The common case costs no copy."""
        view = self.view(b"1", b"2")
        assert view.slice(0, 2)[0] is view.body
        assert view.slice(1, 2) == (b"[2]", None)

    def test_a_digest_tells_lists_apart(self) -> None:
        """F-20: a cursor is good for the very list it was cut from, on every replica."""
        assert self.view(b"1", b"2").digest == self.view(b"1", b"2").digest
        assert self.view(b"1", b"2").digest != self.view(b"2", b"1").digest
        assert len(self.view().digest) == 32


class TestCursors:
    """The payload inside a sealed cursor."""

    @given(
        st.text(max_size=20),
        st.integers(0, 2**53 - 1),
        st.binary(min_size=32, max_size=32),
        st.text(max_size=20),
    )
    def test_a_cursor_survives_the_round_trip(
        self, method: str, offset: int, digest: bytes, endpoint: str
    ) -> None:
        """Nothing is lost on the way."""
        cursor = Cursor(method, offset, digest, endpoint)
        assert decode_cursor(encode_cursor(cursor)) == cursor

    @pytest.mark.parametrize(
        "broken",
        [
            b"",
            b"\xc0",
            encode_cursor(Cursor("m", 0, bytes(32), "e")) + b"\x00",
            encode_cursor(Cursor("m", 0, bytes(32), "e"))[:-1],
            encode_cursor(Cursor("m", -1, bytes(32), "e")),
            encode_cursor(Cursor("m", 0, bytes(31), "e")),
            encode_cursor(Cursor("m", 2**53, bytes(32), "e")),
            encode_cursor(Cursor("m", 0, bytes(32), "e")).replace(b"\x94", b"\x95", 1) + b"\xc0",
        ],
    )
    def test_anything_else_is_malformed(self, broken: bytes) -> None:
        """F-19: one exact shape."""
        with pytest.raises(Malformed):
            decode_cursor(broken)

    @given(st.binary(max_size=80))
    def test_any_bytes_are_a_cursor_or_malformed(self, payload: bytes) -> None:
        """Nothing else is raised."""
        with suppress(Malformed):
            assert isinstance(decode_cursor(payload), Cursor)


@pytest.mark.parametrize(
    ("meta", "missing"),
    [
        (b'{"mcp-gateway/missingUpstreams":["gh","inner/time"]}', ("gh", "inner/time")),
        (b'{"mcp-gateway/missingUpstreams":["ok",1,null,"no name","\\n"]}', ("ok",)),
        (b'{"mcp-gateway/missingUpstreams":"gh"}', ()),
        (b'{"mcp-gateway/missingUpstreams":null}', ()),
        (b'{"other":"mcp-gateway/missingUpstreams"}', ()),
        (b"null", ()),
    ],
)
def test_a_gateways_list_tells_what_it_lacks(meta: bytes, missing: tuple[str, ...]) -> None:
    """Names only: what else stands there is not repeated to clients, and breaks no list (B11)."""
    page = parse_page("tools/list", b'{"tools":[],"_meta":' + meta + b"}")
    assert page.missing == missing


class TestLargePages:
    """A page is looked at bit by bit, and no further than it is of use."""

    def test_items_beyond_the_most_are_not_looked_at(self) -> None:
        """Also when they are broken: nobody is told of them."""
        found = parse_page("tools/list", f'{{"tools":[{tool("a")},{tool("b")},5]}}'.encode(), 2)
        assert ([item.key for item in found.items], found.excluded, found.cut) == (["a", "b"], (), True)
        assert not parse_page("tools/list", f'{{"tools":[{tool("a")},{tool("b")}]}}'.encode(), 2).cut

    def test_a_large_page_reads_as_a_small_one_does(self) -> None:
        """Order, places of what was left out and every byte are the same."""
        texts = [tool(f"t{n}", ',"description":"' + "d" * 3000 + '"') for n in range(250)]
        texts[120] = "5"
        texts[249] = tool("last", ',"icons":7')
        whole = page("tools/list", *texts)
        singly = [page("tools/list", text) for text in texts if text != "5"]
        assert [dict(item.members) for item in whole.items] == [
            dict(item.members) for each in singly for item in each.items
        ]
        assert [label for label, _ in whole.excluded] == ["item 120"]
        assert [label for label, _ in whole.trimmed] == ["last"]

    def test_a_page_of_countless_values_is_refused(self) -> None:
        """Taking it apart would stop everything else."""
        with pytest.raises(Malformed, match="too much"):
            parse_page("tools/list", b'{"tools":[' + b"1," * 500_000 + b"1]}")
