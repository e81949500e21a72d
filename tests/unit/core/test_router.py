"""Names and URIs: out to the clients and back to the right upstream."""

import re
import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ToolRules
from gateway.core.router import (
    Collision,
    Namespace,
    NameTable,
    Shelf,
    UriTable,
    template_matches,
    uri_problem,
)
from gateway.protocol.call import UpstreamName

ALPHA, BETA, GAMMA = UpstreamName("alpha"), UpstreamName("beta"), UpstreamName("gamma")
STRICT = re.compile(r"[A-Za-z0-9_-]{1,64}")
LONG = "synchronise_all_customer_records_across_systems_and_regions"

any_text = st.text(st.characters(), max_size=90)  # every code point, lone surrogates and controls too
prefixes = st.from_regex(r"[a-z][a-z0-9-]{0,12}", fullmatch=True)
schemes = st.sampled_from(
    ["ui://", "UI://", "ui:", "http://", "HTTPS://", "data:", "file:///", "config://", "urn:", "mailto:", ""]
)
uris = st.builds(str.__add__, schemes, any_text)


def space(upstream: UpstreamName, prefix: str | None = None) -> Namespace:
    return Namespace(upstream, upstream if prefix is None else prefix)


class TestNames:
    """F-03, F-04, B03: what tools and prompts are called."""

    def test_a_plain_name_only_gets_the_prefix(self) -> None:
        """Nothing is changed that clients accept."""
        assert space(ALPHA).expose_name("get-User_2") == "alpha__get-User_2"
        assert space(ALPHA, "").expose_name("get-User_2") == "get-User_2"

    @pytest.mark.parametrize(
        "original", ["coding.start", "a/b", "größe", "name\n", "", "x" * 60, " ", "\ud800"]
    )
    def test_an_odd_name_becomes_legal(self, original: str) -> None:
        """Model APIs refuse anything else; a trailing newline must not slip through the pattern."""
        for prefix in ("alpha", ""):
            exposed = space(ALPHA, prefix).expose_name(original)
            assert STRICT.fullmatch(exposed)

    def test_a_cut_name_keeps_its_beginning_and_is_the_same_for_ever(self) -> None:
        """The hash is part of what clients and their users write down: it may never change."""
        exposed = space(UpstreamName("customer-internal-jira-onprem")).expose_name(LONG)
        assert exposed == "customer-internal-jira-onprem__synchronise_all_customer_6bb88011"
        assert space(ALPHA).expose_name("x.y") == "alpha__x_y_bc0518e5"

    def test_names_that_look_alike_when_made_legal_stay_apart(self) -> None:
        """`x.y` and `x/y` would both be `x_y` (B09)."""
        names = ["x.y", "x/y", "x_y", "x__y"]
        assert len({space(ALPHA).expose_name(name) for name in names}) == 4

    def test_the_spec_charset_keeps_dots(self) -> None:
        """`charset: spec` is for clients that take what the specification allows."""
        relaxed = Namespace(ALPHA, "alpha", max_length=128, charset="spec")
        assert relaxed.expose_name("coding.start") == "alpha__coding.start"
        assert relaxed.expose_name("x" * 121) == "alpha__" + "x" * 121
        assert len(relaxed.expose_name("x" * 122)) == 128

    @pytest.mark.parametrize(
        "bad",
        [
            {"prefix": "Team Docs / v2"},
            {"prefix": "a_b"},
            {"prefix": "a\n"},
            {"prefix": "x" * 32},
            {"separator": "."},
            {"separator": ""},
            {"max_length": 19},
        ],
    )
    def test_a_namespace_that_would_be_ambiguous_is_refused(self, bad: dict[str, str | int]) -> None:
        """F-02: a "+" or "/" in a prefix would make URIs irreversible."""
        with pytest.raises(ValueError, match=r"must|room"):
            Namespace(**{"upstream": ALPHA, "prefix": "alpha", **bad})  # type: ignore[arg-type]

    @given(any_text, prefixes | st.just(""), st.integers(20, 128), st.sampled_from(["strict", "spec"]))
    def test_every_name_fits(self, original: str, prefix: str, length: int, charset: str) -> None:
        """Whatever an upstream calls its tool, clients get something they accept."""
        namespace = Namespace(ALPHA, prefix, max_length=length, charset=charset)  # type: ignore[arg-type]
        exposed = namespace.expose_name(original)
        allowed = r"[A-Za-z0-9_-]+" if charset == "strict" else r"[A-Za-z0-9_.-]+"
        assert re.fullmatch(allowed, exposed)
        assert len(exposed) <= length
        assert exposed == namespace.expose_name(original)
        assert namespace.expose_name(original, taken={exposed}) != exposed


