"""Who may see and use what, by the rules of `access`."""

import pytest

from gateway.config import Config, load
from gateway.core.access import Policy, Sight, hints_of, place_of, policy_of, said_of
from gateway.protocol.call import Forbidden, Principal, UpstreamName

NOTES, FILES = UpstreamName("notes"), UpstreamName("files")
ALICE = Principal(id="corp:alice", scopes=frozenset({"read"}), claims={"groups": ["dev"], "team": {"id": 7}})
NOBODY = Principal()


def settings(rules: str, *, default: str = "deny", trusted: bool = False) -> Config:
    return load(
        f"""
        endpoints: {{/mcp: {{}}, /dev: {{upstreams: [notes]}}}}
        upstreams:
          notes: {{url: "http://127.0.0.1:1/mcp", trust_annotations: {str(trusted).lower()}}}
          files: http://127.0.0.1:2/mcp
        access: {{rules: {rules}, default: {default}}}
        """
    )


def sight(
    rules: str,
    principal: Principal = ALICE,
    *,
    endpoint: str = "/mcp",
    default: str = "deny",
    trusted: bool = False,
) -> Sight:
    return Policy(settings(rules, default=default, trusted=trusted), endpoint).sight(principal)


def test_without_rules_there_is_nothing_to_judge() -> None:
    """Then not one instruction is spent on it."""
    assert policy_of(settings("[]", default="allow"), "/mcp") is None
    assert policy_of(settings("[{tools: [x]}]"), "/mcp") is not None


def test_a_default_of_deny_alone_denies_everything() -> None:
    """To everybody: it may have been written before the rules."""
    policy = policy_of(settings("[]", default="deny"), "/mcp")
    assert policy is not None
    seen = policy.sight(ALICE)
    assert seen.judge(NOTES, "tool", "search").hidden
    assert not seen.lists(NOTES, "prompt", "greet")
    assert not seen.reaches(NOTES)


def test_the_first_rule_that_fits_decides() -> None:
    """Order is all there is to it."""
    seen = sight("[{tools: ['*delete*'], deny: true}, {tools: ['*']}]")
    assert seen.judge(NOTES, "tool", "search").allowed
    denied = seen.judge(NOTES, "tool", "delete_all")
    assert (denied.allowed, denied.listed, denied.hidden, denied.rule) == (False, False, True, 0)


def test_what_no_rule_fits_is_as_the_default_says() -> None:
    """A rule about tools says nothing of prompts."""
    denied = sight("[{tools: ['*']}]").judge(NOTES, "prompt", "greet")
    assert denied.hidden
    assert place_of(denied.rule) == "access.default"
    assert sight("[{tools: [x], deny: true}]", default="allow").judge(NOTES, "prompt", "greet").allowed


@pytest.mark.parametrize("kind", ["tool", "prompt", "resource", "method"])
def test_a_rule_that_names_nothing_is_about_everything(kind) -> None:  # type: ignore[no-untyped-def]
    """Of the upstreams it names, or of all."""
    seen = sight("[{upstreams: [notes]}]")
    assert seen.judge(NOTES, kind, "anything").allowed
    assert not seen.judge(FILES, kind, "anything").allowed


def test_a_rule_counts_on_its_endpoints_only() -> None:
    """What is denied elsewhere is not denied here, and an endpoint without a rule has the default."""
    rules = "[{endpoints: [/dev]}]"
    assert sight(rules, endpoint="/dev").judge(NOTES, "tool", "x").allowed
    assert not sight(rules, endpoint="/mcp").judge(NOTES, "tool", "x").allowed


def test_an_upstream_that_an_endpoint_does_not_serve_is_as_the_default_says() -> None:
    """A policy knows the upstreams of its endpoint."""
    assert not sight("[{}]", endpoint="/dev").judge(FILES, "tool", "x").allowed


@pytest.mark.parametrize(
    ("patterns", "principal", "fits"),
    [
        ("corp:*", ALICE, True),
        ("corp:alice", ALICE, True),
        ("corp:ali", ALICE, False),
        ("key:*", ALICE, False),
        ("anonymous", ALICE, False),
        ("anonymous", NOBODY, True),
        ("anonymous", Principal(id="anonymous"), True),
        ("corp:*", Principal(id="corp:a\nb"), True),
        ("corp:alice", Principal(id="corp:alice\n"), False),
    ],
)
def test_callers_are_shell_patterns(patterns: str, principal: Principal, fits: bool) -> None:
    """Whoever proved nothing is `anonymous`."""
    assert sight(f"[{{callers: ['{patterns}']}}]", principal).judge(NOTES, "tool", "x").allowed is fits


