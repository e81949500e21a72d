"""What of a wish is asked for: as much as there is room for, and what was promised before all else."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.bounding import Room
from gateway.protocol.subscriptions import Wanted

NAMES = st.frozensets(st.sampled_from([letter * length for letter in "abcdeé" for length in range(1, 5)]))
WISHES = st.builds(Wanted, tools=st.booleans(), uris=NAMES, tasks=NAMES)


def size(names: Wanted) -> tuple[int, int]:
    """Return how many these are, and how many bytes."""
    all = [*names.uris, *names.tasks]
    return len(all), sum(len(name.encode()) for name in all)


@given(st.lists(WISHES), st.integers(1, 20), st.integers(1, 60))
def test_what_fits_stays_while_it_is_wanted_and_the_room_is_used(
    wishes: list[Wanted], most: int, most_bytes: int
) -> None:
    """Nobody who comes later takes the place of what is asked for already."""
    room, before = Room(most, most_bytes), Wanted()
    for wish in wishes:
        kept = room.fit(wish)
        count, length = size(kept)
        assert count <= most
        assert length <= most_bytes
        assert (kept | room.left_out, kept & room.left_out) == (wish, Wanted())
        assert not (before & wish).names - kept
        for name in (*room.left_out.uris, *room.left_out.tasks):
            assert count == most or length + len(name.encode()) > most_bytes
        assert room.fit(wish) == kept
        before = kept
