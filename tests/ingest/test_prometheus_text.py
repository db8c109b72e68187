"""Prometheus' text as points: shapes, times, what is refused; recordings; bytes of any kind."""

from __future__ import annotations

import gzip
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tracekit.errors import SourceError
from tracekit.ingest.engine_logs import ENGINE_LOGS
from tracekit.ingest.files import detect
from tracekit.ingest.prometheus_text import (
    FORMAT,
    Point,
    Scrape,
    looks_like,
    read_scrapes,
)

DATA = Path(__file__).parents[1] / "data"
RECORDED = (
    "dynamo/kv_pressure.metrics_worker.prom.gz",
    "dynamo/pd_slow_kv.metrics_frontend.prom.gz",
    "llama_cpp/long-prompt.metrics.txt.gz",
    "sglang/pd-chunked.metrics_prefill.prom.gz",
    "sglang/unified-retract.metrics.prom.gz",
    "vllm_metrics/pd-nixl.decode.metrics.txt.gz",
)
AT = 1_795_988_357_000_000_000


def _bytes(name: str) -> bytes:
    return gzip.decompress((DATA / name).read_bytes())


def _read(text: str | bytes, at: int | None = AT) -> list[Scrape]:
    data = text.encode() if isinstance(text, str) else text
    return list(read_scrapes(data.splitlines(keepends=True), at, where="m.prom"))


def _points(text: str | bytes, at: int | None = AT) -> list[Point]:
    return [point for scrape in _read(text, at) for point in scrape.points]


def _refused(text: str | bytes) -> list[tuple[int, str]]:
    return [(n, bad.reason) for scrape in _read(text) for n, bad in scrape.bad]


def test_each_type_has_the_shape_that_otlp_gives_it() -> None:
    text = """\
# HELP up Whether it is.
# TYPE up gauge
up 1
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0"} 3.0
# TYPE vllm:num_preemptions_created gauge
vllm:num_preemptions_created{engine="0"} 1.7959826828684282e+09
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 2.0
vllm:iteration_tokens_total_bucket{engine="0",le="8.0"} 2.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf"} 5.0
vllm:iteration_tokens_total_count{engine="0"} 5.0
vllm:iteration_tokens_total_sum{engine="0"} 62.5
# TYPE gc summary
gc{quantile="0.5"} 0.25
gc{quantile="0.9"} NaN
gc_sum 7
gc_count 4
nobody_said_what 12
"""
    up, preempted, tokens, gc, nobody = _points(text)
    assert (up.metric.name, up.metric.metric_type, up.value, up.count) == ("up", "gauge", 1, None)
    assert (up.metric.is_monotonic, up.metric.temporality) == (None, None)
    assert up.at_unix_ns == AT and up.start_unix_ns == 0

    assert preempted.metric.name == "vllm:num_preemptions_total"
    assert (preempted.metric.metric_type, preempted.metric.is_monotonic) == ("sum", 1)
    assert (preempted.metric.temporality, preempted.value) == ("cumulative", 3)
    # when the counter was made is where its sum starts
    assert preempted.start_unix_ns == 1_795_982_682_868_428_000
    assert preempted.attributes == {"engine": "0"}

    assert (tokens.metric.name, tokens.line) == ("vllm:iteration_tokens_total", 9)
    assert (tokens.metric.metric_type, tokens.metric.temporality) == ("histogram", "cumulative")
    assert (tokens.value, tokens.count) == (62.5, 5)
    assert tokens.buckets == {"bounds": [1.0, 8.0], "counts": [2, 0, 3]}

    assert (gc.metric.metric_type, gc.value, gc.count) == ("summary", 7, 4)
    assert gc.buckets == {
        "quantiles": [{"quantile": 0.5, "value": 0.25}, {"quantile": 0.9, "value": "NaN"}]
    }
    assert (nobody.metric.metric_type, nobody.value) == ("gauge", 12)


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("x 1", AT),
        ("x 1 1795988357268", 1_795_988_357_268_000_000),  # ms
        ("x 1 1795988357.25", 1_795_988_357_250_000_000),  # s, as OpenMetrics has it
        ('x{a="b # {"} 1', AT),
        ('x{a="b"} 1 # {trace_id="0af7"} 0.5 1795988357.25', AT),  # an exemplar
        ('{"x",a="}"} 1', AT),  # a name in quotes
    ],
)
def test_a_sample_says_its_time_or_has_that_of_the_scrape(line: str, at: int) -> None:
    (point,) = _points(f"# TYPE x gauge\n{line}\n")
    assert (point.metric.name, point.value, point.at_unix_ns) == ("x", 1, at)


