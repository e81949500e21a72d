"""Rules of access against a plain reading of what they say, whatever the rules, callers and things are."""

from fnmatch import fnmatchcase
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import Access, Config
from gateway.core.access import KINDS, Policy
from gateway.protocol.call import Principal, UpstreamName

UPSTREAMS = ("a", "b")
NAMES = ("x", "xy", "y", "")
PATTERNS = ("*", "x", "x*", "?", "[!x]*", "z")
SCOPES = ("read", "write")
CALLERS = ("corp:ann", "corp:bob", "key:ci", "")
GROUPS = ("dev", "ops")
HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
FIELD = {"tool": "tools", "prompt": "prompts", "resource": "resources", "method": "methods"}


def some(values: Any) -> Any:
    return st.lists(st.sampled_from(values), max_size=2, unique=True)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "upstreams": draw(some(UPSTREAMS)),
        "endpoints": draw(some(("/mcp", "/b"))),
        "tools": draw(some(PATTERNS)),
        "callers": draw(some(("corp:*", "key:ci", "anonymous", "*"))),
        "claims": draw(st.dictionaries(st.sampled_from(("groups", "a.b")), some(GROUPS), max_size=1)),
    }
    if draw(st.booleans()):
        hints = st.dictionaries(st.sampled_from(HINTS), st.booleans(), max_size=2)
        rule["annotations"] = draw(hints)
    else:
        rule |= {"prompts": draw(some(PATTERNS)), "resources": draw(some(PATTERNS))}
    if draw(st.booleans()):
        rule |= {"deny": True, "refusal": draw(st.sampled_from((None, "challenge", "hide")))}
    else:
        rule |= {
            "scopes": draw(some(SCOPES)),
            "refusal": draw(st.sampled_from((None, "challenge", "list", "hide"))),
        }
    return rule


BARE = Config.model_validate(
    {
        "upstreams": {name: {"url": f"http://127.0.0.1:1/{name}"} for name in UPSTREAMS},
        "endpoints": {"/mcp": {}, "/b": {"upstreams": ["b"]}},
    }
)


def ruled(rules: list[dict[str, Any]], default: str, trusted: list[str]) -> Config:
    """Return a configuration with these rules; all but the rules is made once, which takes its time."""
    upstreams = {
        name: one.model_copy(update={"trust_annotations": name in trusted})
        for name, one in BARE.upstreams.items()
    }
    access = Access.model_validate({"rules": rules, "default": default})
    return BARE.model_copy(update={"upstreams": upstreams, "access": access})


CONFIGS = st.builds(
    ruled,
    st.lists(rules(), min_size=1, max_size=5),
    st.sampled_from(("allow", "deny")),
    some(UPSTREAMS),
)
PRINCIPALS = st.builds(
    lambda id, scopes, groups, inner: Principal(
        id=id, scopes=frozenset(scopes), claims={"groups": groups, "a": {"b": inner}}
    ),
    st.sampled_from(CALLERS),
    some(SCOPES),
    some(GROUPS),
    st.sampled_from((*GROUPS, None)),
)
ANNOTATIONS = st.dictionaries(st.sampled_from(HINTS), st.booleans(), max_size=4)


def expected(
    config: Config, endpoint: str, who: Principal, upstream: str, kind: str, name: str, said: dict[str, bool]
) -> tuple[str, int | None]:
    """Return what becomes of a wish, read off the rules one by one, and the rule that says so."""
    worst = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}
    hints = worst
    if config.upstreams[upstream].trust_annotations:
        harmless = {"destructiveHint": False, "idempotentHint": True} if said.get("readOnlyHint") else {}
        hints = {**worst, **harmless, **said}
    for index, rule in enumerate(config.access.rules):
        patterns = getattr(rule, FIELD[kind])
        names_some = any(getattr(rule, field) for field in FIELD.values())
        claims = {"groups": who.claims["groups"], "a.b": [who.claims["a"]["b"]]}  # type: ignore[index]
        if (
            (rule.endpoints and endpoint not in rule.endpoints)
            or (rule.upstreams and upstream not in rule.upstreams)
            or (names_some and not any(fnmatchcase(name, pattern) for pattern in patterns))
            or (rule.annotations and kind != "tool")
            or any(hints[hint] is not wanted for hint, wanted in rule.annotations.items())
            or (rule.callers and not any(fnmatchcase(who.id or "anonymous", one) for one in rule.callers))
            or any(not set(values) & set(claims[claim]) for claim, values in rule.claims.items())  # type: ignore[call-overload]
        ):
            continue
        if rule.deny:
            return ("forbidden" if rule.refusal == "challenge" else "hidden"), index
        if set(rule.scopes) <= who.scopes:
            return "allowed", index
        return {"list": "listed", "hide": "hidden"}.get(rule.refusal or "", "forbidden"), index
    return ("allowed" if config.access.default == "allow" else "hidden"), None


@settings(max_examples=100, deadline=None)
@given(
    config=CONFIGS,
    who=PRINCIPALS,
    upstream=st.sampled_from(UPSTREAMS),
    kind=st.sampled_from(KINDS),
    name=st.sampled_from(NAMES),
    said=ANNOTATIONS,
    endpoint=st.sampled_from(("/mcp", "/b")),
)
def test_a_verdict_is_what_the_rules_say(
    config: Config, who: Principal, upstream: str, kind: Any, name: str, said: dict[str, bool], endpoint: str
) -> None:
    """And what is said of it to lists, calls and everybody else fits together."""
    served = config.endpoints[endpoint].upstreams
    if served is not None and upstream not in served:
        upstream = "b"
    text = str(said).replace("'", '"').replace("True", "true").replace("False", "false").encode()
    policy = Policy(config, endpoint)
    sight, at = policy.sight(who), UpstreamName(upstream)
    verdict = sight.judge(at, kind, name, text)
    what = (
        "allowed"
        if verdict.allowed
        else "hidden"
        if verdict.hidden
        else "listed"
        if verdict.listed
        else "forbidden"
    )
    assert (what, verdict.rule) == expected(config, endpoint, who, upstream, kind, name, said)
    assert verdict.listed is (what in ("allowed", "listed"))
    if what != "hidden":
        assert sight.reaches(at, kind)
        assert sight.reaches(at)
    if what == "allowed":
        assert policy.barred(at, kind, name, text) is None
    if policy.barred(at, kind, name, text) is not None:
        assert what in ("hidden", "forbidden")
        assert verdict.scopes == ()


@settings(max_examples=100, deadline=None)
@given(config=CONFIGS, one=PRINCIPALS, other=PRINCIPALS, name=st.sampled_from(NAMES), said=ANNOTATIONS)
def test_who_has_an_equal_sight_is_judged_alike(
    config: Config, one: Principal, other: Principal, name: str, said: dict[str, bool]
) -> None:
    """So that what was joined for one may be shown to the other."""
    policy = Policy(config, "/mcp")
    mine, its = policy.sight(one), policy.sight(other)
    if mine == its:
        for kind in KINDS:
            for upstream in map(UpstreamName, UPSTREAMS):
                assert mine.judge(upstream, kind, name) == its.judge(upstream, kind, name)
                assert mine.reaches(upstream, kind) == its.reaches(upstream, kind)
