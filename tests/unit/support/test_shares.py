"""No holder takes more than its share, and all of them no more than there is."""

from gateway.support.shares import Shares


def test_a_holder_has_a_share_and_all_have_what_there_is() -> None:
    """Which of the two is in the way, is said; what is given back may be taken again."""
    shares = Shares(3, 2)
    assert [shares.take("ann") for _ in range(3)] == [None, None, "own"]
    assert [shares.take("bob") for _ in range(2)] == [None, "all"]
    shares.give_back("ann")
    assert shares.take("bob") is None
    assert shares.take("ann") == "all"
    assert repr(shares) == "<Shares 3 of 3, by 2>"


def test_who_holds_nothing_is_forgotten() -> None:
    """Also who was refused only: callers come and go without end."""
    shares = Shares(1, 1)
    assert shares.take("ann") is None
    for number in range(10):
        assert shares.take(f"caller {number}") == "all"
    shares.give_back("ann")
    assert len(shares) == 0
    assert repr(shares) == "<Shares 0 of 1, by 0>"
