"""That equal values are kept once, and that all of them together have a bound."""

from gateway.core.interned import Interned


def test_equal_values_are_kept_once() -> None:
    """A thousand callers who are shown one list cost one list."""
    known: Interned[str, list[str]] = Interned(2**22)
    for number in range(1000):
        value = known.equal("digest") or ["a", "b"]
        known.put(str(number), "digest", value, 100_000)
    assert known.held == (1000, 1, 100_000 + 1000 * 1024)
    assert known.get("0") is known.get("999")


def test_the_least_recently_used_make_room() -> None:
    """What no key leads to any more is gone with its bytes."""
    known: Interned[str, str] = Interned(250_000)
    for key in ("ann", "bob", "cid", "ann"):
        if known.get(key) is None:
            known.put(key, f"list of {key}", key, 100_000)
        assert known.held[2] <= 250_000
    assert known.get("bob") is None
    assert dict(known.items()) == {"cid": "cid", "ann": "ann"}
    assert known.equal("list of bob") is None
    assert repr(known) == "<Interned 2 values of 2 keys, 202048 of 250000 bytes>"


def test_another_value_takes_the_place_of_the_last() -> None:
    """Its bytes are given back unless somebody else is shown the same."""
    known: Interned[str, str] = Interned(2**20)
    known.put("ann", "old", "old", 500)
    known.put("bob", "old", "old", 500)
    known.put("ann", "new", "new", 300)
    known.put("ann", "new", "new", 300)
    assert known.held == (2, 2, 800 + 2 * 1024)
    known.put("bob", "new", "new", 300)
    assert known.held == (2, 1, 300 + 2 * 1024)


def test_the_last_one_is_kept_whatever_it_weighs() -> None:
    """Else nobody could be led to a tool of a long list."""
    known: Interned[str, str] = Interned(10)
    known.put("ann", "a", "a", 500)
    known.put("bob", "b", "b", 500)
    assert dict(known.items()) == {"bob": "b"}
