"""What an operator's wish to forget makes stale."""

import pytest

from gateway.core.purge import NothingToPurge, Wish, changes
from gateway.core.router import Namespace
from gateway.protocol.call import Change, Partition, UpstreamName

GH, BARE = UpstreamName("gh"), UpstreamName("bare")
SPACES = {GH: Namespace(GH, "gh"), BARE: Namespace(BARE, "")}


def purge(upstream: str, method: str | None = None, uri: str | None = None) -> Change:
    return Change(UpstreamName(upstream), method, uri, "purge")


@pytest.mark.parametrize(
    ("wish", "made"),
    [
        (Wish(), [purge("gh"), purge("bare")]),
        (Wish("gh"), [purge("gh")]),
        (Wish("gh", "tools/list"), [purge("gh", "tools/list")]),
        (Wish(None, "tools/list"), [purge("gh", "tools/list"), purge("bare", "tools/list")]),
        (Wish("gh", None, "a:1"), [purge("gh", "resources/read", "a:1")]),
        (
            Wish("gh", "resources/read", "gh+a:1"),
            [purge("gh", "resources/read", "a:1"), purge("gh", "resources/read", "gh+a:1")],
        ),
        (Wish("gh", None, "https://x/"), [purge("gh", "resources/read", "https://x/")]),
        (
            Wish(None, None, "gh+a:1"),
            [
                purge("gh", "resources/read", "a:1"),
                purge("gh", "resources/read", "gh+a:1"),
                purge("bare", "resources/read", "gh+a:1"),
            ],
        ),
    ],
)
def test_a_wish_is_the_changes_that_fulfil_it(wish: Wish, made: list[Change]) -> None:
    """A uri counts in both spellings it may be meant in, at every upstream it may be of."""
    assert list(changes(wish, SPACES)) == made


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (Wish("nope"), "gh, bare"),
        (Wish("gh", "prompts/get"), "tools/list"),
        (Wish("gh", "tools/list", "a:1"), "resources/read only"),
        (Wish("gh", None, "a:1", Partition("ann")), "not a single uri"),
    ],
)
def test_a_wish_that_cannot_be_meant_says_what_can(wish: Wish, said: str) -> None:
    """Nothing is forgotten by mistake, and nothing is said to be when it is not."""
    with pytest.raises(NothingToPurge, match=said):
        changes(wish, SPACES)


def test_of_one_caller_only_what_is_private_to_that_caller() -> None:
    """Everything, or what the rest of the wish leaves of it."""
    ann = Partition("ann")
    made = [Change(name, None, None, "purge", ann) for name in (GH, BARE)]
    assert list(changes(Wish(partition=ann), SPACES)) == made
    narrow = Change(GH, "tools/list", None, "purge", ann)
    assert list(changes(Wish("gh", "tools/list", partition=ann), SPACES)) == [narrow]
