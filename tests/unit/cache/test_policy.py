"""What the cache's rules decide: hints, keys, verdicts, topics."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.policy import (
    CALL,
    EVERYONE,
    Entry,
    Hints,
    Lookup,
    Rules,
    Verdict,
    ancestors,
    bounded,
    call_target,
    context,
    cost_of,
    hints_of,
    judge,
    list_key,
    may_coalesce,
    may_stand_in,
    may_store,
    private_key,
    public_key,
    rules_for_call,
    storable,
    topic_of,
    topics_for,
    topics_of,
    ttl_of,
)
from gateway.protocol.call import MODERN_VERSION, Change, Partition, Scope, UpstreamName

GH = UpstreamName("gh")
ANN, BOB = Partition("ann"), Partition("bob")
LOOKUP = Lookup(GH, "settings", "tools/list", None, "profile", MODERN_VERSION, ANN, Rules())
READ = replace(LOOKUP, method="resources/read", target="file:///a")


def hinted(ttl: str, scope: str, rules: Rules | None = None, method: str = "tools/list") -> Hints:
    """Return the hints of a list with these raw JSON texts."""
    return hints_of(f'{{"tools":[],"ttlMs":{ttl},"cacheScope":{scope}}}'.encode(), rules or Rules(), method)


# ttlMs


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        ("300000", 300.0),
        ("300000.0", 300.0),
        ("3e5", 300.0),
        ("3E+5", 300.0),
        ("1", 0.001),
        ("0", 0.0),
        ("-0", 0.0),
        ("-5", 0.0),
        ("1000.5", 0.0),
        ("1e-1", 0.0),
        ("true", 0.0),
        ("false", 0.0),
        ('"300000"', 0.0),
        ("null", 0.0),
        ("NaN", 0.0),
        ("Infinity", 0.0),
        ("[300000]", 0.0),
        ("{}", 0.0),
        ("18446744073709551616", 86400.0),
        ("9" * 5000, 86400.0),
        ("1e400", 86400.0),
        ("1e99999999999", 0.0),
        ("1" + "0" * 80 + ".5", 0.0),
        ("٣٠٠", 0.0),
    ],
)
def test_a_ttl_is_a_whole_number_of_milliseconds_or_nothing(raw: str, seconds: float) -> None:
    """C-11 on the raw text, C-12 for what is beyond all measure."""
    assert ttl_of(raw.encode(), 86400.0) == seconds


def test_an_absent_ttl_is_nothing() -> None:
    """A-27."""
    assert ttl_of(None, 86400.0) == 0.0


@given(st.integers(0, 2**70))
def test_every_whole_number_is_taken_up_to_the_ceiling(milliseconds: int) -> None:
    """Also as an integral float, as Go and Lua write it."""
    expected = min(milliseconds / 1000, 60.0)
    assert ttl_of(str(milliseconds).encode(), 60.0) == pytest.approx(expected)
    assert ttl_of(f"{milliseconds}.0".encode(), 60.0) == pytest.approx(expected)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_fraction_is_refused(number: float) -> None:
    """Non-integral means 0, whichever way it is written."""
    if not number.is_integer():
        assert ttl_of(json.dumps(number).encode(), 60.0) == 0.0


@given(st.binary())
def test_any_bytes_as_ttl_give_a_number_within_bounds(raw: bytes) -> None:
    """Nothing that stands there can raise or last forever."""
    assert 0.0 <= ttl_of(raw, 60.0) <= 60.0


# Hints


@pytest.mark.parametrize(
    ("scope", "effective"),
    [
        ('"public"', "public"),
        ('"private"', "private"),
        ("null", "private"),
        ('"shared"', "private"),
        ('"Public"', "private"),
        ('"pub\\u006cic"', "public"),
        ('"\\ud800"', "private"),
        ("true", "private"),
        ('["public"]', "private"),
    ],
)
def test_only_the_word_public_is_public(scope: str, effective: str) -> None:
    """C-17, A-04: whatever else stands there is private."""
    assert hinted("5000", scope).scope == effective


def test_hints_left_out_mean_private_and_nothing() -> None:
    """B08's gamma: stored for nobody."""
    assert hints_of(b'{"tools":[]}', Rules(), "tools/list") == Hints(0.0, "private", complete=True, why="ttl")


