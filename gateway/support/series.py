"""Series of numbers, by the rows that describe them: counted here, put together there, written out for all.

A series is a few numbers in a row, its cell: in memory, or in a ledger that another process reads. Counting
is a number of the cell that grows, where the library's own counters and histograms took eight microseconds
per exchange (measured); the library writes them out.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.support.ledger import Cell, Ledger, Snapshot, Values

_JOINS: dict[str, Callable[[tuple[float, float]], float]] = {"sum": sum, "max": max, "min": min}

OTHER = "other"
"""What a word counts as that is in no closed set."""


@dataclass(frozen=True, slots=True)
class Label:
    """What tells the series of one metric apart."""

    name: str
    meaning: str
    words: frozenset[str] | None = None
    """All that it can be, and `other`; without them it is a name of the configuration's."""

    def fold(self, word: str) -> str:
        """Return the word, or `other` in place of one that nobody foresaw (B52)."""
        return word if self.words is None or word in self.words else OTHER


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One metric: its name as it is queried, what it says, and how that of several processes becomes one."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[Label, ...] = ()
    merge: Literal["sum", "max", "min"] = "sum"
    bounds: tuple[float, ...] = ()
    """The upper ends of a histogram's buckets, but for the last one."""

    @property
    def size(self) -> int:
        """How many numbers one series takes: a histogram has one for each bucket, and the sum."""
        return len(self.bounds) + 2 if self.kind == "histogram" else 1

    @property
    def lasts(self) -> bool:
        """Whether it still counts when the process has ended that counted it."""
        return self.kind != "gauge"


class Series:
    """The series of one metric."""

    def __init__(self, row: Row, ledger: Ledger | None) -> None:
        self.row = row
        self._ledger = ledger
        self._names = tuple(label.name for label in row.labels)
        self.cells: dict[Values, Cell] = {}

    def cell(self, *values: str) -> Cell:
        """Return the numbers of one series, to count in directly where every microsecond counts."""
        return self.cells.get(values) or self._made(values)

    def add(self, *values: str, by: float = 1) -> None:
        self.cell(*values)[0] += by

    def set(self, *values: str, to: float) -> None:
        self.cell(*values)[0] = to

    def observe(self, *values: str, value: float) -> None:
        """Count an observation into its bucket."""
        observed(self.cell(*values), self.row.bounds, value)

    def drop(self, **named: str) -> None:
        """Remove the series with these labels; what still holds a cell of theirs must not count in it."""
        if any(name not in self._names for name in named):
            return
        wanted = [(self._names.index(name), value) for name, value in named.items()]
        for values in [one for one in self.cells if all(one[at] == value for at, value in wanted)]:
            del self.cells[values]
            if self._ledger is not None:
                self._ledger.release(self.row.name, values)

    def _made(self, values: Values) -> Cell:
        known = tuple(label.fold(word) for label, word in zip(self.row.labels, values, strict=True))
        cell = self.cells.get(known)
        if cell is None:
            size = self.row.size
            cell = [0.0] * size if self._ledger is None else self._ledger.cell(self.row.name, known, size)
            self.cells[known] = cell
        return cell


def observed(cell: Cell, bounds: Sequence[float], value: float) -> None:
    """Count a value into the cell of a histogram."""
    cell[bisect_left(bounds, value)] += 1
    cell[-1] += value


def quantile(row: Row, cells: Iterable[Sequence[float]], part: float) -> float | None:
    """Return the value that this part of all observations do not exceed, by their buckets; None without any.

    As Prometheus reckons it: evenly spread in a bucket, and the last bound for what lies beyond it.
    """
    counts: list[float] = [sum(column) for column in zip(*(list(cell)[:-1] for cell in cells), strict=True)]
    rank, below = part * sum(counts), 0.0
    if not rank:
        return None
    for count, low, high in zip(counts, (0.0, *row.bounds), row.bounds, strict=False):
        if below + count >= rank:
            return low + (high - low) * (rank - below) / count
        below += count
    return row.bounds[-1]


def merged(rows: Iterable[Row], live: Iterable[Snapshot], ended: Iterable[Snapshot] = ()) -> Snapshot:
    """Return as one what several processes counted; of those that ended only what lasts."""
    known = {row.name: row for row in rows}
    whole: dict[tuple[str, Values], list[float]] = {}
    for snapshot, alive in [*((one, True) for one in live), *((one, False) for one in ended)]:
        for key, numbers in snapshot.items():
            row = known.get(key[0])
            # A process of another release may count what is not known here.
            if row is None or not (alive or row.lasts) or not _fits(row, key[1], numbers):
                continue
            before = whole.get(key)
            whole[key] = list(numbers) if before is None else _both(row, before, numbers)
    return whole


def without(rows: Iterable[Row], snapshot: Snapshot, label: str, value: str) -> Snapshot:
    """Return a snapshot without the series that this label has this value of."""
    places = {row.name: [one.name for one in row.labels].index(label) for row in rows if _has(row, label)}
    return {
        (name, values): numbers
        for (name, values), numbers in snapshot.items()
        if name not in places or values[places[name]] != value
    }


def text(rows: Iterable[Row], snapshot: Snapshot, *others: Collector) -> bytes:
    """Return a snapshot, and what other collectors have to tell, in the Prometheus text format."""
    registry = CollectorRegistry()
    for other in others:
        registry.register(other)
    registry.register(_Read(list(_families(rows, snapshot))))
    return generate_latest(registry)


class _Read(Collector):
    """Hands the library what was counted."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(rows: Iterable[Row], snapshot: Snapshot) -> Iterator[Metric]:
    by_name: dict[str, list[tuple[Values, Sequence[float]]]] = {}
    for (name, values), numbers in snapshot.items():
        by_name.setdefault(name, []).append((values, numbers))
    for row in rows:
        yield _family(row, by_name.get(row.name, ()))


def _family(row: Row, series: Iterable[tuple[Values, Sequence[float]]]) -> Metric:
    names = [label.name for label in row.labels]
    if row.kind == "histogram":
        histogram = HistogramMetricFamily(row.name, row.text, labels=names)
        bounds = [*map(str, row.bounds), "+Inf"]
        for values, (*each, total) in series:
            histogram.add_metric(values, list(zip(bounds, accumulate(each), strict=True)), total)
        return histogram
    plain = (CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily)(
        row.name, row.text, labels=names
    )
    for values, numbers in series:
        plain.add_metric(values, numbers[0])
    return plain


def _has(row: Row, label: str) -> bool:
    return any(one.name == label for one in row.labels)


def _fits(row: Row, values: Values, numbers: Sequence[float]) -> bool:
    return len(values) == len(row.labels) and len(numbers) == row.size


def _both(row: Row, one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [_JOINS[row.merge](pair) for pair in zip(one, other, strict=True)]
