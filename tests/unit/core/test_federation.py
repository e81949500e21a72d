"""The lists of several upstreams as one, made once per listings."""

from gateway import config
from gateway.core.catalogue import NOTHING, Listing
from gateway.core.federation import Federation
from gateway.core.lists import merge_pages, parse_page
from gateway.protocol.jsonrpc import encode


def federation(**upstreams):
    written = {name: {"url": "http://127.0.0.1:9/mcp", **members} for name, members in upstreams.items()}
    endpoints = {"/mcp": {}, "/one": {"upstreams": ["beta"]}}
    whole = config.Config(upstreams=written, endpoints=endpoints)
    return Federation("/mcp", whole), Federation("/one", whole)


def listing(method, *items):
    key = {"tools/list": "tools", "resources/list": "resources"}[method]
    page = parse_page(method, encode({key: list(items)}))
    merged = merge_pages([page])
    return Listing(merged, {item.key: item for item in merged})


def tools(*names):
    return listing("tools/list", *({"name": name, "inputSchema": {"type": "object"}} for name in names))


def test_equal_listings_are_joined_once():
    """The same objects give the same object; a changed part a new one."""
    all_of, _ = federation(alpha={}, beta={})
    alpha, beta = tools("a"), tools("b")
    first = all_of.merged("tools/list", {"alpha": alpha, "beta": beta})
    assert all_of.merged("tools/list", {"beta": beta, "alpha": alpha}) is first
    assert first.items_of({"alpha", "beta"}) is first.items_of({"beta", "alpha"})
    assert all_of.merged("tools/list", {"alpha": alpha, "beta": tools("b")}) is not first


def test_an_upstream_that_is_not_shown_keeps_its_names():
    """Its items are left out, what they are called is not given away (B09)."""
    all_of, _ = federation(alpha={"prefix": ""}, beta={})
    merged = all_of.merged("tools/list", {"alpha": tools("beta__b", "a"), "beta": tools("b")})
    shown = merged.items_of({"alpha"})
    assert len(shown) == 2
    assert not any(b'"name":"beta__b"' in item for item in shown)
    assert merged.names.resolve("beta__b") == ("beta", "b")


def test_an_endpoint_knows_its_own_upstreams_only():
    """Neither names nor URIs of another are led anywhere (F-08, F-17)."""
    _, one = federation(alpha={}, beta={})
    assert list(one.namespaces) == ["beta"]
    merged = one.merged("tools/list", {"alpha": tools("a"), "beta": tools("b")})
    assert list(merged.names) == ["beta__b"]
    uris = one.uris({"beta": NOTHING}, {})
    assert uris.resolve("beta+a:1") == ("beta", "a:1")
    assert uris.resolve("alpha+a:1") is None


def test_uris_lead_by_list_and_by_prefix():
    """What a list holds is found without a prefix too, if it is shown without one (F-11)."""
    all_of, _ = federation(alpha={}, beta={})
    listed = {"alpha": NOTHING, "beta": listing("resources/list", {"uri": "https://x.example", "name": "x"})}
    uris = all_of.uris(listed, {})
    assert all_of.uris(dict(listed), {}) is uris
    assert uris.resolve("https://x.example") == ("beta", "https://x.example")
    assert uris.resolve("https://other.example") == ("alpha", "https://other.example")
    assert all_of.name_prefix("beta") == "beta__"