def test_ttl_is_capped() -> None:
    """C-12: the cap also lowers what is emitted, since the entry holds it."""
    assert hinted("86400000", '"public"', Rules(max_ttl=60)).ttl == 60.0


def test_a_floor_lifts_only_what_is_lower_and_only_its_own_method() -> None:
    """The operator's min_ttl is per method."""
    rules = Rules(min_ttl={"tools/list": 60.0})
    assert hinted("30000", '"private"', rules).ttl == 60.0
    assert hinted("90000", '"private"', rules).ttl == 90.0
    assert hinted("30000", '"private"', rules, "prompts/list").ttl == 30.0


def test_a_cap_wins_over_a_floor() -> None:
    """Nothing lives longer than max_ttl."""
    assert hinted("0", '"private"', Rules(min_ttl={"tools/list": 60.0}, max_ttl=10.0)).ttl == 10.0


def test_what_lives_by_its_floor_alone_is_private() -> None:
    """A floor never makes anything shared that its upstream wanted asked for every time."""
    rules = Rules(min_ttl={"tools/list": 60.0})
    assert hinted("0", '"public"', rules) == Hints(60.0, "private", True, "private", ("min_ttl",))
    assert hinted("30000", '"public"', rules).scope == "public"


def test_a_floor_is_shared_where_the_operator_wrote_scope_public() -> None:
    """Both words stand in the configuration, side by side."""
    rules = Rules(min_ttl={"tools/list": 60.0}, scope="public")
    assert hinted("0", '"private"', rules) == Hints(60.0, "public", True, None, ("min_ttl", "scope"))


def test_the_operators_scope_overrides_both_ways() -> None:
    """`scope:` is the operator's own word about this upstream."""
    assert hinted("5000", '"public"', Rules(scope="private")).scope == "private"
    assert hinted("5000", '"private"', Rules(scope="public")).scope == "public"


def test_share_public_false_keeps_everything_private() -> None:
    """C-24; it narrows, so it also wins over a wider scope beside it."""
    expected = Hints(5.0, "private", True, "not-shared", ("share_public",))
    assert hinted("5000", '"public"', Rules(share_public=False)) == expected
    assert hinted("5000", '"public"', Rules(share_public=False, scope="public")) == expected


def test_what_a_process_of_one_caller_calls_public_is_that_callers_own() -> None:
    """Whatever it or the operator says: it knows of nobody else (C-24)."""
    expected = Hints(5.0, "private", True, "not-shared", ("isolation",))
    assert hinted("5000", '"public"', Rules(isolated=True)) == expected
    assert hinted("5000", '"public"', Rules(isolated=True, scope="public")) == expected


@pytest.mark.parametrize(
    ("ttl", "scope", "rules", "overrides"),
    [
        ("5000", '"public"', Rules(), ()),
        ("5000", '"private"', Rules(scope="private", share_public=False), ()),
        ("5000", '"public"', Rules(scope="public", min_ttl={"tools/list": 5.0}, max_ttl=5.0), ()),
        ("5000", '"public"', Rules(max_ttl=4.0), ("max_ttl",)),
        ("100000000", '"public"', Rules(), ("max_ttl",)),
        ("9" * 80, '"public"', Rules(), ("max_ttl",)),
        ("5000", '"public"', Rules(min_ttl={"tools/list": 9.0}, max_ttl=7.0), ("min_ttl",)),
        ("5000", '"public"', Rules(min_ttl={"tools/list": 9.0}, max_ttl=4.0), ("max_ttl",)),
        ("5000", '"public"', Rules(scope="private"), ("scope",)),
        ("5000", "null", Rules(scope="public"), ("scope",)),
        ("5000", '"private"', Rules(scope="public", share_public=False), ()),
        ("0", '"private"', Rules(min_ttl={"tools/list": 9.0}), ("min_ttl",)),
        ("0", '"public"', Rules(min_ttl={"tools/list": 9.0}), ("min_ttl",)),
    ],
)
def test_a_result_tells_which_settings_changed_it(
    ttl: str, scope: str, rules: Rules, overrides: tuple[str, ...]
) -> None:
    """And only those that did: a floor below the ttl, or a scope it had anyway, changed nothing."""
    assert hinted(ttl, scope, rules).overrides == overrides


