"""Recorded Prometheus scrapes as rows of `metric_samples`, by Prometheus' own parser."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tracekit.lake.schema import METRIC_SAMPLES

_DAY = "2026-11-29"


def scrapes(path: Path) -> Iterator[tuple[int, str, Sample]]:
    """(time [unix ns], type, sample) of every sample, in the order of the scrapes."""
    text = gzip.decompress(path.read_bytes()).decode()
    for scrape in text.split("# SCRAPE ")[1:]:
        times, body = scrape.split("\n", 1)
        for family in text_string_to_metric_families(body):
            for sample in family.samples:
                yield int(times.split()[1]), family.type, sample


def metric_rows(path: Path, *, service: str, instance: str) -> pa.Table:
    """The samples of one server, as its exporter would have sent them."""
    rows = [
        {
            "name": sample.name,
            "metric_type": kind,
            "at_unix_ns": at,
            "value": sample.value,
            "attributes": json.dumps(sample.labels),
            "resource": "{}",
            "service_name": service,
            "service_instance_id": instance,
            "origin": "test",
            "ingested_unix_ns": at,
            "date": _DAY,
        }
        for at, kind, sample in scrapes(path)
    ]
    columns = {f.name: [r.get(f.name) for r in rows] for f in METRIC_SAMPLES.schema}
    return pa.table(columns, schema=METRIC_SAMPLES.schema)
