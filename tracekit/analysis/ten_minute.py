"""The ten-minute table: the last requests, which of them stand out, and one sentence.

Owns the small-sample answer. It needs no clock, no phases and no fit: twenty rows of a spreadsheet
are enough. It names no phase but the queue, and that only where a column tells it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import duckdb
import numpy as np
import numpy.typing as npt

from tracekit.analysis.timeless import RECORD_TIMES
from tracekit.analysis.wording import format_ms
from tracekit.words import plural, verb

if TYPE_CHECKING:
    from tracekit.analysis.session import Session

SCHEMA: Final = "tracekit.table/1"

#: Times that differ by less than this share are the same.
_SAME: Final = 0.01
#: Rows below which a rank correlation says nothing.
MIN_ROWS: Final = 8

#: A TTFT over twice the table's median is long; a token rate under half of it is low.
LONG_TTFT: Final = 2.0
LOW_RATE: Final = 0.5
#: Rows a median needs before anything is measured against it.
_MIN_MARK_ROWS: Final = 4

_Z95: Final = 1.959964
#: From this share of the TTFTs on the queue is most of them.
_MUCH_QUEUE: Final = 0.5
#: Below this share of the total time the first token counts as fast.
_FAST_TTFT_SHARE: Final = 0.25

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TenMinuteRow:
    """One request; times in ms. The marks are None where the value is unknown.

    ``low_only_by_ttft`` = the token rate is low because of the wait for the first token alone.
    """

    request: str
    input_tokens: int | None
    output_tokens: int | None
    ttft_ms: float | None
    total_ms: float | None
    tokens_per_s: float | None
    note: str | None
    status: str
    long_ttft: bool | None
    low_tokens_per_s: bool | None
    low_only_by_ttft: bool


@dataclass(frozen=True)
class LengthEffect:
    """Does a length push a time? Spearman's rank correlation with its 95 % interval.

    ``answer``: ``yes`` (the interval is above zero), ``not_shown``, or ``not_enough_rows``.
    ``short_ms``/``long_ms`` are medians over the third with the shortest and the longest.
    """

    name: str
    answer: str
    n: int
    correlation: float | None
    low: float | None
    high: float | None
    short_ms: float | None
    long_ms: float | None
    text: str


@dataclass(frozen=True)
class TenMinuteTable:
    """The table, the rules of its marks, what length does, what is missing, and the sentence."""

    rows: tuple[TenMinuteRow, ...]
    median_ttft_ms: float | None
    median_tokens_per_s: float | None
    rules: tuple[str, ...]
    findings: tuple[LengthEffect, ...]
    missing: tuple[str, ...]
    sentence: str

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        for name in ("rows", "rules", "findings", "missing"):
            plain[name] = list(plain[name])
        return {"schema": SCHEMA, **plain}


def ten_minute_table(session: Session, *, last: int = 20) -> TenMinuteTable:
    """The table of the last ``last`` requests of the session's window, the newest last."""
    table = ten_minute_connection(session.con, last=last)
    window = session.window
    if window.since_unix_ns is None and window.until_unix_ns is None:
        return table
    ((clockless,),) = session.con.execute(
        "select count(*) from window_requests where start_unix_ns is null"
    ).fetchall()
    if not clockless:
        return table
    rule = f"{plural(clockless, 'request')} without a start time {verb(clockless, 'is', 'are')} "
    return replace(table, rules=(*table.rules, f"{rule}in every window"))


def ten_minute_connection(con: duckdb.DuckDBPyConnection, *, last: int = 20) -> TenMinuteTable:
    """`ten_minute_table` on a connection with window_requests (and legs and request_log for rows
    without a start time, whose order is that of their file)."""
    records = _last_requests(con, last)
    done = [r for r in records if r["status"] == "ok"]
    ttft = _known([r["ttft_ms"] for r in done])
    rate = _known([r["tokens_per_s"] for r in done])
    median_ttft = float(np.median(ttft)) if len(ttft) >= _MIN_MARK_ROWS else None
    median_rate = float(np.median(rate)) if len(rate) >= _MIN_MARK_ROWS else None
    stream = _known([_stream_rate(r) for r in done])
    median_stream = float(np.median(stream)) if len(stream) >= _MIN_MARK_ROWS else None
    rows = tuple(_row(r, median_ttft, median_rate, median_stream) for r in records)
    findings = _findings(done)
    missing = _missing(done)
    return TenMinuteTable(
        rows=rows,
        median_ttft_ms=median_ttft,
        median_tokens_per_s=median_rate,
        rules=_rules(median_ttft, median_rate),
        findings=findings,
        missing=missing,
        sentence=_sentence(rows, records, findings, missing),
    )