# Results of calls

KEPT = Hints(60.0, "private", True, "private", ("calls",))
CALLS = rules_for_call(Rules(), ttl=60.0, scope="private")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (b'{"content":[]}', KEPT),
        (b'{"content":[],"isError":false}', KEPT),
        (b'{"content":[],"isError":null,"resultType":"complete"}', KEPT),
        (b'{"content":[],"ttlMs":9000,"cacheScope":"public"}', KEPT),
        (b'{"content":[],"isError":true}', Hints(0.0, "private", False, "error")),
        (b'{"content":[],"isError":1}', Hints(0.0, "private", False, "error")),
        (b'{"resultType":"input_required"}', Hints(0.0, "private", False, "incomplete")),
        (b'{"resultType":"task"}', Hints(0.0, "private", False, "incomplete")),
    ],
)  # fmt: skip
def test_a_calls_result_follows_the_operator_alone(result: bytes, expected: Hints) -> None:
    """Hints do not belong on it (C-02); failures and what is unfinished are not kept (C-03)."""
    assert hints_of(result, CALLS, "tools/call") == expected


def test_a_calls_result_is_shared_only_where_nothing_beside_it_forbids_that() -> None:
    """The scope of a call, the scope of its upstream, and share_public."""
    for rules, scope, expected in (
        (Rules(), "public", "public"),
        (Rules(scope="public"), "private", "private"),
        (Rules(scope="private"), "public", "private"),
        (Rules(share_public=False), "public", "private"),
    ):
        wanted: Scope = "public" if scope == "public" else "private"
        made = rules_for_call(rules, ttl=60.0, scope=wanted)
        assert hints_of(b'{"content":[]}', made, "tools/call").scope == expected
    assert (
        hints_of(b"{}", rules_for_call(Rules(max_ttl=9.0), ttl=60.0, scope="public"), "tools/call").ttl == 9.0
    )


def test_equal_calls_are_one_however_they_are_spelled() -> None:
    """Canonical arguments: order, spaces, escapes and exponents do not split."""
    spellings = [rb'{"b":[1, 2],"a":"\u00e9"}', '{ "a" : "é", "b":[1,2] }'.encode()]
    assert len({call_target({"name": b'"t"', "arguments": one}) for one in spellings}) == 1
    others = [b'{"a":1}', b'{"a":1.0}', b'{"a":"1"}', b'{"a":true}', b'{"a":null}', b"{}", b'{"a":[1]}']
    targets = [call_target({"name": b'"t"', "arguments": one}) for one in others]
    targets += [
        call_target({"name": b'"t"'}),
        call_target({"name": b'"u"'}),
        call_target({"name": b'"t"', "x": b"1"}),
    ]
    assert None not in targets
    assert len(set(targets)) == len(targets)


@pytest.mark.parametrize(
    "arguments",
    [
        b'{"a":1,"a":2}',
        rb'{"x":[{"a":1,"\u0061":2}]}',
        b'{"a":0.10000000000000000001}',
        b'{"a":18446744073709551616}',
        b'{"a":-0}',
        b'{"a":1e999}',
        b'{"a":1e99999999999999999999}',
        b'{"a":1e-99999999999999999999}',
        rb'{"a":"\ud800"}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"a":"' + b"x" * 70_000 + b'"}',
    ],
    ids=lambda raw: raw[:24].decode(),
)
def test_a_call_that_could_be_read_in_two_ways_is_never_kept(arguments: bytes) -> None:
    """Else whoever sends both readings at once would choose what others are answered (B54)."""
    assert call_target({"name": b'"t"', "arguments": arguments}) is None