@pytest.mark.parametrize(
    ("claims", "held", "fits"),
    [
        ("{groups: [dev, ops]}", {"groups": ["x", "ops"]}, True),
        ("{groups: [dev]}", {"groups": "dev"}, True),
        ("{groups: [dev]}", {"groups": "dev ops"}, False),
        ("{groups: [dev]}", {}, False),
        ("{a.b: [x]}", {"a": {"b": ["x"]}}, True),
        ("{a.b: [x]}", {"a.b": "x"}, True),
        ("{a.b.c: [x]}", {"a.b": {"c": "x"}}, True),
        ("{a.b: [x]}", {"a": "b"}, False),
        ('{"https://example.com/roles": [x]}', {"https://example.com/roles": ["x"]}, True),
        ("{admin: [true]}", {"admin": True}, True),
        ("{admin: [true]}", {"admin": 1}, False),
        ("{admin: [true]}", {"admin": "true"}, False),
        ("{level: [1]}", {"level": True}, False),
        ("{level: [1]}", {"level": 1}, True),
        ("{a: [x], b: [y]}", {"a": "x"}, False),
        ("{a: [x]}", {"a": [["x"], {"x": 1}]}, False),
    ],
)
def test_claims_are_compared_by_value_and_type(claims: str, held: dict[str, object], fits: bool) -> None:
    """One of the values under each of the claims; names may hold dots themselves."""
    caller = Principal(id="corp:bob", claims=held)
    assert sight(f"[{{claims: {claims}}}]", caller).judge(NOTES, "tool", "x").allowed is fits


@pytest.mark.parametrize(
    ("refusal", "listed", "hidden"),
    [("null", False, False), ("challenge", False, False), ("list", True, False), ("hide", False, True)],
)
def test_missing_scopes_are_refused_as_the_rule_says(refusal: str, listed: bool, hidden: bool) -> None:
    """The challenge names all that it takes, what is held already included: tokens replace each other."""
    seen = sight(f"[{{tools: [x], scopes: [read, write], refusal: {refusal}}}, {{}}]")
    verdict = seen.judge(NOTES, "tool", "x")
    assert (verdict.allowed, verdict.listed, verdict.hidden) == (False, listed, hidden)
    with pytest.raises(Forbidden) as caught:
        verdict.check()
    assert caught.value.scopes == ("read", "write")
    assert seen.judge(NOTES, "tool", "y").allowed


def test_scopes_that_are_held_allow() -> None:
    """All of them have to be."""
    rules = "[{tools: [x], scopes: [read, write]}]"
    writer = Principal(id="corp:bob", scopes=frozenset({"write", "read", "more"}))
    sight(rules, writer).judge(NOTES, "tool", "x").check()


def test_a_denial_that_does_not_hide_names_no_scopes() -> None:
    """No token would help, so none is asked for."""
    verdict = sight("[{tools: [x], deny: true, refusal: challenge}]").judge(NOTES, "tool", "x")
    assert (verdict.listed, verdict.hidden) == (False, False)
    with pytest.raises(Forbidden) as caught:
        verdict.check()
    assert caught.value.scopes == ()


def test_equal_sights_are_equal_whoever_has_them() -> None:
    """So that what was joined for one caller is there for all who are shown the same."""
    policy = Policy(
        settings("[{callers: ['corp:*'], scopes: [read]}, {callers: [key:ci], deny: true}]"), "/mcp"
    )
    bob = Principal(id="corp:bob", scopes=frozenset({"read"}), claims={"sub": "bob"})
    poor = Principal(id="corp:eve")
    assert policy.sight(ALICE) == policy.sight(bob)
    assert len({policy.sight(one) for one in (ALICE, bob, poor, Principal(id="key:ci"))}) == 3


