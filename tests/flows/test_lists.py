"""Lists of any length, page by page, in one order, with nothing in them changed (B05, B10, B11, B32)."""

import asyncio
import json

import pytest

from gateway.protocol.jsonrpc import items, split
from tests.support.running import MISSING, Clock, running
from tests.support.scripted import ScriptedUpstream, error, hang, result, status, tool

SEAL = {"keys": ["0123456789abcdef0123456789abcdef"]}


def many(count, start=0):
    return [tool(f"t{number}") for number in range(start, start + count)]


# Upstream pages


async def test_every_page_of_an_upstream_is_read():
    """67 tools over pages of 30: each once, in order, under one answer (B05)."""
    async with ScriptedUpstream(tools=many(67), page_size=30) as alpha, running({"alpha": alpha}) as gateway:
        listed = await gateway.ask("tools/list")
        assert listed.names == [f"alpha__t{number}" for number in range(67)]
        assert "nextCursor" not in listed.result
        assert [seen.params.get("cursor") for seen in alpha.seen("tools/list")] == [None, "at-30", "at-60"]
        assert (await gateway.ask("tools/call", {"name": "alpha__t66"})).text["tool"] == "t66"


async def test_an_upstream_that_never_ends_its_list_is_stopped():
    """The same page and cursor for ever: one copy of its tools, and the others' (B05)."""
    async with (
        ScriptedUpstream(tools=many(2)) as alpha,
        ScriptedUpstream() as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        page = {"tools": many(3), "nextCursor": "again", "ttlMs": 60000, "cacheScope": "public"}
        beta.on("tools/list", result(page))
        listed = await gateway.ask("tools/list")
        assert listed.names == ["alpha__t0", "alpha__t1", "beta__t0", "beta__t1", "beta__t2"]
        assert len(beta.seen("tools/list")) == 2
        assert listed.hints[1] == "public"


@pytest.mark.parametrize(("limit", "value", "asked"), [("list_pages", 4, 4), ("list_items", 6, 2)])
async def test_a_list_without_end_is_cut_at_the_limit(limit, value, asked):
    """A new cursor and new tools each time: a bound of pages and one of items (B05)."""
    async with ScriptedUpstream() as beta, running({"beta": beta}, limits={limit: value}) as gateway:

        async def endless(exchange):
            number = len(beta.seen("tools/list"))
            await result({"tools": many(3, start=3 * number), "nextCursor": f"c{number}"})(exchange)

        beta.on("tools/list", endless)
        assert len((await gateway.ask("tools/list")).names) == 3 * asked
        assert len(beta.seen("tools/list")) == asked


async def test_an_empty_cursor_is_a_cursor_and_an_empty_page_no_end():
    """`""` is valid, absent and null are the end (F-18)."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}) as gateway:
        alpha.once(
            "tools/list",
            result({"tools": many(1), "nextCursor": "x"}),
            result({"tools": [], "nextCursor": ""}),
            result({"tools": many(1, start=1), "nextCursor": None}),
        )
        assert (await gateway.ask("tools/list")).names == ["alpha__t0", "alpha__t1"]
        assert [seen.params.get("cursor") for seen in alpha.seen("tools/list")] == [None, "x", ""]


async def test_a_refused_upstream_cursor_restarts_that_list_once():
    """All its cached pages are dropped (C-26); a second refusal is the upstream's failure."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=many(3), page_size=2) as alpha,
        running({"alpha": alpha}, clock=clock) as gateway,
    ):
        alpha.once("tools/list", result({"tools": many(2), "nextCursor": "gone", "ttlMs": 60_000}))
        assert (await gateway.ask("tools/list", token="TOK-A")).names == [f"alpha__t{n}" for n in range(3)]
        assert [seen.params.get("cursor") for seen in alpha.seen("tools/list")] == [
            None,
            "gone",
            None,
            "at-2",
        ]
        clock.advance(61)
        alpha.on("tools/list", result({"tools": many(2), "nextCursor": "gone", "ttlMs": 60_000}))
        alpha.once(
            "tools/list", result({"tools": many(2), "nextCursor": "gone"}), error(-32602, "bad cursor")
        )
        alpha.once(
            "tools/list", result({"tools": many(2), "nextCursor": "gone"}), error(-32602, "bad cursor")
        )
        assert (await gateway.ask("tools/list", token="TOK-A")).code == -32602