def test_a_change_of_the_tools_drops_their_results() -> None:
    """Another definition may mean another answer; changes of other lists do not matter."""
    lookup = replace(LOOKUP, method="tools/call", target="{}", rules=CALLS)
    assert touched(Change(GH, "tools/list"), lookup)
    assert touched(Change(GH, "tools/call"), lookup)
    assert touched(Change(GH), lookup)
    assert not touched(Change(GH, "prompts/list"), lookup)
    assert not touched(Change(GH, "tools/call"), LOOKUP)


@pytest.mark.parametrize("result_type", ['"input_required"', '"task"', '"Complete"', "1", '"\\ud800"', "{}"])
def test_an_unfinished_result_is_not_cacheable(result_type: str) -> None:
    """C-03, whatever hints stand beside it."""
    raw = f'{{"resultType":{result_type},"ttlMs":5000,"cacheScope":"public"}}'.encode()
    assert hints_of(raw, Rules(), "resources/read") == Hints(0.0, "private", complete=False, why="incomplete")


@pytest.mark.parametrize("result_type", ['"complete"', "null"])
def test_a_result_is_complete_when_it_says_so_or_nothing(result_type: str) -> None:
    """E-09, A-26."""
    assert hints_of(f'{{"resultType":{result_type}}}'.encode(), Rules(), "tools/list").complete


@given(st.binary())
def test_any_bytes_as_result_give_hints(raw: bytes) -> None:
    """What is no object is handed on as it is, and never stored."""
    assert not hints_of(raw, Rules(min_ttl={"tools/list": 60.0}), "tools/list").complete or raw.strip()


# Keys


def test_every_part_of_a_lookup_tells_entries_apart() -> None:
    """C-04 to C-07: upstream, settings, method, cursor or uri, profile and version are all in the key."""
    lookups = [
        LOOKUP,
        replace(LOOKUP, upstream=UpstreamName("jira")),
        replace(LOOKUP, settings="other credential"),
        replace(LOOKUP, method="prompts/list"),
        replace(LOOKUP, target=""),
        replace(LOOKUP, target="2"),
        replace(LOOKUP, profile="with ui"),
        replace(LOOKUP, version="2025-11-25"),
    ]
    assert len({private_key(lookup) for lookup in lookups}) == len(lookups)
    assert len({public_key(lookup) for lookup in lookups}) == len(lookups)


def test_partitions_tell_private_keys_apart_and_public_ones_not() -> None:
    """C-20: one public arm for all, one private arm for each."""
    ann, bob = LOOKUP, replace(LOOKUP, partition=BOB)
    assert private_key(ann) != private_key(bob)
    assert public_key(ann) == public_key(bob)
    assert private_key(ann) != public_key(ann)


def test_a_caller_without_a_token_has_no_private_key() -> None:
    """C-19: there is no context to bind to."""
    anonymous = replace(LOOKUP, partition=None)
    assert context(anonymous) is None
    assert private_key(anonymous) is None


def test_in_a_single_tenant_deployment_all_without_a_token_are_one() -> None:
    """The operator's word that they are one person; a token still is another one."""
    rules = Rules(single_tenant=True)
    assert context(replace(LOOKUP, partition=None, rules=rules)) == EVERYONE
    assert context(replace(LOOKUP, rules=rules)) == ANN


@given(st.text(), st.text())
def test_keys_never_meet_by_running_together(left: str, right: str) -> None:
    """C-08: a key is a tuple, so a separator in a name separates nothing."""
    one = replace(LOOKUP, method="resources/read", target=left, profile=right)
    other = replace(LOOKUP, method="resources/read", target=left + right, profile="")
    assert (public_key(one) == public_key(other)) == (right == "")