def test_equal_principals_with_other_claims_have_sights_of_their_own() -> None:
    """An introspected token may say something else the next time it is asked about."""
    policy = Policy(settings("[{claims: {groups: [dev]}}]"), "/mcp")
    before = Principal(authorization="Bearer t", claims={"groups": ["dev"]})
    after = Principal(authorization="Bearer t", claims={})
    assert before == after
    assert policy.sight(before).judge(NOTES, "tool", "x").allowed
    assert not policy.sight(after).judge(NOTES, "tool", "x").allowed


class TestAnnotations:
    """What a tool says of itself counts only where its upstream is trusted."""

    def test_of_a_trusted_upstream_it_counts(self) -> None:
        seen = sight("[{annotations: {readOnlyHint: true}}]", trusted=True)
        assert seen.judge(NOTES, "tool", "look", b'{"readOnlyHint":true}').allowed
        assert not seen.judge(NOTES, "tool", "write", b'{"readOnlyHint":false}').allowed
        assert not seen.judge(NOTES, "tool", "silent").allowed
        assert not seen.judge(NOTES, "prompt", "look").allowed

    def test_of_any_other_upstream_the_worst_is_assumed(self) -> None:
        seen = sight("[{annotations: {destructiveHint: true}, deny: true}, {}]")
        assert not seen.judge(NOTES, "tool", "x", b'{"destructiveHint":false}').allowed
        seen = sight("[{annotations: {readOnlyHint: true}}]", trusted=True)
        assert not seen.judge(FILES, "tool", "look", b'{"readOnlyHint":true}').allowed

    @pytest.mark.parametrize(
        ("said", "expected"),
        [
            (None, (False, True, False, True)),
            (b"{}", (False, True, False, True)),
            (b"[]", (False, True, False, True)),
            (b'{"readOnlyHint":true}', (True, False, True, True)),
            (b'{"readOnlyHint":true,"destructiveHint":true}', (True, True, True, True)),
            (b'{"readOnlyHint":"true"}', (False, True, False, True)),
            (b'{"readOnlyHint":null,"openWorldHint":false}', (False, True, False, False)),
        ],
    )
    def test_what_is_not_said_is_assumed(self, said: bytes | None, expected: tuple[bool, ...]) -> None:
        assert tuple(hints_of(said).values()) == expected