async def test_a_failing_later_page_is_a_failing_upstream():
    """Half a list would hide tools without a word (B05, C-28)."""
    async with (
        ScriptedUpstream(tools=many(4), page_size=2) as alpha,
        ScriptedUpstream(tools=many(1)) as beta,
        running({"alpha": alpha, "beta": beta}) as gateway,
    ):
        alpha.once("tools/list", result({"tools": many(2), "nextCursor": "at-2"}), status(500))
        listed = await gateway.ask("tools/list")
        assert (listed.names, listed.missing, listed.hints) == (["beta__t0"], ["alpha"], (0, "private"))


async def test_order_does_not_depend_on_who_answers_first():
    """Configuration order, then each upstream's own (F-28)."""
    names = ["alpha", "beta", "gamma"]
    upstreams = {name: ScriptedUpstream(tools=many(2)) for name in names}
    async with upstreams["alpha"], upstreams["beta"], upstreams["gamma"]:
        for last in names:
            async with running(upstreams) as gateway:
                late = asyncio.Event()
                upstreams[last].once("tools/list", hang(late, then=result({"tools": many(2)})))
                asked = asyncio.create_task(gateway.ask("tools/list"))
                for name in names:
                    await upstreams[name].arrived("tools/list")
                late.set()
                assert (await asked).names == [f"{name}__t{n}" for name in names for n in range(2)]


async def test_a_name_listed_twice_stands_once():
    """Inside a page and across pages; the first counts (F-05)."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}) as gateway:
        first = [tool("a", description="first"), tool("a", description="second"), tool("b")]
        alpha.once(
            "tools/list",
            result({"tools": first, "nextCursor": "x"}),
            result({"tools": [tool("b", description="late"), tool("c")]}),
        )
        listed = await gateway.ask("tools/list")
        assert listed.names == ["alpha__a", "alpha__b", "alpha__c"]
        assert listed.items[0]["description"] == "first"


# Our own pages


async def test_a_long_merged_list_is_paged_and_complete():
    """Every page carries the whole's hints, and no item is lost or doubled (C-23, F-21)."""
    clock = Clock()
    async with (
        ScriptedUpstream(tools=many(5), ttl_ms=60_000) as alpha,
        ScriptedUpstream(tools=many(4), ttl_ms=90_000, scope="private") as beta,
        running({"alpha": alpha, "beta": beta}, clock=clock, limits={"page_size": 4}) as gateway,
    ):
        pages = await gateway.pages("tools/list", token="TOK-A")
        assert [len(page.names) for page in pages] == [4, 4, 1]
        assert [name for page in pages for name in page.names] == [
            *(f"alpha__t{n}" for n in range(5)),
            *(f"beta__t{n}" for n in range(4)),
        ]
        assert {page.hints for page in pages} == {(60_000, "private")}
        assert len(alpha.seen("tools/list")) == len(beta.seen("tools/list")) == 1


async def test_paging_goes_on_over_a_list_without_ttl_that_changes():
    """The snapshot is the caller's paging state, not a cache entry (F-21)."""
    async with (
        ScriptedUpstream(tools=many(5), ttl_ms=0, scope="private") as alpha,
        running({"alpha": alpha}, limits={"page_size": 2}) as gateway,
    ):
        first = await gateway.ask("tools/list", token="TOK-A")
        alpha.tools = [tool("other")]
        second = await gateway.ask("tools/list", {"cursor": first.result["nextCursor"]}, token="TOK-A")
        third = await gateway.ask("tools/list", {"cursor": second.result["nextCursor"]}, token="TOK-A")
        assert [*second.names, *third.names] == ["alpha__t2", "alpha__t3", "alpha__t4"]
        assert second.hints == third.hints == (0, "private")
        assert (await gateway.ask("tools/list", token="TOK-A")).names == ["alpha__other"]


async def test_a_page_of_a_partial_list_says_what_is_missing():
    """On every page, like a list in one piece (C-28)."""
    async with (
        ScriptedUpstream(tools=many(3)) as alpha,
        ScriptedUpstream(tools=many(3)) as beta,
        running({"alpha": alpha, "beta": beta}, limits={"page_size": 2}) as gateway,
    ):
        beta.on("tools/list", status(500))
        pages = await gateway.pages("tools/list")
        assert [page.missing for page in pages] == [["beta"], ["beta"]]
        assert [page.hints for page in pages] == [(0, "private")] * 2


