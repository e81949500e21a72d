"""What several processes counted becomes one, and what a histogram says of quantiles."""

import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.support.ledger import Ledger, read_ledger
from gateway.support.metrics import CALLS, TABLE, Metrics, folded, forgotten, merged
from gateway.support.series import Row, Series, quantile

TIMES = Row("t_seconds", "histogram", "Times", bounds=(1.0, 2.0, 4.0, 8.0))


def samples(text: bytes) -> dict[str, float]:
    """Return the gateway's own samples of a text in the Prometheus format."""
    lines = (line.rpartition(" ") for line in text.decode().splitlines() if line.startswith("mcp_"))
    return {name: float(value) for name, _, value in lines}


def worker(up: bool, calls: int, streams: int) -> Metrics:
    """Return what a process might have counted."""
    metrics = Metrics(version="1.2.3")
    metrics.upstream_up("alpha", up)
    metrics.upstream_breaker("alpha", not up)
    metrics.catalogue("alpha", "tools", 3, 90)
    for _ in range(calls):
        metrics.upstream_call("alpha", "tools/call", "ok", 0.2)
        metrics.rejected("/mcp", "rate")
    for _ in range(streams):
        metrics.stream_opened("downstream")
    return metrics


def test_several_processes_are_one_to_who_asks() -> None:
    """Counts are summed; of what can be wrong the worst is told; what all see alike is told once."""
    text = merged([worker(True, 2, 5).snapshot(), worker(False, 3, 7).snapshot()])
    read = samples(text)
    assert read['mcp_gateway_upstream_up{upstream="alpha"}'] == 1
    assert read['mcp_gateway_upstream_breaker_open{upstream="alpha"}'] == 1
    assert read['mcp_gateway_catalogue_items{kind="tools",upstream="alpha"}'] == 3
    assert read['mcp_gateway_rejected_total{endpoint="/mcp",reason="rate"}'] == 5
    assert read['mcp_gateway_streams_open{side="downstream"}'] == 12
    assert read['mcp_gateway_build_info{version="1.2.3"}'] == 1
    calls = 'error_type="",mcp_method_name="tools/call",upstream="alpha"}'
    assert read["mcp_client_operation_duration_seconds_count{" + calls] == 5
    assert read["mcp_client_operation_duration_seconds_sum{" + calls] == pytest.approx(1.0)
    assert b"\nprocess_resident_memory_bytes " in text


def test_what_ended_is_counted_on_and_holds_nothing_open() -> None:
    """A counter never falls, however often processes end and are made one with those before."""
    ended = folded([worker(False, 2, 5).snapshot()])
    ended = folded([ended, worker(False, 4, 5).snapshot()])
    read = samples(merged([worker(True, 1, 2).snapshot()], [ended]))
    assert read['mcp_gateway_rejected_total{endpoint="/mcp",reason="rate"}'] == 7
    assert read['mcp_gateway_streams_opened_total{side="downstream"}'] == 12
    assert read['mcp_gateway_streams_open{side="downstream"}'] == 2
    assert read['mcp_gateway_upstream_up{upstream="alpha"}'] == 1


def test_an_upstream_that_is_gone_is_gone_from_what_ended_too() -> None:
    """B52: what has no upstream stays."""
    left = forgotten(folded([worker(True, 2, 1).snapshot()]), "alpha")
    read = samples(merged([], [left]))
    assert not [name for name in read if "alpha" in name]
    assert read['mcp_gateway_rejected_total{endpoint="/mcp",reason="rate"}'] == 2


def test_another_release_may_count_what_is_not_known_here() -> None:
    """While one follows on the other; nobody knows how to tell it."""
    foreign = {("mcp_gateway_news_total", ("x",)): [1.0], (CALLS.name, ("alpha",)): [1.0], ("", ()): [1.0]}
    assert samples(merged([foreign])) == {}


def test_a_ledger_is_read_as_what_its_process_would_say(tmp_path: Path) -> None:
    """Every kind of metric has the same value by both roads."""
    metrics = Metrics(version="1.2.3", ledger=Ledger.create(tmp_path / "one"))
    metrics.upstream_call("alpha", "tools/call", "ok", 0.2)
    metrics.upstream_up("beta", True)
    metrics.rejected("/mcp", "no such reason")
    metrics.upstream_call("gone", "tools/call", "ok", 0.2)
    metrics.forget("gone")
    assert read_ledger(tmp_path / "one") == metrics.snapshot()
    assert samples(merged([read_ledger(tmp_path / "one")])) == samples(metrics.render())


def test_every_metric_is_named_as_prometheus_asks() -> None:
    """Counters end in _total, times are seconds, no name is there twice, and each says what it is."""
    assert len({row.name for row in TABLE}) == len(TABLE)
    for row in TABLE:
        assert row.name.endswith("_total") == (row.kind == "counter"), row.name
        assert row.name.endswith("_seconds") == (row.kind == "histogram" or "timestamp" in row.name), row.name
        assert row.name.startswith(("mcp_gateway_", "mcp_server_", "mcp_client_")), row.name
        assert row.text[0].isupper(), row.name
        assert not row.text.endswith("."), row.name
        assert [label.name for label in row.labels if not label.meaning] == []


@given(st.lists(st.floats(0, 20), min_size=1, max_size=50), st.sampled_from([0.01, 0.5, 0.95, 1.0]))
def test_a_quantile_lies_in_the_bucket_that_the_value_is_in(values: list[float], part: float) -> None:
    """That is all a histogram can tell; what lies beyond the last bound is that bound."""
    series = Series(TIMES, None)
    for value in values:
        series.observe(value=value)
    found = quantile(TIMES, [series.cell()], part)
    assert found is not None
    exact = sorted(values)[math.ceil(len(values) * part) - 1]
    edges = [0.0, *TIMES.bounds]
    low = max(edge for edge in edges if edge < exact or edge == 0.0)
    high = min((edge for edge in TIMES.bounds if edge >= exact), default=8.0)
    assert min(low, 8.0) <= found <= high


def test_quantiles_are_of_all_cells_together() -> None:
    """Those of several methods, or of several processes."""
    one, other = Series(TIMES, None), Series(TIMES, None)
    for _ in range(9):
        one.observe(value=0.5)
    other.observe(value=3.0)
    assert quantile(TIMES, [one.cell(), other.cell()], 0.5) == pytest.approx(5 / 9)
    assert quantile(TIMES, [one.cell(), other.cell()], 0.95) == pytest.approx(3.0)
    assert quantile(TIMES, [], 0.5) is None
    assert quantile(TIMES, [Series(TIMES, None).cell()], 0.5) is None


def test_merging_is_the_same_in_any_order() -> None:
    """Whichever process is read first."""
    snapshots = [worker(bool(n % 2), n, n).snapshot() for n in range(5)]
    before = samples(merged(snapshots))
    random.Random(7).shuffle(snapshots)
    after = samples(merged(snapshots))
    assert after == pytest.approx(before)
