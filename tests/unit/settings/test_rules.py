"""What `check` says of rules of access that cannot mean what they say."""

import pytest

from gateway.config import ConfigError, load, nobody

UPSTREAMS = (
    "upstreams: {a: {url: 'http://127.0.0.1:1/mcp', trust_annotations: true}, b: 'http://127.0.0.1:2/mcp'}\n"
)
KEYS = f"authentication: {{keys: {{ci: {{hash: 'sha256:{'0' * 64}', scopes: [read]}}}}}}\n"
ENDPOINTS = "endpoints: {/mcp: {}, /b: {upstreams: [b]}}\n"


def warned(rules: str, more: str = KEYS) -> list[str]:
    warnings: list[str] = []
    load(f"{UPSTREAMS}{ENDPOINTS}{more}access: {{rules: {rules}}}", warn=warnings.append)
    return warnings


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("[{upstreams: [c]}]", "access.rules[0].upstreams[0]: there is no upstream `c`"),
        ("[{}, {endpoints: [/mcpp]}]", "access.rules[1].endpoints[0]: there is no endpoint `/mcpp`"),
        ("[{endpoints: [/mcpp]}]", "did you mean `/mcp`?"),
    ],
)
def test_a_rule_about_what_nobody_has_stops_the_start(rules: str, said: str) -> None:
    """It was mistyped, and would protect nothing."""
    with pytest.raises(ConfigError, match=r"there is no") as caught:
        warned(rules)
    assert said in str(caught.value)


WAYS = (
    f"authentication: {{keys: {{ci: {{hash: 'sha256:{'0' * 64}'}}}}, "
    "tokens: {corp: {issuer: 'https://i.example'}}, "
    "certificates: {source: header, names: ['*.example.com']}}\n"
    "trusted_proxies: [127.0.0.1]\npublic_url: https://x.example\n"
)


@pytest.mark.parametrize(
    ("caller", "said"),
    [
        ("key:cj", "no caller is called `key:cj`: they are corp:SUBJECT, key:NAME, cert:NAME; did you mean"),
        ("Key:ci", "did you mean `key:ci`?"),
        ("ci", "no caller is called `ci`"),
        ("alice", "did you mean `corp:alice`?"),
        ("Corp:*", "did you mean `corp:*`?"),
        ("corp:", "no caller is called"),
        ("cert:web.example.org", "no caller is called"),
        ("key:x*", "no caller is called"),
    ],
)  # fmt: skip
def test_a_rule_about_a_caller_nobody_can_be_stops_the_start(caller: str, said: str) -> None:
    """With `deny` it would leave open what it is to close; --as says the same of such a name."""
    with pytest.raises(ConfigError) as caught:
        warned(f"[{{callers: ['corp:a', '{caller}']}}, {{}}]", WAYS)
    assert "access.rules[0].callers[1]: " in str(caught.value)
    assert said in str(caught.value)
    config = load(f"{UPSTREAMS}{WAYS}")
    assert said in (nobody(caller, config) or "")


@pytest.mark.parametrize(
    "caller",
    ["key:ci", "key:*", "k*", "*", "*:alice", "[Kk]ey:ci", "corp:[*]", "c?rp:a", "cert:a.example.com"],
)  # fmt: skip
def test_callers_there_may_be_are_not_spoken_of(caller: str) -> None:
    """Only what is certain stops anything."""
    assert warned(f"[{{tools: [x], callers: ['{caller}']}}, {{}}]", WAYS) == []