class TestUris:
    """Nobody knows how a server reads a URI: what allows it has to fit all readings, what forbids it one."""

    @pytest.mark.parametrize(
        "uri",
        [
            "file:///data/public/../secret",
            "file:///data/public/%2e%2e/secret",
            "file:///data/public/%252e%252e/secret",
            "file:///data/public/..%2Fsecret",
            "file:///data/public/..\\secret",
            "file:///data/public/a%5c..%5c..%5csecret",
            "file:///data/public/./.././secret",
            "file:///data/public/..;/secret",
            "file:///data/public/%3f/../../../secret/x",
            "file:///data/public/%23/../../../secret/x",
            "file:///data/public/?/../../../secret/x",
            "file:///data/public/#/../../../secret/x",
            "file:///data/public/%3F/%2e%2e/%2e%2e/%2e%2e/secret/x",
            "file:///data/public/%253F%252f..%252f..%252fsecret",
            "file:///data/public/%252525252525252e",
            "file:///data/public/a%00b",
            "file:///data/public/.%0a./secret",
            "file:///data/public/a ",
            "file:///data/public/a/..",
            "https://files.example/data/./x",
            "https://files.example@other.example/x",
            "https://files.example%40other.example/x",
            "https:files.example\\@other.example/x",
            "note://a:b@notes/x",
            "https://127.1/x",
            "https://0x7f000001/x",
            "https://2130706433/x",
            "file:///data/public/" + "x" * 4096,
        ],
    )
    def test_what_may_lead_anywhere_is_not_there(self, uri: str) -> None:
        rules = "[{resources: ['file:///data/public/*', 'https:*', 'note:*']}]"
        verdict = sight(rules).judge(NOTES, "resource", uri)
        assert (verdict.hidden, verdict.unclear) == (True, True)
        assert "different ways" in said_of(verdict)
        open_to_all = sight("[{resources: [other], deny: true}]", default="allow")
        assert open_to_all.judge(NOTES, "resource", uri).hidden

    @pytest.mark.parametrize("rules", ["[{}, {resources: [x], deny: true}]", "[{resources: ['*']}]"])
    def test_who_may_read_everything_may_spell_as_he_likes(self, rules: str) -> None:
        assert sight(rules).judge(NOTES, "resource", "file:///a/%3f/../b").allowed

    def test_what_is_listed_is_judged_by_where_it_may_lead(self) -> None:
        rules = "[{resources: ['db://ann@server/*', 'file:///public/*']}]"
        seen = sight(rules)
        assert seen.judge(NOTES, "resource", "db://ann@server/table", listed=True).allowed
        assert seen.lists(NOTES, "resource", "db://ann@server/table")
        assert not seen.judge(NOTES, "resource", "db://ann@server/table").allowed
        assert seen.judge(NOTES, "resource", "file:///public/a/../b", listed=True).allowed
        assert not seen.judge(NOTES, "resource", "file:///public/a/../../b", listed=True).allowed
        assert not seen.judge(NOTES, "resource", "file:///public/%3f/../../../b", listed=True).allowed

    @pytest.mark.parametrize(
        ("denied", "uris"),
        [
            (
                "file:///secret/*",
                """file:///secret/x FILE:///secret/x file:////secret/x file:///secret//x file:///%73ecret/x
                file:///secret%2Fx file:/secret/x file:secret/x file://localhost/secret/x file:\\\\\\secret/x
                file://LOCALHOST/secret/x file://elsewhere/secret/x file://secret/x file:///secret
                file:///secret/x? file:///secret/x#y file:///secret%3Fx/y file://localhost:/secret/x
                file:///%25%37%33ecret/x file:///secret/ file:%2F%2F%2Fsecret/x file://\\\\localhost/secret/x
                file://%23/secret/%78""",
            ),
            (
                "note://pub/secret",
                """note://pub/secret note://pub/secret/ note://pub/secret? note://pub/secret# NOTE://PUB/secret
                note://pub:/secret note://pub./secret note:pub/secret note:/pub/secret note:///pub/secret
                note://pub//secret note://pub/secret?x=1 note://pub/secret%3Fx note://pub/secret%23
                note%3A//pub/secret note://pub%2Fsecret note://pub/s%65cret note:\\\\pub/secret""",
            ),
            (
                "https://intra.example/*",
                """https://intra.example:443/a https://intra.example:/a https://intra.example:0443/a
                https://intra.example./a https:intra.example/a https:/intra.example/a https:///intra.example/a
                https://intra%2eexample/a https://INTRA.example/a https:\\\\intra.example\\a
                https://intra.example https://intra.example?a https://intra.example#a https://intra。example/a
                https://ｉntra.example/a https://intra.example""",
            ),
            ("https://intra.example:*", "https://intra.example/a https://intra.example:443/a"),
            ("https://bücher.example/*", "https://xn--bcher-kva.example/a https://B%C3%9Ccher.example/a"),
            ("https://bü*.example/*", "https://xn--bcher-kva.example/a https://B%C3%9Ccher.example/a"),
            ("https://[0-9]*", "https://7.example/a HTTPS:7.example/a"),
            ("HTTP*://Intra.example/*", "HTTPS://Intra.example/a http*://intra.example/a"),
            ("file:///50%25/é", "file:///50%25/%C3%A9 file:///50%2525/%C3%A9 file:///50%/é"),
            ("file:///s%C3%A9cret/x", "file:%2f/s%C3%A9c%72et/x file:///sécret/x"),
            ("*secret*", "file:///SEC%72et/secret file:///%73ecret"),
        ],
    )
    def test_spellings_do_not_lead_past_what_is_denied(self, denied: str, uris: str) -> None:
        seen = sight(f"[{{resources: ['{denied}'], deny: true}}, {{}}]")
        for uri in uris.split():
            assert seen.judge(NOTES, "resource", uri).hidden, uri

    @pytest.mark.parametrize(
        ("denied", "uri"),
        [
            ("file:///secret/*", "file:///secrets"),
            ("note://pub/secret", "note://pub/secret/more"),
            ("note://pub/secret", "note://pub/Secret"),
            ("https://intra.example/*", "https://intra.example.org/"),
            ("https://intra.example/*", "https://intra.example:8443/"),
            ("https://intra.example/*", "http://intra.example/"),
            ("https://intra.example/a?b=*", "https://intra.example/a"),
        ],
    )
    def test_what_is_denied_is_not_its_neighbours(self, denied: str, uri: str) -> None:
        seen = sight(f"[{{resources: ['{denied}'], deny: true}}, {{}}]")
        assert seen.judge(NOTES, "resource", uri).allowed

    @pytest.mark.parametrize(
        ("allowed", "uri"),
        [
            ("file:///data/*.txt", "file:///data/secret.key?.txt"),
            ("file:///data/*.txt", "file:///data/secret.key#.txt"),
            ("file:///data/*.txt", "file:///data/secret.key%3F.txt"),
            ("file:///data/*.txt", "file:///data/secret.key%2523.txt"),
            ("note://pub/x", "note://pub/x/"),
            ("note://pub/x", "note://PUB/x"),
        ],
    )
    def test_what_is_allowed_is_so_in_every_reading(self, allowed: str, uri: str) -> None:
        assert not sight(f"[{{resources: ['{allowed}']}}]").judge(NOTES, "resource", uri).allowed

    @pytest.mark.parametrize(
        ("pattern", "uri"),
        [
            ("file:///a%20b/*", "file:///a%20b/c"),
            ("file:///a/*", "file:///a/"),
            ("file:///a/*", "file:///a/user@host/x..y/.../.hidden"),
            ("file:///a/*", "file:///a/%25/100%/%E9"),
            ("note://Guide", "note://Guide"),
            ("NOTE://Guide", "NOTE://Guide"),
            ("note://guide#part", "note://guide#part"),
            ("note://{id}", "note://{id}"),
            ("note://*", "note://{+path}{?q,page}{#part}"),
            ("*://guide", "note://guide"),
            ("note:*", "note:a/b"),
            ("https://example.com", "https://example.com"),
            ("https://Example.com:443/*", "https://Example.com:443/a"),
            ("https://example.com/*", "https://example.com/a//b?x=1%2F#y"),
            ("search://all?q=*", "search://all?q=a%20b%2Fc%3F%26+d"),
            ("search://all[?]*", "search://all?anything"),
            ("https://127.0.0.1:8080/*", "https://127.0.0.1:8080/x"),
            ("mailto:*", "mailto:ann@example.com"),
            ("urn:isbn:*", "urn:isbn:0451450523"),
            ("plain name", "plain name"),
            ("file:///50%25", "file:///50%25"),
            ("file:///[*]", "file:///%2A"),
            ("https://bücher.example/*", "https://bücher.example/é"),
        ],
    )
    def test_what_the_rule_spells_is_not_taken_for_a_detour(self, pattern: str, uri: str) -> None:
        patterns = f"'{pattern}'" if pattern != "file:///[*]" else f"'{pattern}', '{uri}'"
        seen = sight(f"[{{resources: [{patterns}]}}]")
        assert seen.judge(NOTES, "resource", uri).allowed

    def test_names_of_tools_have_one_spelling(self) -> None:
        assert not sight("[{tools: [search]}]").judge(NOTES, "tool", "%73earch").allowed


