"""The table of methods agrees with the specification's schema and with itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.protocol.methods import LEGACY_METHODS, METHODS, TASKS, is_foreign, label

SCHEMA = Path(__file__).parents[2] / "schemas" / "mcp-2026-07-28.schema.json"


@pytest.fixture(scope="module")
def definitions() -> dict[str, Any]:
    """Return the definitions of the official schema."""
    loaded: dict[str, Any] = json.loads(SCHEMA.read_text())["$defs"]
    return loaded


def requests(definitions: dict[str, Any]) -> dict[str, str]:
    """Return the methods a client may ask for, and the definition of each request."""
    names = [one["$ref"].rpartition("/")[2] for one in definitions["ClientRequest"]["anyOf"]]
    return {definitions[name]["properties"]["method"]["const"]: name for name in names}


def test_every_request_of_the_revision_is_in_the_table(definitions: dict[str, Any]) -> None:
    """No method is missing, and none is made up."""
    core = {method for method, row in METHODS.items() if row.extension is None}
    assert core == requests(definitions).keys()


def test_the_methods_of_tasks_are_named_by_the_task() -> None:
    """T-04, T-05: the specification's schema does not hold them."""
    rows = {method: row for method, row in METHODS.items() if row.extension is not None}
    assert rows.keys() == {"tasks/get", "tasks/update", "tasks/cancel"}
    assert {(row.extension, row.named_by, row.cacheable, row.may_ask) for row in rows.values()} == {
        (TASKS, "taskId", False, False)
    }


def test_cacheable_methods_are_those_whose_result_carries_hints(definitions: dict[str, Any]) -> None:
    """A result is cacheable exactly if the schema gives it a ttlMs (C-02)."""
    for method, name in requests(definitions).items():
        result = definitions.get(name.removesuffix("Request") + "Result", {})
        assert METHODS[method].cacheable is ("ttlMs" in result.get("properties", {})), method


def test_lists_name_the_member_that_holds_their_elements(definitions: dict[str, Any]) -> None:
    """The list member is an array of the result that the schema requires."""
    lists = {method: row for method, row in METHODS.items() if row.kind == "list"}
    assert len(lists) == 4
    for method, row in lists.items():
        result = definitions[requests(definitions)[method].removesuffix("Request") + "Result"]
        assert row.items in result["required"]
        assert result["properties"][row.items]["type"] == "array"


def test_a_mirrored_name_is_a_required_parameter(definitions: dict[str, Any]) -> None:
    """Mcp-Name mirrors a string that each such request must have (S-11)."""
    named = {method: row.named_by for method, row in METHODS.items() if row.named_by and not row.extension}
    assert named == {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
    for method, member in named.items():
        params = definitions[requests(definitions)[method] + "Params"]
        assert member in params["required"]


def test_only_what_does_something_is_never_asked_twice() -> None:
    """Whatever else lost its answer may be asked for again (U-27)."""
    once = [method for method, row in METHODS.items() if not row.safe_to_retry]
    assert once == ["tools/call", "tasks/update", "tasks/cancel"]


@pytest.mark.parametrize("method", ["com.example/x", "x", "resources/directory/read", "toolslist"])
def test_a_method_may_be_some_extensions(method: str) -> None:
    """K-08."""
    assert is_foreign(method)


@pytest.mark.parametrize(
    "method",
    [*METHODS, *sorted(LEGACY_METHODS), "", "Tools/List", "tasks/new", "TASKS/GET", "notifications/tasks",
     "sampling/createMessage", "roots/list", "elicitation/create"],
)  # fmt: skip
def test_what_is_known_or_reserved_is_never_taken_for_foreign(method: str) -> None:
    """K-08: in no spelling, for a reader that ignores case would take it for ours."""
    assert not is_foreign(method)


def test_no_method_is_of_both_eras() -> None:
    """What older revisions have and this one dropped is not served (S-03)."""
    assert not LEGACY_METHODS & METHODS.keys()


def test_a_label_is_from_a_closed_set() -> None:
    """A client cannot mint a metric's label (B52)."""
    assert label("tools/list") == "tools/list"
    assert label("tools/list2") == "other"
    assert label("initialize") == "other"