def _last_requests(con: duckdb.DuckDBPyConnection, last: int) -> list[dict[str, Any]]:
    usable = (
        # rows without any time are shown too: their blanks say what was not recorded
        "from window_requests where coalesce(quarantine_reason, 'no_wall_time') = 'no_wall_time' "
        "and coalesce(superseded_attempt, 0) = 0"
    )
    ((clockless,),) = con.execute(f"select count(*) {usable} and start_unix_ns is null").fetchall()
    # rows of a spreadsheet have no time: they are as new as their import, in the file's order
    order = (
        """
        left join (
            select l.request_key, min(g.source_row) as source_row
            from legs as l join request_log as g on l.leg_id = substr(md5(g.log_key), 1, 24)
            where l.source = 'request_log' and g.start_unix_ns is null
            group by l.request_key
        ) as f on w.request_key = f.request_key
        """,
        "f.source_row desc nulls last,",
    )
    join, row = order if clockless else ("", "")
    records: list[dict[str, Any]] = (
        con.sql(
            f"""
        with w as (
            select request_key, request_id, coalesce(status, 'ok') as status, input_tokens,
                kv_transfer_ms > 0 or prefill_worker <> decode_worker as disaggregated,
                output_tokens, cached_tokens, ttft_ms, e2e_ms, note,
                -- beside time in which a server queued or prefilled, a router's queue is not all
                case when coalesce(queue_or_prefill_ms, 0) = 0 then queue_ms end as queue_ms,
                coalesce(tokens_per_s, output_tokens / nullif(e2e_ms, 0) * 1e3) as tokens_per_s,
                coalesce(start_unix_ns, ingested_unix_ns) as at_unix_ns
            {usable}
        )
        select w.* from w {join}
        order by w.at_unix_ns desc nulls last, {row} w.request_key
        limit {int(last)}
        """
        )
        .to_arrow_table()
        .to_pylist()
    )
    return records[::-1]


def _known(values: Sequence[float | None]) -> Floats:
    return np.array([v for v in values if v is not None and not math.isnan(v)], dtype=np.float64)


def _stream_rate(record: Mapping[str, Any]) -> float | None:
    """Tokens per second once the first token was there."""
    tokens, total, ttft = record["output_tokens"], record["e2e_ms"], record["ttft_ms"]
    if tokens is None or total is None or ttft is None or tokens < 2 or total <= ttft:
        return None
    return float((tokens - 1) / (total - ttft) * 1e3)


def _row(
    record: Mapping[str, Any],
    median_ttft: float | None,
    median_rate: float | None,
    median_stream: float | None,
) -> TenMinuteRow:
    ttft, rate = record["ttft_ms"], record["tokens_per_s"]
    long_ttft = None if ttft is None or median_ttft is None else ttft > LONG_TTFT * median_ttft
    low_rate = None if rate is None or median_rate is None else rate < LOW_RATE * median_rate
    if record["status"] != "ok" and not record["output_tokens"]:
        low_rate = None  # it ended without an answer, and was not slow at one
    stream = _stream_rate(record)
    by_ttft = bool(
        low_rate
        and stream is not None
        and median_stream is not None
        and stream >= LOW_RATE * median_stream
    )
    return TenMinuteRow(
        request=record["request_id"] or record["request_key"],
        input_tokens=record["input_tokens"],
        output_tokens=record["output_tokens"],
        ttft_ms=ttft,
        total_ms=record["e2e_ms"],
        tokens_per_s=rate,
        note=record["note"],
        status=record["status"],
        long_ttft=long_ttft,
        low_tokens_per_s=low_rate,
        low_only_by_ttft=by_ttft,
    )