@pytest.mark.parametrize(
    "cursor", ["", "at-2", "garbled", "A" * 5000, "é😀", 7, True, {}, [], "bGVnYWN5LWN1cnNvcg"]
)
async def test_a_cursor_that_is_not_ours_is_invalid_params(cursor):
    """A foreign or garbled one: -32602 so that the client starts anew (F-19, B05)."""
    async with ScriptedUpstream(tools=many(5)) as alpha, running({"alpha": alpha}) as gateway:
        refused = await gateway.ask("tools/list", {"cursor": cursor})
        assert (refused.status, refused.code) == (400, -32602)
        assert alpha.seen("tools/list") == []


async def test_a_null_cursor_is_none():
    """Null at an optional member counts as absent (E-26)."""
    async with ScriptedUpstream(tools=many(1)) as alpha, running({"alpha": alpha}) as gateway:
        assert (await gateway.ask("tools/list", {"cursor": None})).names == ["alpha__t0"]


async def test_a_cursor_belongs_to_its_caller_its_list_and_its_endpoint():
    """Nobody else pages on with it, nor with one that was touched (F-19)."""
    async with (
        ScriptedUpstream(tools=many(5), prompts=[{"name": f"p{n}"} for n in range(5)]) as alpha,
        running({"alpha": alpha}, limits={"page_size": 2}, endpoints={"/mcp": {}, "/other": {}}) as gateway,
    ):
        cursor = (await gateway.ask("tools/list", token="TOK-A")).result["nextCursor"]
        touched = cursor[:-3] + ("AAA" if not cursor.endswith("AAA") else "BBB")
        for method, options in (
            ("tools/list", {"token": "TOK-B"}),
            ("tools/list", {}),
            ("prompts/list", {"token": "TOK-A"}),
            ("tools/list", {"token": "TOK-A", "path": "/other"}),
        ):
            refused = await gateway.ask(method, {"cursor": cursor}, **options)
            assert (refused.status, refused.code) == (400, -32602), (method, options)
        assert (await gateway.ask("tools/list", {"cursor": touched}, token="TOK-A")).code == -32602
        assert (await gateway.ask("tools/list", {"cursor": cursor}, token="TOK-A")).names == [
            "alpha__t2",
            "alpha__t3",
        ]


async def test_a_cursor_works_on_any_replica():
    """Another process with the same keys has no snapshot; it reads the list anew and goes on (B05, F-20)."""
    async with ScriptedUpstream(tools=many(5)) as alpha:
        options = {"limits": {"page_size": 2}, "secrets": SEAL}
        async with running({"alpha": alpha}, **options) as one, running({"alpha": alpha}, **options) as two:
            cursor = (await one.ask("tools/list", token="TOK-A")).result["nextCursor"]
            page = await two.ask("tools/list", {"cursor": cursor}, token="TOK-A")
            assert page.names == ["alpha__t2", "alpha__t3"]
            last = await two.ask("tools/list", {"cursor": page.result["nextCursor"]}, token="TOK-A")
            assert last.names == ["alpha__t4"]


async def test_a_cursor_into_a_list_that_has_changed_is_refused_where_its_snapshot_is_lost():
    """Going on would skip or repeat items (F-20)."""
    async with ScriptedUpstream(tools=many(5)) as alpha:
        options = {"limits": {"page_size": 2}, "secrets": SEAL}
        async with running({"alpha": alpha}, **options) as one, running({"alpha": alpha}, **options) as two:
            cursor = (await one.ask("tools/list")).result["nextCursor"]
            alpha.tools = many(5, start=1)
            refused = await two.ask("tools/list", {"cursor": cursor})
            assert (refused.status, refused.code) == (400, -32602)


def heavy(kilobytes, name="t"):
    return [tool(f"{name}{number}", description="x" * kilobytes * 512) for number in range(2)]


async def test_a_list_too_large_for_a_snapshot_is_read_anew_for_every_page():
    """It is paged through all the same, as long as it stays as it is (F-20)."""
    async with (
        ScriptedUpstream(tools=heavy(700), ttl_ms=0) as alpha,
        running({"alpha": alpha}, cache={"memory": "1MiB"}, limits={"page_size": 1}) as gateway,
    ):
        pages = await gateway.pages("tools/list")
        assert [page.names for page in pages] == [["alpha__t0"], ["alpha__t1"]]
        alpha.tools = heavy(700, name="other")
        refused = await gateway.ask("tools/list", {"cursor": pages[0].result["nextCursor"]})
        assert (refused.status, refused.code) == (400, -32602)


