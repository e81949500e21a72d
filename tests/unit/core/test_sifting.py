"""What is asked for next, given what was refused: the good is found, the bad left out, at a bounded cost."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.sifting import Sieve
from gateway.protocol.subscriptions import Wanted
from gateway.upstream.retrying import Pace

NAMES = st.frozensets(st.integers(0, 30).map(str), max_size=20)


def sieve() -> Sieve:
    return Sieve(Pace(first=1.0, longest=60.0), lambda: 0.0)


def named(*uris: str) -> Wanted:
    return Wanted(tools=True, uris=frozenset(uris))


def test_the_first_listen_asks_for_everything() -> None:
    """Nothing is known of the upstream yet."""
    assert sieve().trial(named("a", "b"), None) == named("a", "b")


def test_after_a_loss_what_was_taken_before_is_first() -> None:
    """Only then is what is new tried."""
    its = sieve()
    its.took(named("a"))
    assert its.trial(named("a", "b"), None) == named("a")
    assert its.trial(named("a", "b"), named("a")) == named("a", "b")


def test_refused_with_nothing_open_the_lists_are_next() -> None:
    """And refused for those alone, there is nothing else to try at once."""
    its = sieve()
    assert its.refused(named("a"), None, 0.0, certain=True, slow=False)
    assert its.trial(named("a"), None) == named()
    assert not its.refused(named(), None, 0.0, certain=True, slow=False)


def test_an_upstream_that_is_ill_costs_no_name_its_place() -> None:
    """Where no list is followed, nothing tells an illness from a refusal of the one name asked for."""
    its, only = sieve(), Wanted(uris=frozenset("a"))
    assert not its.refused(only, None, 0.0, certain=False, slow=False)
    assert its.fit(only, 0.0) == only


def test_a_name_is_left_out_for_longer_each_time() -> None:
    """Until it is taken, or the upstream may be another one."""
    its, wish = sieve(), named("a")
    its.refused(wish, named(), 0.0, certain=True, slow=False)
    assert (its.fit(wish, 0.9), its.fit(wish, 1.0)) == (named(), wish)
    assert its.next_fit(wish, 0.5) == 1.0
    its.refused(wish, named(), 1.0, certain=True, slow=False)
    assert (its.fit(wish, 2.9), its.fit(wish, 3.0)) == (named(), wish)
    its.took(wish)
    its.refused(wish, named(), 3.0, certain=True, slow=False)
    assert its.fit(wish, 4.0) == wish
    its.refused(wish, named(), 4.0, certain=True, slow=False)
    its.forget()
    assert its.fit(wish, 4.0) == wish


def test_what_is_slow_to_be_refused_is_not_searched() -> None:
    """All of it is left out, since each step of the search would take as long."""
    its = sieve()
    assert its.refused(named("a", "b"), named(), 0.0, certain=False, slow=True)
    assert its.fit(named("a", "b", "c"), 0.0) == named("c")


@given(wish=NAMES, bad=NAMES)
def test_a_search_ends_and_leaves_out_all_that_is_bad(wish: frozenset[str], bad: frozenset[str]) -> None:
    """It costs a bounded number of refusals; with few that are bad, all that is good is granted."""
    its, refusals, asked = sieve(), 0, named()
    its.took(asked)
    while asked != (fit := its.fit(named(*wish), 0.0)):
        trial = its.trial(fit, asked)
        assert trial != asked
        if trial.uris & bad:
            refusals += 1
            assert its.refused(trial, asked, 0.0, certain=True, slow=False)
        else:
            its.took(trial)
            asked = trial
    assert not asked.uris & bad
    assert refusals <= 40
    if len(wish & bad) == 1:
        assert asked.uris == wish - bad