def test_long_targets_are_kept_apart_and_never_meet_short_ones() -> None:
    """A uri of megabytes must not be remembered in full, nor be forged by one that spells its digest."""
    long, longer = "x" * 5000, "x" * 5001
    assert len({bounded(long), bounded(longer), bounded(long[:1024])}) == 3
    assert bounded(bounded(long)) != bounded(long)
    assert len(bounded(long)) < 1100


def test_all_pages_of_a_list_go_by_one_name() -> None:
    """C-23."""
    assert list_key(LOOKUP) == list_key(replace(LOOKUP, target="2", partition=None))
    assert list_key(LOOKUP) != list_key(replace(LOOKUP, method="prompts/list"))


# Verdicts


def entry(**changes: object) -> Entry:
    """Return an entry received at 1000 that lives 60 seconds."""
    return replace(Entry(b"{}", 1000.0, 60.0, "public", 3), **changes)  # type: ignore[arg-type]


def test_an_entry_is_fresh_while_its_ttl_lasts() -> None:
    """C-09: fresh while now < received + ttl."""
    assert judge(entry(), generation=3, now=1059.999) is Verdict.FRESH
    assert judge(entry(), generation=3, now=1060.0) is Verdict.EXPIRED
    assert judge(entry(ttl=0.0), generation=3, now=1000.0) is Verdict.EXPIRED
    assert judge(None, generation=3, now=1000.0) is Verdict.ABSENT


def test_a_change_makes_stale_at_once() -> None:
    """C-30: regardless of ttl."""
    assert judge(entry(), generation=4, now=1000.0) is Verdict.GENERATION


def test_what_may_stand_in_is_expired_for_less_than_the_bound_and_unchanged() -> None:
    """C-33: never while it is fresh, which is a hit, and never after a change."""
    for now, expected in ((1059.9, False), (1060.0, True), (1089.9, True), (1090.0, False)):
        assert may_stand_in(entry(), generation=3, now=now, bound=30.0) is expected
    assert not may_stand_in(entry(), generation=4, now=1060.0, bound=30.0)
    assert not may_stand_in(entry(), generation=3, now=1060.0, bound=0.0)


def test_remaining_milliseconds_shrink_and_are_rounded_down() -> None:
    """C-10: lifetime must not start anew at every hop, and is never negative."""
    assert entry().remaining_ms(1000.0) == 60_000
    assert entry().remaining_ms(1000.0005) == 59_999
    assert entry().remaining_ms(1059.9999) == 0
    assert entry().remaining_ms(2000.0) == 0


@given(st.floats(0, 1e7), st.integers(0, 86_400_000), st.floats(0, 1e6))
def test_remaining_never_exceeds_what_was_given(received: float, ttl_ms: int, later: float) -> None:
    """Not even by a rounding error."""
    kept = entry(received=received, ttl=ttl_ms / 1000)
    assert 0 <= kept.remaining_ms(received + later) <= ttl_ms


# Storing and sharing


def test_what_may_be_stored() -> None:
    """One reason from the closed set for everything that may not."""
    public = Hints(5.0, "public", complete=True)
    private = Hints(5.0, "private", complete=True, why="private")
    unshared = Hints(5.0, "private", complete=True, why="not-shared")
    assert may_store(public, owner=None, cost=10, largest=10) is None
    assert may_store(public, owner=None, cost=11, largest=10) == "too-large"
    assert may_store(private, owner=ANN, cost=1, largest=10) is None
    assert may_store(private, owner=None, cost=1, largest=10) == "anonymous"
    assert may_store(unshared, owner=ANN, cost=1, largest=10) is None
    assert may_store(unshared, owner=None, cost=1, largest=10) == "not-shared"
    assert may_store(replace(public, ttl=0.0), owner=ANN, cost=1, largest=10) == "ttl"
    assert may_store(replace(public, complete=False), owner=ANN, cost=1, largest=10) == "incomplete"


