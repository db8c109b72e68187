"""Prometheus' text of ``/metrics`` as data points, in the shape that OTLP metrics have in the lake.

Owns which lines make one point, when it was taken and what must be refused; a single line is
`_prometheus_line`'s business. Opens nothing.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tracekit.errors import SourceError
from tracekit.ingest._attrs import BadItemError
from tracekit.ingest._metric_rows import (
    Metric,
    MetricRows,
    histogram_buckets,
    summary_quantiles,
)
from tracekit.ingest._prometheus_line import (
    LATEST_NS,
    Sample,
    plain_name,
    read_number,
    read_sample,
)
from tracekit.ingest.engine_logs import BadLine
from tracekit.words import plural

FORMAT: Final = "prometheus-text"
PROMETHEUS_FORMATS: Final[dict[str, str]] = {
    FORMAT: "Prometheus text of /metrics, scrapes parted by lines `# SCRAPE <start ns> <end ns>`"
}

_TYPE: Final = re.compile(r"^#\s*TYPE\b\s*(.*)$")
_TYPE_IS: Final = re.compile(r'^("(?:[^"\\]|\\.)+"|[^\s"{}]+)\s+([a-z]+)\s*$')
_SCRAPE: Final = re.compile(r"^#\s*SCRAPE\b\s*(.*)$")
_SCRAPE_IS: Final = re.compile(r"^(\d{1,19})\s+(\d{1,19})\s*$")
#: As our rows call it; OpenMetrics' other types have samples that stand alone.
_KINDS: Final = {
    "counter": "sum",
    "gauge": "gauge",
    "histogram": "histogram",
    "summary": "summary",
    "untyped": "gauge",
    "unknown": "gauge",
    "info": "gauge",
    "stateset": "gauge",
    "gaugehistogram": "gauge",
}
_SUFFIXES: Final = ("_total", "_sum", "_count", "_bucket")
_CREATED: Final = "_created"
_SAMPLES_MAX: Final = 1_000_000
_HEAD_LINES: Final = 2_000


@dataclass(frozen=True, slots=True)
class Point:
    """One data point, and the line it began in."""

    line: int
    metric: Metric
    start_unix_ns: int
    at_unix_ns: int
    value: float | None
    count: int | None
    buckets: dict[str, Any] | None
    attributes: dict[str, str]

    def add_to(self, rows: MetricRows) -> None:
        """BadItemError if it cannot be a row."""
        rows.add(
            self.metric,
            start_unix_ns=self.start_unix_ns,
            at_unix_ns=self.at_unix_ns,
            value=self.value,
            count=self.count,
            buckets=self.buckets,
            attributes=self.attributes,
        )


@dataclass(frozen=True)
class Scrape:
    """One answer of ``/metrics``. ``is_marked``: a SCRAPE line told when it was (its end is taken);
    ``is_dated``: no sample needed another time than that or its own."""

    is_marked: bool
    is_dated: bool
    points: list[Point]
    bad: list[tuple[int, BadLine]]


_Labels = tuple[tuple[str, str], ...]


def looks_like(head: bytes) -> bool:
    """Whether text begins as ``/metrics`` does: samples of families whose TYPE was told."""
    if b"# TYPE " not in head:
        return False
    types: dict[str, str] = {}
    good = bad = 0
    for line in head.split(b"\n")[:_HEAD_LINES]:
        text = line.decode("utf-8", "replace").strip()
        if match := _TYPE.match(text):
            if (told := _TYPE_IS.match(match[1])) and told[2] in _KINDS:
                types[plain_name(told[1])] = told[2]
        elif text and not text.startswith("#"):
            try:
                good += _family(types, read_sample(0, text).name) is not None
            except ValueError:
                bad += 1
    return good > bad


def read_scrapes(
    lines: Iterable[bytes], at_unix_ns: int | None, *, where: str = "the text"
) -> Iterator[Scrape]:
    """The scrapes of a text, whose ``lines`` keep their ends; ``where`` names it in errors.

    ``at_unix_ns`` is the time of samples that neither a SCRAPE line nor a time of their own
    places. SourceError if there are such and it is None, and for a scrape larger than any.
    """
    types: dict[str, str] = {}
    block = _Block(types, where, at_unix_ns)
    for number, raw in enumerate(lines, start=1):
        text = raw.decode("utf-8", "replace").strip()
        if match := _SCRAPE.match(text):
            if not block.is_marked and block.samples:
                block.lose("before the first SCRAPE line, so that nothing tells when they were")
            yield from block.scrapes()
            block = _Block(types, where, None, is_marked=True)
            block.mark(number, match[1])
        elif text.startswith("#"):
            block.comment(number, text)
        elif text:
            # a line is over when its end is there: of a number that is cut no digit is missed
            block.sample(number, text, whole=raw.endswith(b"\n") and "\ufffd" not in text)
    yield from block.scrapes()


def metric_times(
    scrapes: int, dated: int, marked: int, at_unix_ns: int | None, *, is_told: bool
) -> str:
    """Where the times of a file's ``scrapes`` came from, for the user.

    ``dated`` and ``marked`` count those that are; ``at_unix_ns`` is the time of the others, from
    --at if ``is_told``.
    """
    if marked == scrapes:
        return f"{plural(scrapes, 'scrape')}, each at the end that its SCRAPE line tells"
    if dated == scrapes or at_unix_ns is None:
        return "the samples tell their times themselves"
    at = dt.datetime.fromtimestamp(at_unix_ns // 10**9, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if is_told:
        return f"taken at {at}, as --at says"
    return f"taken at {at}, when the file was last written: if that is not so, say --at TIME"


@dataclass
class _Block:
    """The lines of one scrape, gathered until it is over. ``types`` holds for the whole file."""

    types: dict[str, str]
    where: str
    at_unix_ns: int | None
    is_marked: bool = False
    samples: list[Sample] = field(default_factory=list)
    bad: list[tuple[int, BadLine]] = field(default_factory=list)
    lost: str | None = None
    is_dated: bool = True

    def mark(self, number: int, text: str) -> None:
        told = _SCRAPE_IS.match(text)
        start, end = (int(told[1]), int(told[2])) if told else (0, 0)
        if not 0 < start <= end <= LATEST_NS:
            self.refuse(number, "bad_scrape_line", f"not two times in unix ns: {text[:80]!r}")
            self.lose("after a SCRAPE line that cannot be read")
        self.at_unix_ns = end

    def comment(self, number: int, text: str) -> None:
        if match := _TYPE.match(text):
            told = _TYPE_IS.match(match[1])
            if told is None or told[2] not in _KINDS:
                self.refuse(number, "bad_type_line", f"not a name and a type: {match[1][:80]!r}")
            else:
                self.types[plain_name(told[1])] = told[2]

    def sample(self, number: int, text: str, *, whole: bool) -> None:
        if not whole:
            self.refuse(number, "cut_line", "the line is cut, or not UTF-8")
            return
        try:
            found = read_sample(number, text)
        except ValueError as error:
            self.refuse(number, "undecodable", f"no sample: {error}")
            return
        if found.at_unix_ns is None and self.at_unix_ns is None and not self.is_marked:
            raise SourceError(
                "nothing tells when these metrics were",
                where=f"{self.where}:{number}",
                how="say it with --at TIME (ISO time or unix ns), or write a line "
                "`# SCRAPE <start ns> <end ns>` before each scrape",
            )
        self.is_dated &= found.at_unix_ns is not None
        self.samples.append(found)
        if len(self.samples) > _SAMPLES_MAX:
            raise SourceError(
                f"more than {_SAMPLES_MAX:,} samples in one scrape",
                where=f"{self.where}:{number}",
                how="part scrapes by lines `# SCRAPE <start ns> <end ns>`",
            )

    def refuse(self, number: int, reason: str, detail: str) -> None:
        self.bad.append((number, BadLine(reason, detail)))

    def lose(self, why: str) -> None:
        self.lost = why

    def scrapes(self) -> Iterator[Scrape]:
        """What the lines make; nothing if there were none."""
        if self.lost is not None and self.samples:
            detail = f"{plural(len(self.samples), 'sample')} {self.lost}"
            self.refuse(self.samples[0].line, "missing_time", detail)
            self.samples = []
        points = list(self._points())
        if points or self.bad:
            points.sort(key=lambda p: p.line)
            yield Scrape(
                self.is_marked,
                self.is_marked or self.is_dated,
                points,
                sorted(self.bad, key=lambda b: b[0]),
            )

    def _unique(self) -> list[Sample]:
        """The samples without repetitions. Where most of what follows the first one repeats what
        is there, it is another scrape, whose SCRAPE line is missing: none of it is placed."""
        seen: set[tuple[str, _Labels, int | None]] = set()
        kept: list[Sample] = []
        again: list[Sample] = []
        before = 0
        for sample in self.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())), sample.at_unix_ns)
            if key not in seen:
                seen.add(key)
                kept.append(sample)
                continue
            before = before if again else len(kept)
            again.append(sample)
        if len(again) > 1 and len(again) > len(kept) - before:
            detail = (
                f"{plural(len(again) + len(kept) - before, 'sample')} from here on repeat what is "
                "there before: another scrape, and no SCRAPE line parts them"
            )
            self.refuse(again[0].line, "repeated_series", detail)
            return kept[:before]
        for sample in again:
            self.refuse(sample.line, "repeated_series", f"{sample.name} is there before")
        return kept

    def _points(self) -> Iterator[Point]:
        starts: dict[tuple[str, _Labels], int] = {}
        single: list[tuple[Sample, str, str, int]] = []
        parts: dict[tuple[str, str, _Labels, int], list[Sample]] = {}
        for sample in self._unique():
            at = sample.at_unix_ns or self.at_unix_ns or 0
            labels = tuple(sorted(sample.labels.items()))
            base, kind = _family(self.types, sample.name) or (sample.name, "untyped")
            if kind in ("histogram", "summary"):
                label = "le" if kind == "histogram" else "quantile"
                rest = tuple(pair for pair in labels if pair[0] != label)
                parts.setdefault((base, kind, rest, at), []).append(sample)
            elif (made := _made(self.types, sample.name)) and 0 < sample.value * 1e9 < at:
                starts[made, labels] = round(sample.value * 1e6) * 1_000
            else:
                single.append((sample, base, kind, at))
        for sample, base, kind, at in single:
            labels = tuple(sorted(sample.labels.items()))
            start = starts.get((base, labels), 0) if kind == "counter" else 0
            yield Point(
                sample.line, _metric(sample.name, kind), start, at, sample.value, None, None,
                sample.labels,
            )  # fmt: skip
        for (base, kind, rest, at), found in parts.items():
            read = _histogram if kind == "histogram" else _summary
            try:
                value, count, buckets = read(base, found)
            except BadItemError as error:
                self.refuse(found[0].line, error.reason, error.detail)
                continue
            yield Point(
                found[0].line, _metric(base, kind), starts.get((base, rest), 0), at, value, count,
                buckets, dict(rest),
            )  # fmt: skip


def _metric(name: str, kind: str) -> Metric:
    counts = kind in ("counter", "histogram")
    return Metric(
        name=name,
        unit=None,
        metric_type=_KINDS[kind],
        is_monotonic=1 if kind == "counter" else None,
        temporality="cumulative" if counts else None,
    )


def _family(types: dict[str, str], name: str) -> tuple[str, str] | None:
    """(name that its TYPE line had, type) of a sample; None if none was told."""
    if name in types:
        kind = types[name]
        return (name, kind) if kind != "histogram" else None
    for suffix in _SUFFIXES:
        base = name.removesuffix(suffix)
        kind = types.get(base, "")
        if base != name and (
            (suffix == "_total" and kind == "counter")
            or (suffix in ("_sum", "_count") and kind in ("histogram", "summary"))
            or (suffix == "_bucket" and kind == "histogram")
        ):
            return base, kind
    return None


def _made(types: dict[str, str], name: str) -> str | None:
    """The family whose series' start a ``_created`` sample tells."""
    if not name.endswith(_CREATED):
        return None
    base = name.removesuffix(_CREATED)
    for family in (base, base + "_total"):
        if types.get(family) in ("counter", "histogram", "summary"):
            return family
    return None


