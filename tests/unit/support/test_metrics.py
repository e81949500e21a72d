"""What the metrics count, and that no client and no removed upstream leaves a series behind."""

import random
import string

import pytest

from gateway.cache import leads, redis_generations, redis_store
from gateway.protocol.call import Reason
from gateway.support import bus, leases, rates, redis, redis_mailbox, redis_notebook
from gateway.support.metrics import REDIS_OPERATIONS, Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="1.2.3")


def lines(metrics: Metrics, start: str) -> list[str]:
    """Return the rendered samples that begin so,."""
    text = metrics.render().decode()
    return [line for line in text.splitlines() if line.startswith(start)]


def some_word(random_source: random.Random) -> str:
    return "".join(random_source.choices(string.printable, k=random_source.randint(1, 30)))


def test_a_listen_is_counted_in_and_out_by_what_ended_it(metrics: Metrics) -> None:
    """The words are from a closed set; a removed upstream leaves none behind (B52)."""
    for reason in ("result", "lost", "because"):
        metrics.listen_opened("alpha")
        metrics.listen_ended("alpha", reason)
    metrics.listen_opened("alpha")
    assert lines(metrics, "mcp_gateway_upstream_listens{") == [
        'mcp_gateway_upstream_listens{upstream="alpha"} 1.0'
    ]
    ended = lines(metrics, "mcp_gateway_upstream_listens_ended_total")
    assert sorted(line.partition('reason="')[2].partition('"')[0] for line in ended) == [
        "lost",
        "other",
        "result",
    ]
    assert lines(metrics, "mcp_gateway_streams_open{") == ['mcp_gateway_streams_open{side="upstream"} 1.0']
    metrics.forget("alpha")
    assert lines(metrics, "mcp_gateway_upstream_listens") == []


def test_an_exchange_is_counted_timed_and_no_longer_in_flight(metrics: Metrics) -> None:
    """One call leaves one count, one observation and no gauge behind."""
    metrics.exchange_started("/mcp")
    assert lines(metrics, "mcp_gateway_requests_in_flight") == [
        'mcp_gateway_requests_in_flight{endpoint="/mcp"} 1.0'
    ]
    metrics.exchange("/mcp", "tools/list", "ok", 0.004)
    assert lines(metrics, "mcp_gateway_requests_in_flight") == [
        'mcp_gateway_requests_in_flight{endpoint="/mcp"} 0.0'
    ]
    name, labels = "mcp_server_operation_duration_seconds", 'endpoint="/mcp",error_type=""'
    counts = [line.rpartition(" ")[2] for line in lines(metrics, f"{name}_bucket")]
    assert counts == ["0.0"] * 3 + ["1.0"] * 14
    for le, count in (("0.0025", "0.0"), ("0.005", "1.0"), ("60.0", "1.0"), ("+Inf", "1.0")):
        sample = f'{name}_bucket{{{labels},le="{le}",mcp_method_name="tools/list"}} {count}'
        assert lines(metrics, sample) == [sample]
    for part, count in (("count", "1.0"), ("sum", "0.004")):
        sample = f'{name}_{part}{{{labels},mcp_method_name="tools/list"}} {count}'
        assert lines(metrics, f"{name}_{part}") == [sample]


def test_ten_thousand_invented_words_mint_no_series(metrics: Metrics) -> None:
    """B52: what a client makes up falls under `other`."""
    source = random.Random(52)
    for _ in range(10_000):
        metrics.exchange_started("/mcp")
        metrics.exchange("/mcp", some_word(source), some_word(source), 0.001)
        metrics.rejected("other", some_word(source))
        metrics.upstream_call("time", some_word(source), some_word(source), 0.001)
        metrics.cache_lookup("time", some_word(source), some_word(source), some_word(source), 1.0)
        metrics.invalidated("time", some_word(source))
        metrics.catalogue("time", some_word(source), 1, 2)
        metrics.dropped("time", some_word(source))
        metrics.redis_operation(some_word(source), some_word(source))
        metrics.cache_hints("time", some_word(source), overridden=True)
        metrics.listen_ended("time", some_word(source))
    assert repr(metrics).endswith(" metrics, 16 series>")
    assert lines(metrics, "mcp_server_operation_duration_seconds_count") == [
        "mcp_server_operation_duration_seconds_count"
        '{endpoint="/mcp",error_type="other",mcp_method_name="other"} 10000.0'
    ]