def test_scrapes_are_parted_and_dated_by_their_end() -> None:
    first, second = _read(
        "# SCRAPE 1795988357268046234 1795988357331734754\n# TYPE x counter\nx_total 1\n"
        "# SCRAPE 1795988358269968671 1795988358275444784\nx_total 4\n",
        at=None,
    )
    assert [p.at_unix_ns for s in (first, second) for p in s.points] == [
        1_795_988_357_331_734_754,
        1_795_988_358_275_444_784,
    ]
    # a type holds for the whole file
    assert second.points[0].metric.metric_type == "sum" and second.is_marked


def test_without_a_time_nothing_is_placed() -> None:
    with pytest.raises(SourceError, match=r"m\.prom:2.*--at"):
        _read("# TYPE x gauge\nx 1\n", at=None)
    assert _points("# TYPE x gauge\nx 1 1795988357268\n", at=None)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("x", "undecodable"),
        ("x one", "undecodable"),
        ("x 1_0", "undecodable"),
        ("x 1 2 3", "undecodable"),
        ("x 1 y 2", "undecodable"),
        ('x{a="b"} 1 y{c="d"} 2', "undecodable"),
        ('x{a="b" 1', "undecodable"),
        ('x{a="b"}1', "undecodable"),
        ("x 1 -5", "undecodable"),
        ("x 1 inf", "undecodable"),
        ("INFO 11-29 20:00:00 Avg prompt throughput: 1.0", "undecodable"),
        ("# TYPE x", "bad_type_line"),
        ("# TYPE x gau", "bad_type_line"),
        ("good 2", "repeated_series"),
        ('h_bucket{le="1"} 9', "bad_buckets"),
    ],
)
def test_a_bad_line_is_refused_by_its_number_and_the_rest_is_kept(bad: str, reason: str) -> None:
    text = f"""\
# TYPE good gauge
good 1
# TYPE h histogram
h_bucket{{le="4"}} 2
h_bucket{{le="+Inf"}} 3
h_sum 8
h_count 3
{bad}
# TYPE last counter
last_total 5
"""
    values = {p.metric.name: p.value for p in _points(text)}
    kept = {"good": 1, "h": 8, "last_total": 5}
    if reason == "bad_buckets":  # more below than above: the histogram is none
        del kept["h"]
        assert _refused(text) == [(4, reason)]
    else:
        assert _refused(text) == [(8, reason)]
    assert values == kept


def test_scrapes_that_nothing_parts_are_not_mixed() -> None:
    """Else a series that the first lacks would be dated by it."""
    text = "# TYPE x gauge\nx 1\ny 1\nx 2\ny 2\nz 2\n"
    assert [(p.metric.name, p.value) for p in _points(text)] == [("x", 1), ("y", 1)]
    assert _refused(text) == [(4, "repeated_series")]


def test_a_cut_end_is_no_number() -> None:
    """``12`` may be the beginning of ``123``."""
    text = "# TYPE x gauge\nx 7\n# TYPE y gauge\ny 12"
    assert [(p.metric.name, p.value) for p in _points(text)] == [("x", 7)]
    assert _refused(text) == [(4, "cut_line")]


def test_a_histogram_that_lost_its_count_is_none() -> None:
    text = '# TYPE h histogram\nh_bucket{le="1"} 2\nh_sum 8\n'
    assert _points(text) == [] and _refused(text) == [(2, "cut_histogram")]


def test_samples_that_no_scrape_line_places_are_left_out_once() -> None:
    marked = "# SCRAPE 1795988357268046234 1795988357331734754\nx 2\n"
    early = "# TYPE x gauge\nx 1\ny 1\n" + marked
    assert [p.value for p in _points(early)] == [2]
    assert _refused(early) == [(2, "missing_time")]
    for mark in ("x", "1 ", "17 16", "99999999999999999999 1"):
        text = f"# TYPE x gauge\n{marked}# SCRAPE {mark}\nx 3\ny 3\n{marked.replace('57', '58')}"
        assert [p.value for p in _points(text)] == [2, 2]
        assert _refused(text) == [(4, "bad_scrape_line"), (5, "missing_time")]


@pytest.mark.parametrize("name", RECORDED)
def test_recordings_say_what_the_library_reads(name: str) -> None:
    """The same numbers as Prometheus' own parser gives for the whole text."""
    text = _bytes(name).decode()
    scrapes = text.split("# SCRAPE ")
    bodies = [b.split("\n", 1)[1] for b in scrapes[1:]] if len(scrapes) > 1 else [text]
    read = _read(text)
    assert [s.bad for s in read] == [[]] * len(bodies)
    for body, scrape in zip(bodies, read, strict=True):
        told = {
            (s.name.removesuffix("_total"), _labels(s.name, s.labels)): s.value
            for family in text_string_to_metric_families(body)
            for s in family.samples
            if not s.name.endswith("_created") and not math.isnan(s.value)
        }
        # the library gives every counter the suffix
        ours = {
            (name.removesuffix("_total"), _labels(name, labels)): value
            for point in scrape.points
            for name, labels, value in _flat(point)
            if not math.isnan(value)
        }
        assert ours == told and len(told) >= 4