class TestNameTable:
    """B09: every exposed name means one tool of one upstream."""

    def test_equal_names_of_two_upstreams_both_stay_callable(self) -> None:
        """And removing one leaves the other's name as it was."""
        table = NameTable([(space(ALPHA), ["search"]), (space(BETA), ["search"])])
        assert table.resolve("alpha__search") == (ALPHA, "search")
        assert table.resolve("beta__search") == (BETA, "search")
        assert NameTable([(space(ALPHA), ["search"])]).exposed(ALPHA, "search") == "alpha__search"
        assert table.collisions == ()

    def test_an_unknown_name_resolves_to_nothing(self) -> None:
        """F-03: never routed on the split alone."""
        table = NameTable([(space(ALPHA), ["search"])])
        assert table.resolve("alpha__other") is None
        assert table.resolve("search") is None
        assert table.exposed(ALPHA, "other") is None
        assert table.exposed(BETA, "search") is None

    def test_without_prefixes_the_first_configured_keeps_a_contested_name(self) -> None:
        """The second gets a hash suffix and the operator is told; nothing depends on who answered first."""
        table = NameTable([(space(ALPHA, ""), ["search", "a"]), (space(BETA, ""), ["search", "b"])])
        other = table.exposed(BETA, "search")
        assert other is not None
        assert table.resolve("search") == (ALPHA, "search")
        assert table.resolve(other) == (BETA, "search")
        assert other == space(BETA, "").expose_name("search", taken={"search"})
        assert table.collisions == (Collision("search", (ALPHA, "search"), BETA, "search", other),)
        assert repr(table) == "<NameTable 4 names, 1 collisions>"

    def test_an_upstream_without_a_prefix_cannot_take_a_name_of_one_that_has_one(self) -> None:
        """Whoever approved `beta__pay` approved beta's tool, whatever else is configured before it."""
        table = NameTable([(space(ALPHA, ""), ["beta__pay"]), (space(BETA), ["pay"])])
        assert table.resolve("beta__pay") == (BETA, "pay")
        assert [collision.upstream for collision in table.collisions] == [ALPHA]

    def test_an_ambiguous_split_is_no_ambiguity_in_the_table(self) -> None:
        """With a separator that prefixes may hold too, `a` + `b-c` and `a-b` + `c` are one text."""
        one = Namespace(ALPHA, "a", separator="-")
        two = Namespace(BETA, "a-b", separator="-")
        table = NameTable([(one, ["b-c"]), (two, ["c"])])
        assert table.resolve("a-b-c") == (ALPHA, "b-c")
        assert table.resolve(table.exposed(BETA, "c") or "") == (BETA, "c")

    def test_a_name_that_looks_like_a_hashed_one_keeps_its_own(self) -> None:
        """The hashed one takes a longer hash, in whatever order the upstream lists them."""
        hashed = space(ALPHA).expose_name("x.y").removeprefix("alpha__")
        for names in (["x.y", hashed], [hashed, "x.y"]):
            table = NameTable([(space(ALPHA), names)])
            assert table.resolve(f"alpha__{hashed}") == (ALPHA, hashed)
            longer = table.exposed(ALPHA, "x.y") or ""
            assert re.fullmatch(r"alpha__x_y_[0-9a-f]{16}", longer)
            assert table.resolve(longer) == (ALPHA, "x.y")

    def test_rename_gives_the_base_name(self) -> None:
        """The prefix stays; what the upstream later calls like the new name does not take it over."""
        rules = {ALPHA: ToolRules(rename={"search": "find"})}
        table = NameTable([(space(ALPHA), ["find", "search"])], upstream_rules=rules)
        assert table.resolve("alpha__find") == (ALPHA, "search")
        assert table.resolve("alpha__search") is None
        assert table.resolve(table.exposed(ALPHA, "find") or "") == (ALPHA, "find")
        assert len(table.collisions) == 1

    def test_upstream_rules_use_original_names_and_endpoint_rules_exposed_ones(self) -> None:
        """Both hide a tool so that it cannot be told from one that does not exist (F-08)."""
        table = NameTable(
            [(space(ALPHA), ["read", "drop", "nuke"]), (space(BETA), ["drop"])],
            upstream_rules={ALPHA: ToolRules(deny=["drop"])},
            endpoint_rules=ToolRules(deny=["alpha__nuke"]),
        )
        assert list(table) == ["alpha__read", "beta__drop"]
        assert len(table) == 2
        assert table.resolve("alpha__drop") is None
        assert table.exposed(ALPHA, "nuke") is None

    def test_an_endpoint_renames_whole_exposed_names(self) -> None:
        """Its new names carry no prefix, may be exchanged, and win over what upstreams call so."""
        swap = {"alpha__a": "beta__b", "beta__b": "alpha__a"}
        table = NameTable(
            [(space(ALPHA), ["a"]), (space(BETA), ["b", "c"]), (space(GAMMA, ""), ["find"])],
            endpoint_rules=ToolRules(rename={**swap, "beta__c": "find"}),
        )
        assert table.resolve("beta__b") == (ALPHA, "a")
        assert table.resolve("alpha__a") == (BETA, "b")
        assert table.resolve("find") == (BETA, "c")
        assert table.resolve(table.exposed(GAMMA, "find") or "") == (GAMMA, "find")
        assert table.resolve("beta__c") is None

    def test_a_renamed_name_is_made_legal_too(self) -> None:
        """What the operator wrote is no reason for a client to refuse the list."""
        table = NameTable(
            [(space(ALPHA), ["a", "b"])],
            upstream_rules={ALPHA: ToolRules(rename={"a": "x.y"})},
            endpoint_rules=ToolRules(rename={"alpha__b": "x" * 65}),
        )
        assert all(STRICT.fullmatch(name) for name in table)
        assert {table.resolve(name) for name in table} == {(ALPHA, "a"), (ALPHA, "b")}

    def test_descriptions_come_from_the_endpoint_before_the_upstream(self) -> None:
        """Keys are the names before the rename that stands beside them."""
        table = NameTable(
            [(space(ALPHA), ["a", "b", "c"])],
            upstream_rules={ALPHA: ToolRules(describe={"a": "upstream", "b": "upstream"}, rename={"a": "z"})},
            endpoint_rules=ToolRules(describe={"alpha__z": "endpoint"}, rename={"alpha__z": "y"}),
        )
        assert table.exposed(ALPHA, "a") == "y"
        assert table.description(ALPHA, "a") == "endpoint"
        assert table.description(ALPHA, "b") == "upstream"
        assert table.description(ALPHA, "c") is None

    @given(st.dictionaries(prefixes | st.just(""), st.lists(any_text, max_size=6), max_size=4))
    def test_every_name_leads_back(self, catalogue: Mapping[str, list[str]]) -> None:
        """resolve(exposed(upstream, name)) is (upstream, name) for whatever upstreams list."""
        parts = [(space(UpstreamName(f"u{key}"), key), names) for key, names in catalogue.items()]
        table = NameTable(parts)
        for namespace, names in parts:
            for name in names:
                exposed = table.exposed(namespace.upstream, name)
                assert exposed is not None
                assert STRICT.fullmatch(exposed)
                assert table.resolve(exposed) == (namespace.upstream, name)
        assert list(table) == list(NameTable([(part, reversed(names)) for part, names in parts]))

    @given(st.sets(prefixes, min_size=1, max_size=4), st.sets(any_text, max_size=6))
    def test_removing_an_upstream_changes_no_name_of_the_others(
        self, keys: set[str], names: set[str]
    ) -> None:
        """A reload must not rename what clients have learnt (B09)."""
        parts = [(space(UpstreamName(key)), sorted(names)) for key in sorted(keys)]
        whole, less = NameTable(parts), NameTable(parts[1:])
        for namespace, _ in parts[1:]:
            for name in names:
                assert less.exposed(namespace.upstream, name) == whole.exposed(namespace.upstream, name)