class TestReach:
    """Whether there may be anything for a caller at an upstream, before anybody is asked."""

    def test_a_denied_upstream_is_not_reached(self) -> None:
        seen = sight("[{upstreams: [files], deny: true}, {}]")
        assert seen.reaches(NOTES)
        assert not seen.reaches(FILES)

    def test_by_kind(self) -> None:
        seen = sight("[{upstreams: [notes], tools: [x]}]")
        assert seen.reaches(NOTES, "tool")
        assert seen.reaches(NOTES, "prompt", "tool")
        assert not seen.reaches(NOTES, "prompt")

    def test_what_can_be_asked_for_with_more_scopes_is_reached(self) -> None:
        assert sight("[{scopes: [write]}]").reaches(NOTES)
        assert not sight("[{scopes: [write], refusal: hide}]").reaches(NOTES)

    def test_a_denial_of_some_leaves_the_rest(self) -> None:
        assert sight("[{tools: ['*delete*'], deny: true}, {}]").reaches(NOTES, "tool")
        assert not sight("[{tools: ['*'], deny: true}, {}]").reaches(NOTES, "tool")
        assert not sight("[{deny: true}]", default="allow").reaches(NOTES)

    def test_rules_about_others_do_not_count(self) -> None:
        assert not sight("[{callers: [key:ci]}]").reaches(NOTES)