@pytest.mark.parametrize(
    ("caller", "more", "said"),
    [
        ("corp:alice", WAYS, None),
        ("key:ci", WAYS, None),
        ("corp:*", WAYS, None),
        ("key:*", WAYS, "no caller is called `key:*`"),
        ("anonymous", WAYS, "nobody is `anonymous`"),
        ("anonymous", "", None),
        ("corp:alice", "", "without `authentication` everybody is `anonymous`"),
    ],
)
def test_a_name_that_no_caller_can_have_is_known(caller: str, more: str, said: str | None) -> None:
    """A name is no pattern, though its letters may look like one."""
    told = nobody(caller, load(f"{UPSTREAMS}{more}"))
    assert told is None if said is None else said in (told or "")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("tools: [a__*]", "tools: `a__*` looks like names that clients see, of `a`; rules go by its own"),
        ("prompts: [x, b__y]", "write upstreams: [b] and `y`"),
        ("resources: ['a+note://*']", "write upstreams: [a] and `note://*`"),
        ("resources: ['ui://a/*']", "write upstreams: [a] and `ui://*`"),
        ("tools: [seek]", "tools: `seek` is what a__find is renamed to"),
        ("claims: {x: [y]}, callers: ['key:*']", "claims: keys and certificates have none"),
        ("callers: [anonymous]", "callers: nobody is `anonymous`"),
    ],
)
def test_a_rule_in_the_words_of_clients_is_said(rule: str, said: str) -> None:
    """Most likely it fits nothing; an upstream that is a gateway may have such names itself."""
    endpoints = "endpoints: {/mcp: {tools: {rename: {a__find: seek}}}}\n"
    warnings: list[str] = []
    load(f"{UPSTREAMS}{endpoints}{WAYS}access: {{rules: [{{{rule}}}, {{}}]}}", warn=warnings.append)
    (warning,) = warnings
    assert f"access.rules[0].{said.partition(':')[0]}" in warning or "write" in said
    assert said in warning


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (
            "[{}, {tools: [x], deny: true}]",
            "access.rules[1] never decides: access.rules[0] is about all of it",
        ),
        ("[{tools: ['*']}, {tools: [x]}]", "access.rules[1] never decides"),
        ("[{tools: [x, y]}, {tools: [y]}]", "access.rules[1] never decides"),
        (
            "[{upstreams: [a]}, {upstreams: [a], tools: [x], callers: [key:ci]}]",
            "access.rules[1] never decides",
        ),
        ("[{callers: ['*']}, {claims: {x: [y]}}]", "access.rules[1] never decides"),
        (
            "[{annotations: {readOnlyHint: true}}, {tools: [x], annotations: {readOnlyHint: true}}]",
            "[1] never",
        ),
        ("[{upstreams: [b], annotations: {readOnlyHint: true}}]", "annotations: no upstream"),
        ("[{upstreams: [a], endpoints: [/b]}]", "upstreams: none of them is served at its endpoints"),
        ("[{claims: {x: [y]}}]", "access.rules[0].claims: nobody has any"),
        ("[{callers: ['*']}, {scopes: [read]}]", "access.rules[1] never decides"),
    ],
)
def test_a_rule_that_does_nothing_is_said(rules: str, said: str) -> None:
    """It is no mistake to the machine, and most likely one of whoever wrote it."""
    assert any(said in warning for warning in warned(rules))


@pytest.mark.parametrize("rule", ["scopes: [read]", "callers: [key:ci]", "claims: {x: [y]}"])
def test_a_rule_about_callers_nobody_can_be_is_said(rule: str) -> None:
    """Without `authentication` all are alike."""
    (warning,) = warned(f"[{{{rule}}}]", more="")
    assert "without `authentication` everybody is `anonymous`" in warning


def test_a_rule_that_wants_scopes_which_nobody_has_is_said() -> None:
    """Keys and certificates grant what is written beside them, and tokens what their issuer says."""
    more = KEYS.replace(", scopes: [read]", "")
    (warning,) = warned("[{scopes: [read]}]", more)
    assert "access.rules[0].scopes: nobody has any" in warning


@pytest.mark.parametrize(
    ("access", "on", "denies"),
    [
        ("{default: deny}", True, True),
        ("{default: allow}", False, False),
        ("{rules: []}", False, False),
        ("{rules: [{}]}", True, True),
        ("{rules: [{deny: true}], default: allow}", True, False),
    ],
)
def test_a_default_counts_without_rules_too(access: str, on: bool, denies: bool) -> None:
    """Whoever writes `default: deny` and nothing else means it."""
    found = load(f"{UPSTREAMS}access: {access}").access
    assert (found.on, found.denies) == (on, denies)


@pytest.mark.parametrize(
    "rules",
    [
        "[{tools: [x], deny: true}, {}]",
        "[{tools: [x]}, {prompts: [x]}]",
        "[{callers: [key:ci]}, {}]",
        "[{callers: ['key:*']}, {callers: [key:ci]}]",
        "[{claims: {x: [y]}}, {claims: {x: [y, z]}}]",
        "[{endpoints: [/b]}, {endpoints: [/mcp]}]",
        "[{upstreams: [a]}, {upstreams: [a, b]}]",
        "[{upstreams: [a]}, {tools: [x]}]",
        "[{annotations: {readOnlyHint: true}}, {tools: [x]}]",
        "[{tools: [x], scopes: [read]}, {tools: [y], scopes: [read], refusal: list}]",
    ],
)
def test_rules_that_may_both_decide_are_not_spoken_of(rules: str) -> None:
    """Patterns are not compared with one another, so nothing is said that is not so."""
    more = KEYS
    if "claims" in rules:
        more = "authentication: {tokens: {t: {issuer: 'https://issuer.example'}}}\n"
    assert warned(rules, more) == []