class TestUris:
    """F-09, F-10: reversible from the text alone."""

    @pytest.mark.parametrize(
        ("original", "exposed"),
        [
            ("file:///x", "alpha+file:///x"),
            ("config://app", "alpha+config://app"),
            ("urn:isbn:0451450523", "alpha+urn:isbn:0451450523"),
            ("mailto:ann@example.com", "alpha+mailto:ann@example.com"),
            ("no scheme at all", "alpha+no scheme at all"),
            ("FILE:///%7e/Ä/../é", "alpha+FILE:///%7e/Ä/../é"),
            ("alpha+file:///x", "alpha+alpha+file:///x"),
            ("https://example.com/%7Ea?b#c", "https://example.com/%7Ea?b#c"),
            ("HTTP://EXAMPLE.com", "HTTP://EXAMPLE.com"),
            ("data:,x", "data:,x"),
            ("httpx://y", "alpha+httpx://y"),
            ("ui://app/index.html", "ui://alpha/app/index.html"),
            ("UI://app", "UI://alpha/app"),
            ("ui://", "ui://alpha/"),
            ("ui:app", "alpha+ui:app"),
        ],
    )
    def test_the_form_follows_the_scheme(self, original: str, exposed: str) -> None:
        """Hosts insist on ui:, clients may fetch https: themselves, all else becomes a scheme of ours."""
        assert space(ALPHA).expose_uri(original) == exposed
        assert space(ALPHA).original_uri(exposed) == original

    @pytest.mark.parametrize(
        "foreign", ["beta+file:///x", "alpha", "file:///x", "ui://beta/x", "ui://alpha", ""]
    )
    def test_what_another_namespace_exposes_is_none_of_ours(self, foreign: str) -> None:
        """F-17: the inverse never claims a URI that the namespace cannot have made."""
        assert space(ALPHA).original_uri(foreign) is None

    @given(uris, prefixes | st.just(""))
    def test_any_uri_survives_the_round_trip(self, uri: str, prefix: str) -> None:
        """Byte exact, whatever it is."""
        namespace = space(ALPHA, prefix)
        assert namespace.original_uri(namespace.expose_uri(uri)) == uri
        assert namespace.original_template(namespace.expose_template(uri)) == uri

    @given(uris, st.sets(prefixes, min_size=2, max_size=5))
    def test_an_exposed_uri_belongs_to_one_namespace_only(self, uri: str, keys: set[str]) -> None:
        """Without any catalogue, a link is read from the upstream that it came from (F-14)."""
        spaces = [space(UpstreamName(key)) for key in sorted(keys)]
        table = UriTable(Shelf(namespace) for namespace in spaces)
        for namespace in spaces:
            exposed = namespace.expose_uri(uri)
            if exposed != uri:
                assert table.resolve(exposed) == (namespace.upstream, uri)

    @pytest.mark.parametrize(
        ("template", "exposed"),
        [
            ("file:///{path}", "alpha+file:///{path}"),
            ("ui://{app}/x", "ui://alpha/{app}/x"),
            ("https://h/{x}", "https://h/{x}"),
            ("{+uri}", "alpha+{+uri}"),
            ("htt{x}://y", "alpha+htt{x}://y"),
            ("ui:/{x}", "alpha+ui:/{x}"),
        ],
    )
    def test_a_template_gets_the_form_its_literal_start_decides(self, template: str, exposed: str) -> None:
        """A variable where the scheme should be gets the prefix in front."""
        assert space(ALPHA).expose_template(template) == exposed

    @given(
        st.sampled_from(["file:///a", "ui://", "https://h/", "urn:", "x", "data:,"]),
        st.text(max_size=20),
        prefixes,
    )
    def test_expanding_the_exposed_template_exposes_the_expansion(
        self, start: str, value: str, prefix: str
    ) -> None:
        """F-10, and the expansion of a template that starts with a variable leads back all the same."""
        namespace = space(ALPHA, prefix)
        expansion = namespace.expose_template(start + "{v}").replace("{v}", value)
        assert expansion == namespace.expose_uri(start + value)
        assert namespace.original_uri(namespace.expose_template("{v}").replace("{v}", value)) == value

    @pytest.mark.parametrize(
        ("uri", "problem"),
        [
            ("config://app", None),
            ("no scheme, größer", None),
            ("", "empty"),
            ("x" * 8192, None),
            ("x" * 8193, "longer"),
            ("ä" * 4097, "longer"),
            ("file:///a\nb", "control"),
            ("file:///a\x00", "control"),
            ("file:///\x7f", "control"),
            ("file:///\ud800", "control"),
        ],
    )
    def test_a_uri_is_checked_before_it_is_looked_up(self, uri: str, problem: str | None) -> None:
        """F-17: bounded and printable; anything an upstream might list passes."""
        found = uri_problem(uri)
        assert (found is None) if problem is None else (found is not None and problem in found)


