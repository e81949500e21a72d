"""When an upstream that fails requests is left alone, and when it is tried again."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.config import Breaker as Settings
from gateway.upstream.breaker import Breaker, Breakers

THREE = Settings(failures=3, rest=5.0, longest_rest=15.0)


def opened(now=100.0):
    breaker = Breaker(THREE)
    for _ in range(3):
        breaker.failed(breaker.admit(now), now)
    return breaker


def test_failures_in_a_row_open_it():
    """An answer in between, whatever it says, starts the row anew."""
    breaker = Breaker(THREE)
    for outcome in ("failed", "failed", "answered", "failed", "failed"):
        passed = breaker.admit(0.0)
        if outcome == "failed":
            breaker.failed(passed, 0.0)
        else:
            breaker.answered(passed)
    assert breaker.standing == "closed"
    breaker.failed(breaker.admit(0.0), 0.0)
    assert breaker.standing == "open"
    assert breaker.admit(0.0) is None
    assert breaker.left(1.0) == 4.0


def test_after_the_rest_one_request_at_a_time_tries():
    """The others are refused until it is known how that went, or it took as long as another rest."""
    breaker = opened()
    assert breaker.admit(104.9) is None
    first = breaker.admit(105.0)
    assert first is not None
    assert breaker.standing == "trying"
    assert breaker.admit(105.0) is None
    assert breaker.admit(109.9) is None
    second = breaker.admit(110.0)
    assert second not in (None, first)
    breaker.answered(first)
    assert breaker.standing == "closed"
    assert breaker.admit(110.0) is not None


def test_each_failed_trial_doubles_the_rest():
    """Up to the longest; once it is closed the first one counts again."""
    breaker = opened()
    for now, rest in ((105.0, 10.0), (115.0, 15.0), (130.0, 15.0)):
        breaker.failed(breaker.admit(now), now)
        assert breaker.left(now) == rest
    breaker.answered(breaker.admit(145.0))
    for _ in range(3):
        breaker.failed(breaker.admit(200.0), 200.0)
    assert breaker.left(200.0) == 5.0


def test_what_began_before_it_opened_says_nothing_any_more():
    """Neither a late answer closes it nor a late failure prolongs the rest."""
    breaker = Breaker(THREE)
    passed = [breaker.admit(0.0) for _ in range(5)]
    for number in passed[:3]:
        breaker.failed(number, 0.0)
    breaker.answered(passed[3])
    breaker.failed(passed[4], 4.0)
    assert breaker.standing == "open"
    assert breaker.left(4.0) == 1.0


def test_a_trial_that_is_given_up_leaves_its_place_to_another():
    """A client that leaves must not cost the upstream another rest."""
    breaker = opened()
    breaker.abandoned(breaker.admit(105.0), 105.5)
    assert breaker.standing == "open"
    assert breaker.admit(105.5) is not None


def fail(breakers, caller, times, now=100.0):
    for _ in range(times):
        passed = breakers.admit(caller, now)
        if passed is not None:
            breakers.failed(passed, now)


def test_one_caller_alone_closes_the_upstream_to_nobody_else():
    """Whoever calls what never answers is kept from it himself."""
    breakers = Breakers(Settings(failures=10))
    fail(breakers, "mallory", 1000)
    assert breakers.admit("mallory", 100.0) is None
    assert breakers.closed_to == 1
    assert breakers.left("mallory", 100.0) == 5.0
    assert breakers.admit("alice", 100.0) is not None
    assert breakers.standing == "closed"


def test_failures_of_several_callers_are_the_upstreams_own():
    """Half of those it takes come from others."""
    breakers = Breakers(Settings(failures=10))
    fail(breakers, "alice", 7)
    fail(breakers, "bob", 4)
    assert breakers.standing == "closed"
    fail(breakers, "bob", 1)
    assert breakers.standing == "open"
    assert breakers.admit("carol", 100.0) is None
    trial = breakers.admit("carol", 105.0)
    assert trial is not None
    assert breakers.admit("dave", 105.0) is None
    breakers.answered(trial)
    assert breakers.standing == "closed"
    assert breakers.admit("dave", 105.0) is not None


def test_an_answer_to_anybody_begins_the_count_of_all_anew():
    """Nothing is remembered of callers who are answered."""
    breakers = Breakers(Settings(failures=4))
    fail(breakers, "alice", 2)
    breakers.answered(breakers.admit("bob", 0.0))
    fail(breakers, "bob", 2)
    assert breakers.standing == "closed"
    breakers.answered(breakers.admit("alice", 0.0))
    breakers.answered(breakers.admit("bob", 0.0))
    assert repr(breakers) == "<Breakers closed, 0 callers with failures>"


def test_a_caller_who_may_not_takes_no_trial_of_all():
    """His own rest is longer than theirs: somebody else tries meanwhile."""
    breakers = Breakers(Settings(failures=2, rest=5.0, longest_rest=60.0))
    fail(breakers, "alice", 2)
    first = breakers.admit("alice", 105.0)
    assert first is not None
    breakers.failed(first, 105.0)
    fail(breakers, "bob", 1, now=105.0)
    assert breakers.standing == "open"
    assert breakers.admit("alice", 111.0) is None
    assert breakers.admit("bob", 111.0) is not None


def test_an_upstream_that_came_back_is_asked_by_everybody():
    """What failed meanwhile does not count against it."""
    breakers = Breakers(Settings(failures=2))
    fail(breakers, "alice", 5)
    fail(breakers, "bob", 5)
    breakers.close()
    assert breakers.admit("alice", 100.0) is not None


class Machine(RuleBasedStateMachine):
    """Requests that pass, answer, fail and are given up in any order, at any time."""

    def __init__(self):
        super().__init__()
        self.breaker = Breaker(THREE)
        self.now = 0.0
        self.passed = []
        self.trial_since = None

    @rule(seconds=st.floats(0.0, 30.0))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def ask(self):
        before = self.breaker.standing
        passed = self.breaker.admit(self.now)
        if passed is None:
            assert before != "closed"
            return
        if before != "closed":
            assert self.trial_since is None or self.now - self.trial_since >= THREE.rest
            self.trial_since = self.now
        self.passed.append(passed)

    @precondition(lambda self: self.passed)
    @rule(data=st.data(), outcome=st.sampled_from(["answered", "failed", "abandoned"]))
    def end(self, data, outcome):
        passed = self.passed.pop(data.draw(st.integers(0, len(self.passed) - 1)))
        if outcome == "answered":
            self.breaker.answered(passed)
        elif outcome == "failed":
            self.breaker.failed(passed, self.now)
        else:
            self.breaker.abandoned(passed, self.now)
        if self.breaker.standing != "trying":
            self.trial_since = None

    @invariant()
    def nobody_waits_longer_than_the_longest_rest(self):
        assert 0.0 <= self.breaker.left(self.now) <= THREE.longest_rest


TestMachine = Machine.TestCase