def _rules(median_ttft: float | None, median_rate: float | None) -> tuple[str, ...]:
    out = []
    if median_ttft is not None:
        out.append(
            f"long TTFT: over {LONG_TTFT:g} x the table's median of {format_ms(median_ttft)}"
        )
    if median_rate is not None:
        out.append(
            f"low tokens/s: under {LOW_RATE:g} x the table's median of {median_rate:.1f} tokens/s"
        )
    return tuple(out)


def _ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def rank_correlation(x: Floats, y: Floats) -> tuple[float, float, float] | None:
    """Spearman's rho and its 95 % interval (Bonett and Wright); None if either does not vary."""
    rx, ry = _ranks(x), _ranks(y)
    if len(x) < 4 or rx.std() == 0 or ry.std() == 0:
        return None
    rho = float(np.corrcoef(rx, ry)[0, 1])
    z = math.atanh(max(-0.9999, min(0.9999, rho)))
    half = _Z95 * math.sqrt((1 + rho * rho / 2) / (len(x) - 3))
    return rho, math.tanh(z - half), math.tanh(z + half)


#: What each effect relates: a length and a time.
_WORDS: Final[dict[str, tuple[str, str]]] = {
    "input_pushes_ttft": ("input tokens", "TTFT"),
    "output_pushes_total": ("output tokens", "total time"),
    "output_slows_tokens": ("output tokens", "time per token"),
}