class TestUriTable:
    """F-11, B35: whom an exposed URI is read from."""

    def test_equal_uris_of_two_upstreams_reach_their_own(self) -> None:
        """Neither shadows the other, listed or expanded from a template."""
        table = UriTable(Shelf(space(name), ["config://app"], ("file:///{path}",)) for name in (ALPHA, BETA))
        assert table.resolve("alpha+config://app") == (ALPHA, "config://app")
        assert table.resolve("beta+config://app") == (BETA, "config://app")
        assert table.resolve("beta+file:///a/b") == (BETA, "file:///a/b")
        assert table.resolve("ui://beta/x") == (BETA, "ui://x")
        assert table.collisions == ()

    def test_a_namespace_that_is_not_served_here_owns_nothing(self) -> None:
        """F-08: it cannot be told from one that does not exist."""
        table = UriTable([Shelf(space(ALPHA))])
        for uri in ("beta+file:///x", "ui://beta/x", "alpha", "file:///x"):
            assert table.resolve(uri) is None
        assert UriTable([]).resolve("https://h/x") is None

    def test_an_unchanged_uri_goes_by_provenance(self) -> None:
        """Listed, then seen, then template, then configuration order."""
        table = UriTable(
            [
                Shelf(space(ALPHA), ["https://h/a", "https://h/both"]),
                Shelf(space(BETA), ["https://h/b", "https://h/both"], ("https://h/{x}/t",)),
                Shelf(space(GAMMA), ["file:///x"], ("https://h/{x}/t",)),
            ]
        )
        seen = {
            "https://h/b": GAMMA,
            "https://h/1/t": GAMMA,
            "https://h/s": GAMMA,
            "https://h/u": UpstreamName("x"),
        }
        assert table.resolve("https://h/b", seen=seen) == (BETA, "https://h/b")
        assert table.resolve("https://h/s", seen=seen) == (GAMMA, "https://h/s")
        assert table.resolve("https://h/1/t", seen=seen) == (GAMMA, "https://h/1/t")
        assert table.resolve("https://h/1/t") == (BETA, "https://h/1/t")
        assert table.resolve("https://h/u", seen=seen) == (ALPHA, "https://h/u")
        assert table.resolve("https://h/both") == (ALPHA, "https://h/both")
        assert table.collisions == (
            Collision("https://h/both", (ALPHA, "https://h/both"), BETA, "https://h/both", "https://h/both"),
        )
        assert repr(table) == "<UriTable 3 upstreams, 1 collisions>"

    def test_an_upstream_without_a_prefix_gets_what_no_prefix_claims(self) -> None:
        """Beside it, a prefix still decides alone, whatever the other lists."""
        table = UriTable([Shelf(space(ALPHA, ""), ["file:///x", "beta+file:///x"]), Shelf(space(BETA))])
        assert table.resolve("file:///x") == (ALPHA, "file:///x")
        assert table.resolve("gamma+file:///x") == (ALPHA, "gamma+file:///x")
        assert table.resolve("beta+file:///x") == (BETA, "file:///x")

    def test_a_completion_names_a_template_as_it_was_listed(self) -> None:
        """F-34: `ref/resource` holds the template itself, not an expansion."""
        table = UriTable(
            [Shelf(space(ALPHA)), Shelf(space(BETA), ["https://h/x"], ("file:///{p}", "https://h/{p}"))]
        )
        assert table.resolve_template("beta+file:///{p}") == (BETA, "file:///{p}")
        assert table.resolve_template("https://h/{p}") == (BETA, "https://h/{p}")
        assert table.resolve_template("https://h/x") == (BETA, "https://h/x")
        assert table.resolve_template("gamma+file:///{p}") is None