def test_what_may_be_shared_by_those_who_waited_for_it() -> None:
    """C-34, C-03: within a context, or public; never unfinished."""
    public, private = Hints(5.0, "public", complete=True), Hints(5.0, "private", complete=True)
    assert may_coalesce(public, owner=None, method="tools/list")
    assert may_coalesce(private, owner=ANN, method="tools/list")
    assert not may_coalesce(private, owner=None, method="tools/list")
    assert not may_coalesce(replace(public, complete=False), owner=ANN, method="tools/list")


def test_a_read_without_a_ttl_is_not_shared() -> None:
    """The second reader may have written after the first one asked; lists announce their changes."""
    at_once_stale = Hints(0.0, "public", complete=True)
    assert not may_coalesce(at_once_stale, owner=ANN, method="resources/read")
    assert may_coalesce(at_once_stale, owner=ANN, method="tools/list")


def test_an_entry_counts_for_more_than_its_result() -> None:
    """A million empty results are not for free."""
    key = public_key(LOOKUP)
    assert cost_of(key, entry(result=b"x" * 100)) == cost_of(key, entry(result=b"")) + 100
    assert cost_of(key, entry()) > 1000
    assert cost_of(key, entry(topics=(("resources/read", "u"),) * 100)) > 16_000


# Stored form


def test_hop_owned_meta_is_not_stored() -> None:
    """C-39: nothing request-specific is replayed; vendor members and every other byte stay."""
    raw = (
        b'{"a":1.0,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"u"},"vendor":null,'
        b'"progressToken":7},"b":18446744073709551616}'
    )
    assert storable(raw) == b'{"a":1.0,"_meta":{"vendor":null},"b":18446744073709551616}'
    assert storable(b'{"a":1,"_meta":{"progressToken":7}}') == b'{"a":1}'


@pytest.mark.parametrize("raw", [b'{ "a" : 1e2 }', b'{"_meta": {"vendor": 1}}', b'{"_meta":null}', b"{}"])
def test_what_holds_no_hop_owned_meta_is_stored_to_the_byte(raw: bytes) -> None:
    """B39."""
    assert storable(raw) == raw


# Topics


def touched(change: Change, lookup: Lookup, result: bytes = b"{}") -> bool:
    """Whether a change makes this result stale."""
    return not set(topics_of(change)).isdisjoint(topics_for(lookup, result, "private"))


def test_a_list_change_touches_that_list_only() -> None:
    """C-30, row by row."""
    assert touched(Change(GH, "tools/list"), LOOKUP)
    assert touched(Change(GH, "tools/list"), replace(LOOKUP, target="2", profile="other"))
    assert not touched(Change(GH, "prompts/list"), LOOKUP)
    assert not touched(Change(GH, "tools/list"), replace(LOOKUP, method="server/discover"))


def test_a_callers_change_touches_what_is_private_to_that_caller_only() -> None:
    """All of it or one method's, and never what others may have."""
    anns = replace(LOOKUP, partition=Partition("ann"))
    ann = Change(GH, partition=Partition("ann"))
    for lookup in (anns, replace(anns, method="resources/read", target="a:1"), replace(anns, method=CALL)):
        assert touched(ann, lookup)
        assert touched(replace(ann, method=lookup.method), lookup)
        assert not touched(replace(ann, method="server/discover"), lookup)
        assert not touched(replace(ann, partition=Partition("bob")), lookup)
        assert set(topics_of(ann)).isdisjoint(topics_for(lookup, b"{}", "public"))
    assert touched(replace(ann, method="resources/list"), replace(anns, method="resources/templates/list"))


def test_a_change_of_resources_touches_templates_too_but_no_read() -> None:
    """One notification stands for both lists."""
    change = Change(GH, "resources/list")
    assert touched(change, replace(LOOKUP, method="resources/list"))
    assert touched(change, replace(LOOKUP, method="resources/templates/list"))
    assert not touched(change, READ)
    assert not touched(Change(GH, "resources/templates/list"), replace(LOOKUP, method="resources/list"))


