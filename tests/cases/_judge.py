"""Asks the project about one case folder, and lists what is not as ``expected.json`` wants it.

Owns the meaning of every word of ``expected.json`` (README.md has them). Uses only what the
commands `import`, `diagnose`, `verdicts`, `table`, `show` and `doctor` are made of.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tracekit.analysis.detail import request_detail
from tracekit.analysis.diagnose import diagnose
from tracekit.analysis.doctor import health
from tracekit.analysis.session import Session
from tracekit.analysis.slo import parse_slo
from tracekit.analysis.ten_minute import ten_minute_table
from tracekit.analysis.verdicts import list_verdicts
from tracekit.analysis.window import parse_range, parse_window
from tracekit.ingest.importer import import_paths
from tracekit.lake.store import Store
from tracekit.report import diagnosis_md, diagnosis_text
from tracekit.report.console import make_console

Json = dict[str, Any]

#: Causes that blame nobody: the request costs what it costs.
SHAPES = frozenset({"long_prompt", "kv_transfer_size", "fixed_overhead"})

_NOW_NS = 1_795_986_000_000_000_000
#: Of many victims this share must get the verdict; of a handful all.
_MOST = 0.9


@dataclass
class Answer:
    """All that the project says of one case."""

    diagnosis: Json
    verdicts: list[Json]
    requests: dict[str, Json]
    boundaries: dict[str, list[str]]
    claims: list[str]
    everything: str
    sentence: str
    table: str
    values: Json = field(default_factory=dict)


def ask(folder: Path, store_path: Path, expected: Mapping[str, Any]) -> Answer:
    """Import the inputs of ``folder`` into a new store and ask with the arguments of the case."""
    store = Store.open(store_path, create=True)
    inputs = sorted(str(p) for p in folder.iterdir() if p.name != "expected.json")
    summary = import_paths(store, inputs)
    refused = summary.to_json()
    args = expected["args"]
    baseline = args.get("baseline")
    with Session.open(
        store, window=parse_window(args.get("since"), args.get("until"), now_unix_ns=_NOW_NS)
    ) as session:
        result = diagnose(
            session,
            parse_slo(args.get("slo")),
            baseline=parse_range(baseline, now_unix_ns=_NOW_NS) if baseline else None,
        )
        verdicts = list(list_verdicts(session))
        rows = session.frame("select * from requests").to_dicts()
        cells = session.frame("select engine_version, n from cost_model").rows()
        table = ten_minute_table(session)
        boundaries = {
            wanted: [
                f"{b.role} {b.name}"
                for b in request_detail(session, wanted, with_verdict=False).boundaries
            ]
            for wanted in expected.get("boundaries", ())
        }
    with Session.open(store) as session:
        remarks = [f"{r.text} {r.how or ''}" for r in health(session).remarks]
    text = io.StringIO()
    make_console(text, width=400).print(diagnosis_text.render(result, width=400))
    document = result.to_json()
    findings = document["findings"]
    claims = [document["sentence"]]
    for f in findings:
        claims += [f["sentence"], f["action"], *f["evidence"]]
    missing = [f"{m['field']} {m['why']} {m['how']}" for m in document["missing_evidence"]]
    by_version: dict[str, int] = {}
    for version, n in cells:
        by_version[version] = by_version.get(version, 0) + n
    everything = [
        *claims,
        *missing,
        *remarks,
        table.sentence,
        text.getvalue(),
        diagnosis_md.render(result),
    ]
    return Answer(
        diagnosis=document,
        verdicts=verdicts,
        requests={_plain_id(r["request_id"]): r for r in rows},
        boundaries=boundaries,
        claims=claims,
        everything="\n".join(everything),
        sentence=document["sentence"],
        table=table.sentence,
        values={**document, "cells": by_version, "import": refused},
    )


def failures(expected: Mapping[str, Any], answer: Answer) -> dict[str, str]:
    """Name of each check that failed, and what was found instead."""
    return dict(_failures(expected, answer))


def _failures(expected: Mapping[str, Any], answer: Answer) -> Iterator[tuple[str, str]]:
    if "victims" in expected:
        yield from _group("victims", expected, answer.verdicts)
    for group in expected.get("also", ()):
        yield from _group(group["name"], group, answer.verdicts)
    if "class" in expected:
        yield from _headline(expected, answer)
    if "finding" in expected:
        yield from _finding(expected["finding"], answer)
    if expected.get("no_fault"):
        blamed = [
            f"{v['request_id']} {v['metric']}: {_told(v)}"
            for v in answer.verdicts
            if v["class"] == "attributed"
        ]
        blamed += [
            f"finding: {f['phase']} {f['cause']}"
            for f in answer.diagnosis["findings"]
            if f["cause"] not in SHAPES
        ]
        if blamed:
            yield "no_fault", f"{len(blamed)} blamed, first {blamed[0]}"
    for pattern in expected.get("must_contain", ()):
        if not _search(pattern, answer.everything):
            yield f"must_contain {pattern}", "nowhere"
    for pattern in expected.get("sentence_must_contain", ()):
        if not _search(pattern, answer.sentence):
            yield f"sentence_must_contain {pattern}", answer.sentence
    for pattern in expected.get("sentence_must_not_contain", ()):
        if _search(pattern, answer.sentence):
            yield f"sentence_must_not_contain {pattern}", answer.sentence
    for pattern in expected.get("table_must_contain", ()):
        if not _search(pattern, answer.table):
            yield f"table_must_contain {pattern}", answer.table
    for pattern in expected.get("must_not_contain", ()):
        said = next((c for c in answer.claims if _search(pattern, c)), None)
        if said is not None:
            yield f"must_not_contain {pattern}", said
    fields = {m["field"] for m in answer.diagnosis["missing_evidence"]}
    for name in expected.get("missing", ()):
        if name not in fields:
            yield f"missing {name}", f"only {sorted(fields)}"
    for path, wanted in expected.get("values", {}).items():
        found = _at(answer.values, path)
        if not _is(found, wanted):
            yield f"value {path}", f"{found!r}, not {wanted!r}"
    for request_id, columns in expected.get("rows", {}).items():
        row = answer.requests.get(request_id)
        for column, wanted in columns.items():
            found = None if row is None else row[column]
            if row is None or not _is(found, wanted):
                yield f"row {request_id} {column}", f"{found!r}, not {wanted!r}"
    for request_id, wanted_names in expected.get("boundaries", {}).items():
        lacking = set(wanted_names) - set(answer.boundaries[request_id])
        if lacking:
            yield f"boundaries {request_id}", f"without {sorted(lacking)}"


def _group(
    name: str, wanted: Mapping[str, Any], verdicts: Sequence[Json]
) -> Iterator[tuple[str, str]]:
    """The verdicts of the requests that a case is about."""
    mine = {_plain_id(v["request_id"]): v for v in verdicts if v["metric"] == wanted["metric"]}
    ids = wanted["victims"]
    found = [mine[i] for i in ids if i in mine]
    if len(found) < len(ids):
        lost = [i for i in ids if i not in mine]
        yield f"{name}.exist", f"{len(lost)} of {len(ids)} have no verdict, first {lost[0]}"
    if not found:
        return
    enough = len(ids) if len(ids) < 10 else _MOST * len(ids)

    def most(check: str, good: Sequence[bool]) -> Iterator[tuple[str, str]]:
        if sum(good) < min(enough, len(found)):
            bad = [_told(v) for v, ok in zip(found, good, strict=True) if not ok]
            usual = max(sorted(set(bad)), key=bad.count)
            yield f"{name}.{check}", f"{len(bad)} of {len(found)} not so, most: {usual}"

    for key in ("class", "phase", "cause"):
        if key in wanted:
            yield from most(key, [v[key] == wanted[key] for v in found])
    if "any_of" in wanted:
        choices = wanted["any_of"]
        yield from most("any_of", [any(_fits(v, one) for one in choices) for v in found])
    if "culprits" in wanted:
        named = [[_plain_id(i) for i in v["culprit_request_ids"][:1]] for v in found]
        right = [bool(one) and one[0] in wanted["culprits"] for one in named]
        yield from most("culprits", right)
    sure = [v["confidence"] for v in found if v["confidence"] is not None]
    if "confidence_floor" in wanted:
        middle = median(sure) if sure else 0.0
        if middle < wanted["confidence_floor"]:
            yield f"{name}.confidence_floor", f"{middle:.2f} at the median"
    if "confidence_ceiling" in wanted and sure and max(sure) > wanted["confidence_ceiling"]:
        yield f"{name}.confidence_ceiling", f"{max(sure):.2f} at most"


def _fits(verdict: Json, wanted: Mapping[str, Any]) -> bool:
    ceiling = wanted.get("confidence_ceiling", 1.0)
    return all(verdict[k] == wanted[k] for k in ("class", "phase", "cause") if k in wanted) and (
        (verdict["confidence"] or 0.0) <= ceiling
    )


def _told(verdict: Json) -> str:
    words = [verdict["class"], verdict["phase"] or "-", verdict["cause"] or "-"]
    sure = verdict["confidence"]
    return " ".join(words) + ("" if sure is None else f" {sure:.2f}")


def _headline(expected: Mapping[str, Any], answer: Answer) -> Iterator[tuple[str, str]]:
    """The first finding: what the sentence is about."""
    findings = answer.diagnosis["findings"]
    if expected["class"] == "insufficient_evidence":
        if findings:
            yield "headline", f"{findings[0]['phase']} {findings[0]['cause']}"
        return
    if not findings:
        yield "headline", f"no finding: {answer.sentence}"
        return
    top = findings[0]
    wanted = (expected["phase"], expected.get("cause", top["cause"]))
    if (top["phase"], top["cause"]) != wanted:
        yield "headline", f"{top['phase']} {top['cause']}: {answer.sentence}"
    elif "culprits" in expected:
        named = [_plain_id(c["request_id"]) for c in top["culprits"]]
        if not named or named[0] not in expected["culprits"]:
            yield "headline.culprits", f"{named}"


def _finding(wanted: Mapping[str, Any], answer: Answer) -> Iterator[tuple[str, str]]:
    """There must be such a finding, wherever in the list; ``[low, high]`` is a range."""
    findings = answer.diagnosis["findings"]
    for f in findings:
        if all(
            wanted[k][0] <= f[k] <= wanted[k][1]
            if isinstance(wanted[k], list)
            else f[k] == wanted[k]
            for k in wanted
        ):
            return
    yield "finding", f"only {[(f['phase'], f['cause'], f['n'], f['excess_ms']) for f in findings]}"


def _plain_id(request_id: str | None) -> str:
    """The caller's id, whatever an engine puts before it."""
    return (request_id or "").removeprefix("chatcmpl-")


def _search(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE | re.MULTILINE) is not None


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(value, list):
            value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
        elif isinstance(value, Mapping):
            # keys with a dot in them are taken whole
            value = value.get(part)
        if value is None:
            return None
    return value


def _is(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping) and wanted.keys() & {"approx", "at_least", "at_most", "matches"}:
        if found is None:
            return False
        if "matches" in wanted:
            return re.search(wanted["matches"], str(found)) is not None
        return bool(
            abs(found - wanted.get("approx", found)) <= wanted.get("within", 0.0)
            and found >= wanted.get("at_least", found)
            and found <= wanted.get("at_most", found)
        )
    return bool(found == wanted)


def load(folder: Path) -> Json:
    """The content of ``expected.json``."""
    document: Json = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return document