class TestTemplateMatches:
    """RFC 6570, near enough to route by, and never slow."""

    @pytest.mark.parametrize(
        ("template", "uri", "expected"),
        [
            ("file:///a", "file:///a", True),
            ("file:///a", "file:///ab", False),
            ("", "", True),
            ("", "x", False),
            ("file:///{path}", "file:///a", True),
            ("file:///{path}", "file:///", True),
            ("file:///{path}", "file:///a/b", False),
            ("file:///{+path}", "file:///a/b?c#d", True),
            ("{+uri}", "anything:at/all", True),
            ("{a}x{b}", "x", True),
            ("{+a}x{b}", "x/x1", True),
            ("{a}/{+b}", "x/y/z", True),
            ("{a}-{b}.json", "a-b-c.json", True),
            ("{a}-{b}.json", "a-b/c.json", False),
            ("h{/path*}", "h/a/b/c", True),
            ("h{/path*}", "h", True),
            ("h{/path*}", "ha", False),
            ("h{/path*}/end", "h/a/end", True),
            ("h{.ext}", "h.json", True),
            ("h{.ext}", "h/json", False),
            ("h{;k}", "h;k=v", True),
            ("h{?q,r}", "h?q=1&r=2", True),
            ("h{?q,r}", "h", True),
            ("h{?q}", "h#f", False),
            ("h?a=1{&q}", "h?a=1&q=2", True),
            ("h{#f}", "h#a/b?c", True),
            ("h{?q}{#f}", "h?q=1#f", True),
            ("größe/{x}", "gr%C3%B6%C3%9Fe/1", True),
            ("größe/{x}", "größe/ü", True),
            ("a{b", "a{b", True),
            ("a{}c", "abc", True),
            ("x" * 2049, "x" * 2049, False),
        ],
    )
    def test_templates(self, template: str, uri: str, expected: bool) -> None:
        """Each operator's first character, and what its values may hold."""
        assert template_matches(template, uri) is expected

    @given(
        st.lists(
            st.tuples(
                st.text("ab/?#.x", max_size=3),
                st.sampled_from(["", "+", "/", "?", "#"]),
                st.text("ab", max_size=3),
            )
        ),
        st.text("ab", max_size=2),
    )
    def test_an_expansion_matches_its_template(self, pieces: list[tuple[str, str, str]], end: str) -> None:
        """Whatever stands between the expressions."""
        template = "".join(f"{literal}{{{operator}v}}" for literal, operator, _ in pieces) + end
        lead = {"": "", "+": "", "/": "/", "?": "?v=", "#": "#"}
        uri = "".join(literal + lead[operator] + value for literal, operator, value in pieces) + end
        assert template_matches(template, uri)

    @given(st.text("ab/?", max_size=12), st.text("ab/?", max_size=12))
    def test_it_agrees_with_a_regular_expression(self, shape: str, uri: str) -> None:
        """`a` stands for an expression here and `b` for a reserved one, beside literals."""
        template = shape.replace("a", "{v}").replace("b", "{+v}").replace("?", "a")
        pattern = "".join({"a": "[^/?#]*", "b": ".*", "?": "a", "/": "/"}[char] for char in shape)
        assert template_matches(template, uri) is bool(re.fullmatch(pattern, uri))

    def test_a_hostile_pair_takes_no_time(self) -> None:
        """A backtracking engine would be busy for longer than the universe is old."""
        begun = time.process_time()
        assert not template_matches("{+a}a" * 400, "a" * 8000 + "b")
        assert not template_matches("{+a}{b}" * 280 + "!", "ä" * 4000)
        assert time.process_time() - begun < 1.0