async def test_snapshots_are_bounded_in_bytes():
    """Callers who never come back for their next page cannot fill the memory: the oldest go."""
    async with (
        ScriptedUpstream(scope="private", ttl_ms=0) as alpha,
        running({"alpha": alpha}, cache={"memory": "1MiB"}, limits={"page_size": 1}) as gateway,
    ):
        cursors = {}
        for number in range(4):
            alpha.tools = heavy(200, name=f"n{number}t")
            listed = await gateway.ask("tools/list", token=f"TOK-{number}")
            cursors[f"TOK-{number}"] = {"cursor": listed.result["nextCursor"]}
        alpha.tools = heavy(1)
        first = await gateway.ask("tools/list", cursors["TOK-0"], token="TOK-0")
        last = await gateway.ask("tools/list", cursors["TOK-3"], token="TOK-3")
        assert (first.code, last.names) == (-32602, ["alpha__n3t1"])


# What is in a list passes as it is (B10, B11, B32)

SCHEMAS = [
    b'{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","definitions":{"F":{"enum":["fit",'
    b'"raw"]}},"properties":{"f":{"$ref":"#/definitions/F"},"g":{"$ref":"#/properties/f"}},"dependencies":{},'
    b'"x-vendor":1,"additionalProperties":false}',
    b'{"type":"object","$defs":{"N":{"$anchor":"n","type":"integer","maximum":18446744073709551616}},"if":{},'
    b'"then":{"$dynamicRef":"#n"},"else":false,"default":1.0,"examples":[1e2,-0,null]}',
    b'{"$ref":"https://example.invalid/s.json","type":"object"}',
    b'{"type":"object","properties":{"p":true}}',
    b'{"type":"object","properties":{"n":{"type":"int"},"\xc3\xa9":{"const":"\\u00e9"}}}',
]


def page_of(*tools):
    """Answer tools/list with exactly these texts."""

    async def behave(exchange):
        body = b'{"jsonrpc":"2.0","id":%d,"result":{"resultType":"complete","tools":[%s],' % (
            exchange.id,
            b",".join(tools),
        )
        body += b'"ttlMs":60000,"cacheScope":"public"}}'
        await exchange.respond(200, {"Content-Type": "application/json"}, [body], length=len(body))

    return behave


async def test_schemas_pass_to_the_byte():
    """No keyword is lost, renamed, inlined or fetched; valid but unusual ones too (B10, B11)."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}) as gateway:
        alpha.on(
            "tools/list",
            page_of(
                *(
                    b'{"name":"t%d","inputSchema":%s,"outputSchema":%s}' % (number, schema, schema)
                    for number, schema in enumerate(SCHEMAS)
                )
            ),
        )
        for _ in range(2):  # fetched, and from the cache
            listed = await gateway.ask("tools/list")
            raw = [split(element) for element in items(listed.raw_result["tools"])]
            assert [bytes(item["inputSchema"]) for item in raw] == SCHEMAS
            assert [bytes(item["outputSchema"]) for item in raw] == SCHEMAS
        assert len(alpha.seen("tools/list")) == 1


async def test_a_schema_that_says_object_in_its_own_way_passes():
    """The specification wants `type` at the root, B11 wants such a schema passed: it is not ours to mend."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}) as gateway:
        schema = {"anyOf": [{"type": "object"}]}
        alpha.on("tools/list", result({"tools": [tool("a", inputSchema=schema), tool("b")]}))
        listed = await gateway.ask("tools/list", judged=False)
        assert listed.names == ["alpha__a", "alpha__b"]
        assert listed.items[0]["inputSchema"] == schema


async def test_a_broken_tool_affects_itself_only():
    """Left out, counted and shown in the status with its reason (B11, U-08)."""
    broken = [
        b'{"name":"no-schema"}',
        b'{"name":"null-schema","inputSchema":null}',
        b'{"inputSchema":{"type":"object"}}',
        b"7",
        b'{"name":"bad-header","inputSchema":{"type":"object","properties":{"a":{"type":"number",'
        b'"x-mcp-header":"A"}}}}',
    ]
    fine = [b'{"name":"ok%d","inputSchema":%s}' % (n, schema) for n, schema in enumerate(SCHEMAS)]
    async with (
        ScriptedUpstream(tools=[tool("b")]) as beta,
        ScriptedUpstream() as alpha,
        running({"alpha": alpha, "beta": beta}, admin="127.0.0.1:0") as gateway,
    ):
        alpha.on("tools/list", page_of(*broken[:3], *fine, *broken[3:]))
        listed = await gateway.ask("tools/list")
        assert listed.names == [*(f"alpha__ok{n}" for n in range(len(fine))), "beta__b"]
        assert listed.missing == []
        assert await gateway.counted('excluded_tools{upstream="alpha"}') == len(broken)
        _, status_json = await gateway.admin("/status.json")
        excluded = status_json["upstreams"]["alpha"]["excluded"]
        assert {item["item"] for item in excluded} >= {"no-schema", "null-schema", "bad-header"}
        assert (await gateway.ask("tools/call", {"name": "alpha__bad-header"})).code == -32602