def _labels(name: str, labels: dict[str, str]) -> frozenset[tuple[str, str | float]]:
    is_bucket = name.endswith("_bucket")
    return frozenset((k, float(v) if is_bucket and k == "le" else v) for k, v in labels.items())


def _flat(point: Point) -> Iterator[tuple[str, dict[str, str], float]]:
    """The samples that a point was made of."""
    name, labels, value = point.metric.name, point.attributes, point.value
    assert value is not None
    if point.metric.metric_type != "histogram":
        yield name, labels, value
        return
    assert point.buckets is not None and point.count is not None
    yield name + "_sum", labels, value
    yield name + "_count", labels, point.count
    upto = 0
    for bound, count in zip(
        [*point.buckets["bounds"], math.inf], point.buckets["counts"], strict=False
    ):
        upto += count
        yield name + "_bucket", labels | {"le": str(bound)}, upto


@pytest.mark.parametrize("name", RECORDED)
def test_text_of_metrics_is_told_by_its_content(name: str) -> None:
    data = _bytes(name)
    assert detect("x", data, complete=True) == FORMAT
    assert not any(log.looks_like(data) for log in ENGINE_LOGS)
    # cut anywhere past the first samples
    assert detect("x", data[:2_000], complete=False) == FORMAT


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"# TYPE of a heading\n\nSome prose about the gauge.\n",
        b"# TYPE x gauge\nNo sample follows, it is prose.\n",
        b"# SCRAPE 1 2\nprose\n",
        b"x 1\ny 2\n",  # may be anything
        b"request,input_tokens,output_tokens,TTFT,total_latency\n1,2,3,4,5\n",
        b'{"request_id": "a", "start_unix_ns": 1795988353842848499, "e2e_ms": 5}\n',
        bytes(range(256)) * 4,
    ],
)
def test_foreign_text_is_not_taken_for_metrics(foreign: bytes) -> None:
    assert not looks_like(foreign)


@pytest.mark.parametrize(
    "name", ["sglang/unified-retract.log_server.txt.gz", "dynamo/kv_pressure.otlp.jsonl.gz"]
)
def test_other_recordings_are_not_taken_for_metrics(name: str) -> None:
    assert not looks_like(_bytes(name))


@pytest.mark.parametrize("name", RECORDED)
def test_cut_interleaved_and_foreign_lines_change_no_other_number(name: str) -> None:
    """What is read of a spoiled text is what is read of the whole one, or nothing."""
    lines = _bytes(name).splitlines(keepends=True)[:400]
    known = {_key(p): _says(p) for p in _points(b"".join(lines))}
    rng = random.Random(7)
    for _ in range(60):
        spoiled = list(lines)
        for _ in range(rng.randint(1, 6)):
            i, j = rng.randrange(len(spoiled)), rng.randrange(len(spoiled))
            match rng.randrange(5):
                case 0:  # cut
                    spoiled[i] = spoiled[i][: rng.randrange(len(spoiled[i]) + 1)]
                case 1:  # two processes wrote at once
                    spoiled[i] = spoiled[i][: rng.randrange(len(spoiled[i]) + 1)] + spoiled[j]
                case 2:  # bytes of any kind
                    spoiled[i] = rng.randbytes(rng.randrange(200)) + b"\n"
                case 3:  # a foreign line
                    spoiled.insert(i, b'127.0.0.1 - "POST /v1/completions HTTP/1.1" 200\n')
                case _:  # samples out of order
                    low, high = sorted((i, j))
                    if not any(b"SCRAPE" in line for line in spoiled[low : high + 1]):
                        spoiled[i], spoiled[j] = spoiled[j], spoiled[i]
        for point in _points(b"".join(spoiled)):
            assert 0 < point.at_unix_ns < 2**63
            if (said := known.get(_key(point))) is not None:
                assert _says(point) == said


def _key(point: Point) -> object:
    kind = point.metric.metric_type
    return point.metric.name, kind, point.at_unix_ns, tuple(sorted(point.attributes.items()))


def _says(point: Point) -> object:
    value = None if point.value is None or math.isnan(point.value) else point.value
    # a histogram may lose its sum with a line, or a bucket
    return point.count if point.metric.metric_type == "histogram" else value


def test_any_bytes_give_points_or_the_one_error() -> None:
    rng = random.Random(8)
    alphabet = b'# TYPE SCRAPE x{a="\\} 1.5e9NaN+Inf_bucket{le="1"}\n\r\t histogram summary counter'
    for _ in range(1_500):
        data = bytes(rng.choice(alphabet) for _ in range(rng.randrange(300)))
        looks_like(data)
        try:
            _read(data, at=rng.choice([AT, None]))
        except SourceError:
            pass
    for _ in range(300):
        _read(rng.randbytes(rng.randrange(500)))
