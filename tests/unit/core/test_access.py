"""Who may see and call which tool."""

import time

import pytest

from gateway.config import ToolRules
from gateway.core.access import allowed


@pytest.mark.parametrize(
    ("name", "allow", "deny", "expected"),
    [
        ("search", ["*"], [], True),
        ("search", [], [], False),
        ("search", ["get_*"], [], False),
        ("get_user", ["get_*", "list_*"], [], True),
        ("delete_user", ["*"], ["*delete*"], False),
        ("get_user", ["get_*"], ["get_user"], False),
        ("Search", ["search"], [], False),
        ("search", ["sear"], [], False),
        ("search\n", ["search"], [], False),
        ("a\nb", ["a*b"], [], True),
        ("größe", ["gr??e"], [], True),
        ("v1.search", ["v1.*"], [], True),
        ("v1xsearch", ["v1.*"], [], False),
        ("tool[1]", ["tool[[]1]"], [], True),
        ("tool3", ["tool[0-9]"], ["tool[!3]"], True),
    ],
)
def test_rules_are_shell_globs_over_the_whole_name(
    name: str, allow: list[str], deny: list[str], expected: bool
) -> None:
    """A deny pattern beats every allow pattern; case, dots and line ends count."""
    assert allowed(name, ToolRules(allow=allow, deny=deny)) is expected


def test_a_hostile_name_costs_no_backtracking() -> None:
    """Upstreams choose the names that an operator's pattern is held against."""
    begun = time.process_time()
    assert not allowed("a" * 100_000, ToolRules(allow=["*a*a*a*a*a*b"]))
    assert time.process_time() - begun < 1.0