def _effect(
    name: str, lengths: Sequence[float | None], times: Sequence[float | None]
) -> LengthEffect:
    length, time = _WORDS[name]
    pairs = [(a, b) for a, b in zip(lengths, times, strict=True) if a is not None and b is not None]
    n = len(pairs)
    if n < MIN_ROWS:
        text = f"{length} against {time}: {plural(n, 'row')}, {MIN_ROWS} are needed"
        return LengthEffect(name, "not_enough_rows", n, None, None, None, None, None, text)
    x = np.array([p[0] for p in pairs], dtype=np.float64)
    y = np.array([p[1] for p in pairs], dtype=np.float64)
    found = rank_correlation(x, y)
    if found is None:
        text = f"{length} against {time}: one of them is the same in all {n} rows"
        return LengthEffect(name, "not_shown", n, None, None, None, None, None, text)
    if np.ptp(y) <= _SAME * np.median(y):
        # a perfect rank correlation of rounding errors is no finding
        text = (
            f"{time} is the same within {_SAME * 100:.0f} % in all {n} rows, whatever the {length}"
        )
        return LengthEffect(name, "not_shown", n, None, None, None, None, None, text)
    rho, low, high = found
    order = np.argsort(x, kind="stable")
    third = max(1, n // 3)
    short, long = float(np.median(y[order[:third]])), float(np.median(y[order[-third:]]))
    numbers = f"rank correlation {rho:.2f}, 95 % interval {low:.2f} to {high:.2f}, n = {n}"
    answer = "yes" if low > 0 else "not_shown"
    grows = "grows" if low > 0 else "is not shown to grow"
    text = (
        f"{time} {grows} with {length} ({numbers}): {format_ms(short)} for the third with the "
        f"fewest, {format_ms(long)} for the third with the most"
    )
    return LengthEffect(name, answer, n, rho, low, high, short, long, text)


def _findings(done: Sequence[Mapping[str, Any]]) -> tuple[LengthEffect, ...]:
    inputs = [r["input_tokens"] for r in done]
    outputs = [r["output_tokens"] for r in done]
    per_token = [None if (rate := _stream_rate(r)) is None else 1e3 / rate for r in done]
    return (
        _effect("input_pushes_ttft", inputs, [r["ttft_ms"] for r in done]),
        _effect("output_pushes_total", outputs, [r["e2e_ms"] for r in done]),
        _effect("output_slows_tokens", outputs, per_token),
    )


def _missing(done: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Fields that not even half of the rows have."""
    wanted = ("ttft_ms", "e2e_ms", "input_tokens", "output_tokens", "cached_tokens", "queue_ms")
    return tuple(f for f in wanted if 2 * sum(r[f] is not None for r in done) < len(done))


#: What a missing field leaves open.
_CANNOT_RULE_OUT: Final = {"cached_tokens": "a cache miss", "queue_ms": "a wait in the queue"}

#: What is asked for where the lengths explain nothing.
_ASKED: Final = {"queue_ms": "queue wait", "cached_tokens": "cache hits"}

_MISSING_WORDS: Final = {
    "ttft_ms": "TTFT",
    "e2e_ms": "total time",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "cached_tokens": "cache hit (cached_tokens)",
    "queue_ms": "queue wait (queue_ms)",
}


def _sentence(
    rows: Sequence[TenMinuteRow],
    records: Sequence[Mapping[str, Any]],
    findings: Sequence[LengthEffect],
    missing: Sequence[str],
) -> str:
    done = [r for r in records if r["status"] == "ok"]
    by_input, by_output, per_token = findings
    unsaid = ""
    if missing:
        fields = ", ".join(_MISSING_WORDS[f] for f in missing)
        unsaid = f"; not recorded: {fields}"
        doubts = [w for f, w in _CANNOT_RULE_OUT.items() if f in missing]
        if doubts:
            unsaid += f", so {' or '.join(doubts)} cannot be ruled out"
    if len(done) < MIN_ROWS:
        return (
            f"Not enough rows for a conclusion: {plural(len(done), 'completed request')}, "
            f"{MIN_ROWS} are "
            f"needed to see whether a length pushes a time{unsaid}."
        )
    timed = sum(r["ttft_ms"] is not None or r["e2e_ms"] is not None for r in done)
    if timed < MIN_ROWS:
        return (
            f"Not enough times for a conclusion: {timed or 'none'} of {len(done)} requests "
            f"{verb(timed or 1, 'has', 'have')} a TTFT or a total time, {MIN_ROWS} are needed; "
            f"{RECORD_TIMES}."
        )
    pushed_first = by_input.answer == "yes" and _matters(by_input, done)
    pushed_total = by_output.answer == "yes"
    # seconds weighed by how firmly the length goes with them: a few long answers in the table
    # must not outweigh an input length that orders the TTFTs nearly perfectly
    first_weight = _rise(by_input) * (by_input.correlation or 0.0)
    total_weight = _generation_rise(done) * (by_output.correlation or 0.0)
    if pushed_first and (not pushed_total or first_weight >= total_weight):
        also = _also(by_output, by_input) if pushed_total else ""
        apart = any(r["disaggregated"] for r in done)
        before = "" if apart else "before prefill/decode disaggregation "
        waits = _queue_share(done)
        if waits is not None and waits >= _MUCH_QUEUE:
            # long prompts make others wait, too: what they cost themselves is in no column here
            also += (
                f"; {100 * waits:.0f} % of all TTFT is wait in the queue (see `tracekit diagnose`)"
            )
        return (
            f"Long input makes the first token late: {_brief(by_input)}{also}; {before}try "
            f"prefix caching, fewer document chunks, or reranking{unsaid}."
        )
    if pushed_total:
        share = _ttft_share(done)
        start = (
            "The first token is fast, long answers make the time"
            if share is not None
            and share < _FAST_TTFT_SHARE
            and by_input.answer != "yes"
            and not any(r.long_ttft for r in rows)
            else "Long answers make the time"
        )
        also = f"; {_brief(by_input)}" if by_input.answer == "yes" else ""
        if per_token.answer == "yes":
            also += f"; {_brief(per_token)}"
        first = (
            "; for the first token try prefix caching, fewer document chunks, or reranking"
            if pushed_first
            else ""
        )
        return (
            f"{start}: {_brief(by_output)}{also}; limit output length and compare decode "
            f"concurrency, model size and the provider's token rate{first}{unsaid}."
        )
    queued = _queue_share([r for r, row in zip(records, rows, strict=True) if row.long_ttft])
    return f"{_unexplained(rows, by_input, by_output)}{_next(rows, missing, queued)}{unsaid}."


def _next(rows: Sequence[TenMinuteRow], missing: Sequence[str], queued: float | None) -> str:
    """What to look at where lengths explain nothing; ``queued``: the queue's share of long TTFTs.

    What is recorded is not asked for.
    """
    told = ""
    if queued is not None:
        told = f"; {100 * queued:.0f} % of the long TTFTs is wait in the queue"
    asked = [word for name, word in _ASKED.items() if name in missing]
    if asked:
        marked = any(row.long_ttft or row.low_tokens_per_s for row in rows)
        look = f"record {' and '.join(asked)}{' of the marked ones' if marked else ''}"
    else:
        look = "see what queue wait and cache hits explain (`tracekit diagnose`)"
    return f"{told}; {look} before changing prompts or outputs"


def _queue_share(records: Sequence[Mapping[str, Any]]) -> float | None:
    """The queue's share of the TTFTs; None if not even half of them say how long it was."""
    pairs = [(r["queue_ms"], r["ttft_ms"]) for r in records if r["ttft_ms"]]
    known = [(queue, ttft) for queue, ttft in pairs if queue is not None]
    if not known or 2 * len(known) < len(pairs):
        return None
    return float(sum(queue for queue, _ in known) / sum(ttft for _, ttft in known))


def _unexplained(
    rows: Sequence[TenMinuteRow], by_input: LengthEffect, by_output: LengthEffect
) -> str:
    """That the lengths do not explain the times, of those that could be looked at."""
    told = {
        word: effect.n
        for word, effect in (("input length", by_input), ("output length", by_output))
        if effect.answer != "not_enough_rows"
    }
    if not told:
        return f"Not enough rows for a conclusion: {by_input.text}; {by_output.text}"
    n = f"n = {max(told.values())}"
    start = f"Neither input length nor output length explains these times ({n})"
    if len(told) == 1:
        (word,) = told
        other = by_output if word == "input length" else by_input
        start = f"{word.capitalize()} does not explain these times ({n}; {other.text})"
    marked = [
        (sum(map(bool, marks)), what)
        for what, marks in (
            ("with long TTFT", [r.long_ttft for r in rows]),
            ("with low tokens/s", [r.low_tokens_per_s for r in rows]),
        )
        if any(mark is not None for mark in marks)
    ]
    counted = ", ".join(
        f"{n if i else plural(n, 'request')} {what}" for i, (n, what) in enumerate(marked)
    )
    counted = f": {counted}" if marked else ""
    return f"{start}{counted}"


def _brief(effect: LengthEffect) -> str:
    length, time = _WORDS[effect.name]
    return (
        f"{time} grows with {length}, {format_ms(effect.short_ms or 0.0)} to "
        f"{format_ms(effect.long_ms or 0.0)} (rank correlation {effect.correlation or 0.0:.2f}, "
        f"n = {effect.n})"
    )


def _also(second: LengthEffect, main: LengthEffect) -> str:
    """The other effect, where it is large enough to be worth words."""
    return f"; {_brief(second)}" if _rise(second) >= 0.2 * _rise(main) else ""


def _matters(effect: LengthEffect, done: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the rise is more than a twentieth of a usual request's total time."""
    totals = _known([r["e2e_ms"] for r in done])
    return not len(totals) or _rise(effect) >= 0.05 * float(np.median(totals))


def _rise(effect: LengthEffect) -> float:
    return (effect.long_ms or 0.0) - (effect.short_ms or 0.0)


def _generation_rise(done: Sequence[Mapping[str, Any]]) -> float:
    """What long outputs add after the first token: the total's rise less what TTFT adds to it."""
    after = [
        None if r["e2e_ms"] is None or r["ttft_ms"] is None else r["e2e_ms"] - r["ttft_ms"]
        for r in done
    ]
    effect = _effect("output_pushes_total", [r["output_tokens"] for r in done], after)
    return _rise(effect) * max(effect.correlation or 0.0, 0.0)


def _ttft_share(done: Sequence[Mapping[str, Any]]) -> float | None:
    pairs = [(r["ttft_ms"], r["e2e_ms"]) for r in done]
    known = [(a, b) for a, b in pairs if a is not None and b]
    total = sum(b for _, b in known)
    return sum(a for a, _ in known) / total if total else None