def test_an_update_touches_reads_of_that_uri_and_of_what_holds_it() -> None:
    """Reads of the uri, reads whose contents include it, and reads of what it is a part of."""
    update = Change(GH, "resources/read", "file:///a/b")
    assert touched(update, replace(READ, target="file:///a/b"))
    assert touched(update, replace(READ, target="file:///a"))
    assert touched(update, replace(READ, target="file:///a/"))
    assert not touched(update, replace(READ, target="file:///a/b/c"))
    assert not touched(update, replace(READ, target="file:///a/bc"))
    assert not touched(update, replace(LOOKUP, method="resources/list"))
    assert touched(update, replace(READ, target="x:y"), b'{"contents":[{"uri":"file:///a/b","text":""}]}')


def test_a_change_of_everything_touches_everything() -> None:
    """Reconnect, restart, other settings; and what nobody here can place, to be safe."""
    for change in (Change(GH), Change(GH, "notifications/new/kind"), Change(GH, "prompts/get")):
        for lookup in (LOOKUP, READ, replace(LOOKUP, method="server/discover")):
            assert touched(change, lookup)


def test_all_reads_are_touched_by_a_change_of_reads_without_a_uri() -> None:
    """So that a caller may drop them without knowing them."""
    assert touched(Change(GH, "resources/read"), READ)
    assert not touched(Change(GH, "resources/read"), LOOKUP)


def test_long_uris_are_touched_by_their_update() -> None:
    """What is cut in keys is cut the same way in topics."""
    uri = "file:///" + "x" * 5000
    assert touched(Change(GH, "resources/read", uri), replace(READ, target=uri))
    assert not touched(Change(GH, "resources/read", uri + "y"), replace(READ, target=uri))


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("file:///a/b", ("file:///a/", "file:///a")),
        ("https://h/a?q#f", ("https://h/a?q#", "https://h/a?q", "https://h/a?", "https://h/a", "https://h/", "https://h")),
        ("mem:a/b", ("mem:a/", "mem:a")),
        ("file:///a", ()),
        ("https://h", ()),
        ("", ()),
        ("no scheme", ()),
    ],
)  # fmt: skip
def test_ancestors_are_cut_at_path_query_and_fragment(uri: str, expected: tuple[str, ...]) -> None:
    """A scheme or a host is nobody's resource by itself."""
    assert ancestors(uri) == expected


@given(st.text(alphabet="a/:?#", max_size=300))
def test_ancestors_are_few_and_shorter(uri: str) -> None:
    """However a uri is made up, an update of it stays cheap."""
    found = ancestors(uri)
    assert len(found) <= 64
    assert all(uri.startswith(parent) and parent != uri for parent in found)


@given(st.binary())
def test_any_bytes_as_contents_give_topics(raw: bytes) -> None:
    """A broken result is stale by its own uri at least."""
    assert ("resources/read", "file:///a") in topics_for(READ, raw, "private")


@pytest.mark.parametrize("scope", ["public", "private"])
@pytest.mark.parametrize("method", ["tools/list", "resources/read", "tools/call"])
def test_what_lies_under_a_key_depends_on_the_topic_that_stands_for_it(method: str, scope: Scope) -> None:
    """Where a result cannot be deleted, a change of that topic makes it stale."""
    lookup = replace(READ, method=method, partition=Partition("ann"))
    key = public_key(lookup) if scope == "public" else private_key(lookup)
    assert key is not None
    assert topic_of(key) in topics_for(lookup, b"{}", scope)


def test_what_is_private_to_a_token_goes_by_its_bearers_name_too() -> None:
    """A server that keeps a session for each person tells of changes by that name, whatever the token."""
    topics = topics_for(replace(LOOKUP, caller=BOB), b'{"tools":[]}', "private")
    for change in (ANN, BOB):
        assert set(topics_of(Change(GH, "tools/list", partition=change))) & set(topics)
    assert not any(
        topic[:1] == ("caller",) for topic in topics_for(replace(LOOKUP, caller=BOB), b"{}", "public")
    )