async def test_unknown_members_icons_and_vendor_meta_stay():
    """On tools, prompts, resources and templates (B32, K-02)."""
    extra = {
        "title": "T",
        "icons": [{"src": "https://x.example/i.png", "sizes": ["48x48"]}],
        "_meta": {"com.example/a": {"n": None}, "ui": {"other": 1}},
        "futureField": {"k": [1]},
    }
    hints = {"annotations": {"readOnlyHint": True, "x-more": 1}}
    async with (
        ScriptedUpstream(
            tools=[tool("a", **extra, **hints)],
            prompts=[{"name": "a", "arguments": [{"name": "q", "required": True, "x": 1}], **extra}],
            resources=[{"uri": "a:1", "name": "a", "size": 3, "annotations": {"priority": 0.5}, **extra}],
            templates=[{"uriTemplate": "a:{x}", "name": "a", **extra}],
        ) as alpha,
        running({"alpha": alpha}) as gateway,
    ):
        for method, original, key, exposed in (
            ("tools/list", alpha.tools[0], "name", "alpha__a"),
            ("prompts/list", alpha.prompts[0], "name", "alpha__a"),
            ("resources/list", alpha.resources[0], "uri", "alpha+a:1"),
            ("resources/templates/list", alpha.templates[0], "uriTemplate", "alpha+a:{x}"),
        ):
            (item,) = (await gateway.ask(method)).items
            assert item == {**original, key: exposed}, method
            assert json.dumps(item) == json.dumps({**original, key: exposed}), "member order"


async def test_known_optionals_that_are_null_are_not_sent_on():
    """Strict clients refuse them; a null anywhere else is data (E-27, E-28)."""
    async with ScriptedUpstream() as alpha, running({"alpha": alpha}) as gateway:
        alpha.on(
            "tools/list",
            page_of(
                b'{"name":"a","description":null,"title":null,"annotations":null,"_meta":null,"icons":null,'
                b'"outputSchema":null,"x":null,"inputSchema":{"type":"object","default":null}}'
            ),
        )
        (item,) = (await gateway.ask("tools/list")).items
        assert item == {"name": "alpha__a", "x": None, "inputSchema": {"type": "object", "default": None}}


async def test_an_apps_page_is_named_as_it_can_be_read():
    """A tool's `_meta.ui.resourceUri` leads through the gateway, in both spellings (F-12)."""
    meta = {"ui": {"resourceUri": "ui://w/1.html", "v": 1}, "ui/resourceUri": "ui://w/1.html"}
    async with (
        ScriptedUpstream(
            tools=[tool("a", _meta=meta)], resources=[{"uri": "ui://w/1.html", "name": "w"}]
        ) as alpha,
        running({"alpha": alpha}) as gateway,
    ):
        (item,) = (await gateway.ask("tools/list")).items
        exposed = item["_meta"]["ui"]["resourceUri"]
        assert exposed == item["_meta"]["ui/resourceUri"] == "ui://alpha/w/1.html"
        read = await gateway.ask("resources/read", {"uri": exposed})
        assert read.result["contents"][0]["uri"] == exposed
        assert (await alpha.arrived("resources/read")).header("mcp-name") == "ui://w/1.html"


async def test_what_a_gateway_behind_the_gateway_lacks_is_lacking_here_too():
    """By its path, and such a list is not kept: the client must learn that it is not whole (C-28)."""
    async with ScriptedUpstream(tools=[tool("a")]) as alpha, ScriptedUpstream() as dead:
        await dead.stop()
        async with (
            running({"alpha": alpha, "dead": dead}) as inner,
            running({"inner": {"url": inner.addresses.endpoints[0]}, "alpha": alpha}) as outer,
        ):
            listed = (await outer.ask("tools/list")).result
    assert listed["_meta"][MISSING] == ["inner/dead"]
    assert listed["ttlMs"] == 0
    assert [one["name"] for one in listed["tools"]] == ["inner__alpha__a", "alpha__a"]