_Read = tuple[float | None, int | None, dict[str, Any] | None]


def _histogram(name: str, samples: list[Sample]) -> _Read:
    total, count, bounds = _parts(name, samples, "_bucket", "le")
    if count is None:
        raise BadItemError("cut_histogram", f"{name}: no _count beside the other lines")
    if bounds and math.isinf(bounds[-1][0]):
        if bounds.pop()[1] != count:
            raise BadItemError("bad_buckets", f"{name}: the last bucket is not the count {count}")
    counts, below = [], 0
    for _, upto in [*bounds, (math.inf, count)] if bounds else []:
        if upto < below:
            raise BadItemError("bad_buckets", f"{name}: a bucket holds less than the one below")
        counts.append(upto - below)
        below = upto
    return total, count, histogram_buckets(name, [b for b, _ in bounds], counts, None, None)


def _summary(name: str, samples: list[Sample]) -> _Read:
    try:
        quantiles = [
            (read_number(s.labels["quantile"]), s.value) for s in samples if s.name == name
        ]
    except (KeyError, ValueError):
        raise BadItemError("bad_quantile", f"{name}: no quantile, or no number") from None
    lines = [s for s in samples if s.name != name]
    total, count, _ = _parts(name, lines, "_bucket", "le")
    return total, count, summary_quantiles(sorted(quantiles))


def _parts(
    name: str, samples: list[Sample], suffix: str, label: str
) -> tuple[float | None, int | None, list[tuple[float, int]]]:
    """(sum, count, [(bound, count up to it)] in order)."""
    total: float | None = None
    count: int | None = None
    bounds: dict[float, int] = {}
    for sample in samples:
        if sample.name == name + "_sum":
            total = sample.value
        elif sample.name == name + "_count":
            count = _whole(name, sample.value)
        elif sample.name == name + suffix and label in sample.labels:
            try:
                bound = read_number(sample.labels[label])
            except ValueError:
                raise BadItemError("bad_buckets", f"{name}: {label} is no number") from None
            if bound in bounds or math.isnan(bound):
                raise BadItemError("bad_buckets", f"{name}: bound {bound} twice, or none")
            bounds[bound] = _whole(name, sample.value)
        else:
            raise BadItemError("bad_buckets", f"{name}: a bucket without {label}")
    return total, count, sorted(bounds.items())


def _whole(name: str, value: float) -> int:
    if not (value >= 0 and value.is_integer()):
        raise BadItemError("bad_buckets", f"{name}: a count of {value}")
    return int(value)
