"""The comparison of conformance runs, on made-up runs."""

from tests.conformance.verdict import NO_SUCCESS, Row, judge, passed, scenario_of, worst

PASSES = {"own": "SUCCESS", "wire-schema-valid": "SUCCESS"}


def test_the_folder_name_gives_the_scenario_with_its_own_digits():
    """A timestamp is cut off, a revision inside the name stays."""
    assert scenario_of("server-json-schema-2020-12-2026-11-30T07-07-38-105Z") == "server-json-schema-2020-12"


def test_the_worst_status_of_a_repeated_check_counts():
    """One failure among successes of the same id is a failure."""
    checks = [{"id": "a", "status": s} for s in ("SUCCESS", "FAILURE", "SUCCESS")]
    assert worst(checks) == {"a": "FAILURE"}


def test_a_success_beside_skipped_ones_is_a_success():
    """A check that is made of every request is skipped where a request does not occur."""
    assert worst([{"id": "a", "status": s} for s in ("SUCCESS", "SKIPPED", "INFO")]) == {"a": "SUCCESS"}
    assert worst([{"id": "a", "status": "SKIPPED"}]) == {"a": "SKIPPED"}


def test_a_scenario_needs_a_success_of_its_own():
    """The schema check passes with nothing listening, and warnings alone are no success."""
    assert passed(PASSES)
    assert not passed({"wire-schema-valid": "SUCCESS", "own": "WARNING"})
    assert not passed({})


def test_a_check_that_only_the_server_passes_is_lost():
    """A warning, a skipped check and a missing one are all less than a success."""
    reference = {"a": "SUCCESS", "b": "SUCCESS", "c": "SUCCESS", "d": "WARNING"}
    row = Row("s", reference, {"a": "WARNING", "b": "SUCCESS", "d": "WARNING"})
    assert row.lost() == ("a", "c")


def test_a_scenario_that_did_not_run_through_the_gateway_is_lost():
    """No result is not a pass."""
    assert judge([Row("s", PASSES, {})], {}).unexpected == ["s:own", "s:wire-schema-valid"]


def test_a_scenario_without_a_reference_must_pass_without_warnings():
    """The client leg has nothing to be compared with."""
    assert Row("s", None, {"a": "SUCCESS", "b": "WARNING"}).lost() == ("b",)
    assert Row("s", None, {"wire-schema-valid": "SUCCESS"}).lost() == (NO_SUCCESS,)


def test_an_excuse_covers_its_check_or_its_whole_scenario():
    """Both forms of the name are understood."""
    row = Row("s", {**PASSES, "b": "SUCCESS"}, {**PASSES, "b": "FAILURE"})
    assert judge([row], {"s:b": "an issue"}).fine
    assert judge([row], {"s": "an issue"}).fine
    assert judge([row], {"s:own": "an issue"}).unexpected == ["s:b"]


def test_an_excuse_that_is_not_needed_is_stale():
    """The list of exceptions shrinks with every feature."""
    assert judge([Row("s", PASSES, PASSES)], {"s:own": "an issue"}).stale == ["s:own"]


def test_a_reference_that_fails_proves_nothing():
    """Otherwise a broken reference would make every gateway look good."""
    assert judge([Row("s", {"own": "FAILURE"}, {"own": "FAILURE"})], {}).reference == ["s"]


def test_what_is_excused_as_a_whole_needs_no_reference():
    """Nothing is concluded from it."""
    row = Row("s", {"own": "WARNING"}, {"own": "WARNING"})
    assert judge([row], {"s": "not served"}).fine