def test_an_upstream_outcome_may_be_the_reason_itself(metrics: Metrics) -> None:
    """The label is the member's name in lower case."""
    metrics.upstream_call("time", "tools/call", Reason.TOO_LARGE, 0.1)
    assert lines(metrics, "mcp_client_operation_duration_seconds_count") == [
        "mcp_client_operation_duration_seconds_count"
        '{error_type="too_large",mcp_method_name="tools/call",upstream="time"} 1.0'
    ]


def test_a_removed_upstream_leaves_no_series(metrics: Metrics) -> None:
    """B52: only the forgotten upstream's series go, and it may come back."""
    for name in ("time", "gh"):
        metrics.upstream_up(name, True)
        metrics.upstream_connections(name, 3)
        metrics.upstream_call(name, "tools/call", "ok", 0.1)
        metrics.cache_lookup(name, "tools/list", "hit", "fresh", 1.0)
        metrics.excluded_tools(name, 1)
    metrics.forget("time")
    text = metrics.render().decode()
    assert 'upstream="time"' not in text
    assert 'upstream="gh"' in text
    metrics.upstream_up("time", False)
    assert lines(metrics, 'mcp_gateway_upstream_up{upstream="time"}') == [
        'mcp_gateway_upstream_up{upstream="time"} 0.0'
    ]


def test_a_removed_endpoint_or_issuer_leaves_no_series(metrics: Metrics) -> None:
    """B52: and a request that ends after that is under way nowhere."""
    for endpoint in ("/old", "/mcp"):
        metrics.exchange_started(endpoint)
        metrics.exchange(endpoint, "tools/call", "ok", 0.1)
        metrics.rejected(endpoint, "rate")
    for issuer in ("corp", "other"):
        metrics.issuer_asked(issuer, "keys", "ok", 0.1)
        metrics.verified(issuer, "ok")
    metrics.exchange_started("/old")
    metrics.forget_endpoint("/old")
    metrics.forget_issuer("corp")
    text = metrics.render().decode()
    assert 'endpoint="/mcp"' in text
    assert 'issuer="other"' in text
    assert "/old" not in text
    assert "corp" not in text
    metrics.exchange("/old", "tools/call", "ok", 0.1)
    assert 'requests_in_flight{endpoint="/old"} 0.0' in metrics.render().decode()


def test_streams_and_the_cache_report_what_is_there_now(metrics: Metrics) -> None:
    """Gauges follow, counters stay."""
    metrics.stream_opened("downstream")
    metrics.stream_opened("downstream")
    metrics.stream_closed("downstream")
    metrics.cache_size(entries=4, bytes=1000)
    assert lines(metrics, "mcp_gateway_streams") == [
        'mcp_gateway_streams_open{side="downstream"} 1.0',
        'mcp_gateway_streams_opened_total{side="downstream"} 2.0',
    ]
    assert lines(metrics, "mcp_gateway_cache_bytes") == ["mcp_gateway_cache_bytes 1000.0"]


def test_the_build_and_the_process_are_described(metrics: Metrics) -> None:
    """A scrape names the version and carries the process metrics."""
    text = metrics.render().decode()
    assert 'mcp_gateway_build_info{version="1.2.3"} 1.0' in text
    assert "process_resident_memory_bytes" in text
    assert metrics.content_type.startswith("text/plain")


def test_every_script_is_counted_under_its_name() -> None:
    """None is lost among the others."""
    scripts = [
        one
        for module in (
            bus,
            leads,
            leases,
            rates,
            redis,
            redis_generations,
            redis_mailbox,
            redis_notebook,
            redis_store,
        )
        for one in vars(module).values()
        if isinstance(one, redis.Script)
    ]
    assert {script.name for script in scripts} - {"ping"} == REDIS_OPERATIONS
