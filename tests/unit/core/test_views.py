"""Whole joined answers: to whom, until when, and how many."""

from gateway.core.results import made
from gateway.core.views import Views, Whole
from gateway.protocol.call import Partition
from tests.support.running import Clock

ANN, BOB = Partition("ann"), Partition("bob")
LIST, PROFILE = "tools/list", "profile"


def whole(clock, *, scope="public", ttl=60.0, epoch=0, size=10):
    dressed = made(LIST, {"tools": b'["' + b"x" * size + b'"]'}, server_info=b"{}")
    return Whole(dressed, clock(), clock() + ttl, scope, epoch)


def held(views, partition, *, method=LIST, profile=PROFILE, epoch=0):
    return views.get(method, profile, partition, epoch)


def test_a_public_answer_is_everybodys_and_a_private_one_its_callers():
    """Callers without a partition share no private answer (C-19, C-20)."""
    clock = Clock()
    views = Views(2**20, clock)
    own, shared = whole(clock, scope="private"), whole(clock)
    views.put(LIST, PROFILE, ANN, own, 0)
    assert held(views, ANN) is own
    assert held(views, BOB) is held(views, None) is None
    views.put(LIST, PROFILE, BOB, shared, 0)
    assert held(views, BOB) is held(views, None) is shared
    assert held(views, ANN) is own, "the caller's own first"
    views.put(LIST, PROFILE, None, whole(clock, scope="private"), 0)
    assert held(views, None) is shared


def test_an_answer_is_of_one_method_profile_and_epoch():
    """A change anywhere makes it stale at once; so does one that came while it was made (C-32)."""
    clock = Clock()
    views = Views(2**20, clock)
    views.put(LIST, PROFILE, None, whole(clock), 0)
    assert held(views, None, method="prompts/list") is None
    assert held(views, None, profile="other") is None
    assert held(views, None, epoch=1) is None
    views.put("prompts/list", PROFILE, None, whole(clock, epoch=0), 1)
    assert held(views, None, method="prompts/list", epoch=1) is None


def test_an_answer_lives_as_long_as_its_first_part():
    """Not a moment longer (C-09); one that is stale already is not kept (C-13)."""
    clock = Clock()
    views = Views(2**20, clock)
    views.put(LIST, PROFILE, None, whole(clock, ttl=10), 0)
    clock.advance(9.999)
    assert held(views, None) is not None
    clock.advance(0.001)
    assert held(views, None) is None
    views.put("prompts/list", PROFILE, None, whole(clock, ttl=0), 0)
    assert repr(views).startswith("<Views 1 answers")


def test_what_is_kept_is_bounded_in_bytes():
    """The least used go first; what is larger than all of it is not kept."""
    clock = Clock()
    views = Views(10_000, clock)
    for number in range(20):
        views.put(LIST, str(number), None, whole(clock, size=1000), 0)
    assert held(views, None, profile="0") is None
    assert held(views, None, profile="19") is not None
    views.put(LIST, "huge", None, whole(clock, size=20_000), 0)
    assert held(views, None, profile="huge") is None
    assert held(views, None, profile="19") is not None
