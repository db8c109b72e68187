"""One request, whole: its boundaries, phases, token gaps, verdict and GPUs (``show --json``).

Owns finding the request that a person means and gathering what the relations say of it. Takes
every number from the relations; how it looks is for :mod:`tracekit.report`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit import chunks
from tracekit.analysis.attribution import define_attribution
from tracekit.analysis.fluidity import Fluidity, fluidity
from tracekit.analysis.slo import Slo
from tracekit.analysis.verdicts import evidence, request_verdicts
from tracekit.analysis.window import Window, format_time
from tracekit.errors import UsageError
from tracekit.lake.schema import RECORD_COLUMNS
from tracekit.names import BOUNDARIES, LEG_ROLES

if TYPE_CHECKING:
    from tracekit.analysis.session import Session

SCHEMA: Final = "tracekit.show/1"

#: How many candidates an ambiguous id lists.
_CANDIDATES: Final = 8
#: Columns of `requests` that the record of design §7 does not hold but a reader of one wants.
_ALSO: Final = (
    "request_key",
    "revision",
    "has_clock",
    "superseded_attempt",
    "leg_roles",
    "sources",
    "engine_version",
    "first_token_unix_ns",
    "last_token_unix_ns",
    "engine_step_wait_ms",
    "kv_transfer_wait_ms",
    "kv_transfer_wire_ms",
    "kv_transfer_recompute_ms",
    "double_prefill_ms",
    "prefill_wait_ms",
    "decode_preempted_ms",
    "after_last_token_ms",
    "chunk_count",
    "match_score",
    "ingested_unix_ns",
    "settled_unix_ns",
)


@dataclass(frozen=True)
class Boundary:
    """One boundary of one leg. ``at_unix_ns`` counts from the start where there is no clock."""

    name: str
    at_unix_ns: int
    provenance: str | None
    field: str | None
    role: str | None
    source: str | None
    worker: str | None


@dataclass(frozen=True)
class PhaseInterval:
    """One exclusive piece of the wall time; ``share`` is its part of it."""

    phase: str
    sub_phase: str | None
    start_unix_ns: int
    end_unix_ns: int
    ms: float
    share: float | None
    provenance: str | None
    field: str | None
    role: str | None
    worker: str | None


@dataclass(frozen=True)
class Gap:
    """One notable gap between chunks: ``excess_ms`` is the part over the stream's median gap."""

    index: int
    start_unix_ns: int
    end_unix_ns: int
    ms: float
    tokens: int | None
    is_stall: bool
    excess_ms: float | None


@dataclass(frozen=True)
class RequestDetail:
    """All there is to know of one request; ``to_json`` is the contract of ``show --json``.

    ``request`` holds the record's columns and a few more. ``boundaries`` are ordered by time,
    ``phases`` by time and exclusive. ``chunk_offsets_ms`` counts from the client's send.
    ``verdict`` is None for a request that is not slow or may not be judged; ``verdict_reason``
    then says which. ``inferred`` is the request's row of ``inferred_parts`` [ms]: what other
    requests tell of a phase that its source knows only as a whole. ``fluidity`` is against the
    limit of TPOT; None without one, or without chunk times.
    """

    request: dict[str, Any]
    boundaries: tuple[Boundary, ...]
    phases: tuple[PhaseInterval, ...]
    gaps: tuple[Gap, ...]
    chunk_offsets_ms: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    verdict: dict[str, Any] | None
    verdict_reason: str | None
    gpu: tuple[dict[str, Any], ...]
    fluidity: Fluidity | None = None
    inferred: dict[str, float | None] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "request": self.request,
            "boundaries": [asdict(b) for b in self.boundaries],
            "phases": [asdict(p) for p in self.phases],
            "gaps": [asdict(g) for g in self.gaps],
            "chunks": {
                "offsets_ms": list(self.chunk_offsets_ms),
                "tokens": list(self.chunk_tokens),
            },
            "verdict": self.verdict,
            "verdict_reason": self.verdict_reason,
            "gpu": list(self.gpu),
            "fluidity": asdict(self.fluidity) if self.fluidity else None,
            "inferred": self.inferred,
        }


def find_request(session: Session, wanted: str) -> str:
    """The request_key that ``wanted`` means: an id as given or, failing that, a unique beginning.

    Ids are the request key, the request id (also as an engine wrote it) and the trace id.
    UsageError if none or several requests match; several are listed with their keys.
    """
    if not wanted.strip():
        raise UsageError("the id is empty")
    for exact in (True, False):
        test = "{} = $wanted" if exact else "starts_with({}, $wanted)"
        for columns, relation in (
            (("request_key",), "requests"),
            (("request_id", "trace_id"), "requests"),
            (("request_id", "norm_request_id", "span_id"), "legs"),
        ):
            where = " or ".join(test.format(c) for c in columns)
            keys = session.con.execute(
                f"select distinct request_key from {relation} where {where}"
                f" order by request_key limit {_CANDIDATES + 1}",
                {"wanted": wanted},
            ).fetchall()
            if len(keys) == 1:
                return str(keys[0][0])
            if keys:
                raise UsageError(_ambiguous(session, wanted, [k for (k,) in keys]))
    raise UsageError(
        f"no request has the id {wanted!r} (request id, trace id or request key);"
        " `tracekit requests` lists them"
    )


def request_detail(
    session: Session,
    wanted: str,
    *,
    slo: Slo | None = None,
    baseline: Window | None = None,
    attribution_defined: bool = False,
    with_verdict: bool = True,
) -> RequestDetail:
    """Everything about the request that ``wanted`` means (see `find_request`).

    The verdict is the one `verdicts` gives under ``slo`` and ``baseline`` within the session's
    window; ``attribution_defined`` says that the session has their relations already, which is
    most of the work, and ``with_verdict`` false does without. Raises UsageError as `find_request`
    does.
    """
    key = find_request(session, wanted)
    request = _one(session, "requests", key)
    revision = request["revision"]
    legs = _rows(session, "legs", key, revision, order="leg_id")
    phases = _rows(session, "phases", key, revision, order="start_unix_ns, end_unix_ns")
    gaps = _rows(session, "token_gaps", key, revision, order="gap_index")
    stream = _stream(legs)
    verdict: dict[str, Any] | None = None
    reason: str | None = "not asked for"
    inferred = None
    if with_verdict:
        if _may_be_judged(request) and not attribution_defined:
            key = request["request_key"]
            define_attribution(session.con, slo or Slo(), baseline=baseline, include=key)
        verdict, reason = _verdict(session, request, slo or Slo())
        if _may_be_judged(request):
            inferred = _inferred(session, key)
    return RequestDetail(
        request={name: request[name] for name in (*RECORD_COLUMNS, *_ALSO)},
        boundaries=_boundaries(legs),
        phases=_phases(phases),
        gaps=tuple(
            Gap(
                index=g["gap_index"],
                start_unix_ns=g["start_unix_ns"],
                end_unix_ns=g["end_unix_ns"],
                ms=g["gap_ms"],
                tokens=g["tokens"],
                is_stall=bool(g["is_stall"]),
                excess_ms=g["excess_ms"],
            )
            for g in gaps
        ),
        chunk_offsets_ms=tuple(offset / 1e3 for offset in stream.offsets_us),
        chunk_tokens=tuple(stream.tokens),
        verdict=verdict,
        verdict_reason=reason,
        gpu=_gpu(session, request, legs),
        fluidity=(
            fluidity(stream.offsets_us, stream.tokens, limit_ms=slo.tpot_ms)
            if slo is not None and slo.tpot_ms is not None
            else None
        ),
        inferred=inferred,
    )


def _ambiguous(session: Session, wanted: str, keys: list[str]) -> str:
    rows = session.con.execute(
        "select request_key, coalesce(request_id, trace_id), start_unix_ns from requests"
        " where list_contains($keys, request_key) order by start_unix_ns nulls last, request_key",
        {"keys": keys[:_CANDIDATES]},
    ).fetchall()
    shown = ", ".join(
        f"{key} ({', '.join(filter(None, (name, at and format_time(at))))})"
        for key, name, at in rows
    )
    more = "" if len(keys) <= _CANDIDATES else " and more"
    return f"{wanted!r} is several requests: {shown}{more}; give the key or the whole id of one"


def _one(session: Session, relation: str, key: str) -> dict[str, Any]:
    frame = session.frame(f"select * from {relation} where request_key = $key", {"key": key})
    return frame.row(0, named=True)


def _rows(
    session: Session, relation: str, key: str, revision: int, *, order: str
) -> list[dict[str, Any]]:
    return session.frame(
        f"select * from {relation} where request_key = $key and revision = $revision"
        f" order by {order}",
        {"key": key, "revision": revision},
    ).to_dicts()


def _boundaries(legs: list[dict[str, Any]]) -> tuple[Boundary, ...]:
    found = []
    for leg in legs:
        if leg["sub_phase"] is not None and leg["kv_start_unix_ns"] is None:
            continue  # a stretch inside a phase bounds none: `phases` shows it
        for order, name in enumerate(BOUNDARIES):
            at = leg[f"{name}_unix_ns"]
            if at is None:
                continue
            provenance, _, field = (leg[f"{name}_src"] or "").partition(" ")
            boundary = Boundary(
                name=name,
                at_unix_ns=at,
                provenance=provenance or None,
                field=field or None,
                role=leg["role"],
                source=leg["source"],
                worker=leg["worker"],
            )
            found.append((at, order, boundary))
    found.sort(key=lambda item: item[:2])
    return tuple(boundary for _, _, boundary in found)


def _phases(rows: list[dict[str, Any]]) -> tuple[PhaseInterval, ...]:
    wall_ms = sum(r["duration_ms"] for r in rows)
    return tuple(
        PhaseInterval(
            phase=r["phase"],
            sub_phase=r["sub_phase"],
            start_unix_ns=r["start_unix_ns"],
            end_unix_ns=r["end_unix_ns"],
            ms=r["duration_ms"],
            share=r["duration_ms"] / wall_ms if wall_ms > 0 else None,
            provenance=r["provenance"],
            field=r["field"],
            role=r["role"],
            worker=r["worker"],
        )
        for r in rows
    )


def _stream(legs: list[dict[str, Any]]) -> chunks.Chunks:
    """The chunk times of the outermost leg that kept them."""
    kept = [leg for leg in legs if leg["chunk_times"]]
    kept.sort(key=lambda leg: LEG_ROLES.index(leg["role"]) if leg["role"] in LEG_ROLES else 99)
    return chunks.unpack(kept[0]["chunk_times"]) if kept else chunks.Chunks([], [])


def _may_be_judged(request: dict[str, Any]) -> bool:
    return request["quarantine_reason"] is None and not request["superseded_attempt"]


def _verdict(
    session: Session, request: dict[str, Any], slo: Slo
) -> tuple[dict[str, Any] | None, str | None]:
    """The verdict with the largest excess, or the reason why there is none."""
    if request["quarantine_reason"] is not None:
        return None, f"none: quarantined ({request['quarantine_reason']})"
    if request["superseded_attempt"]:
        return None, "none: a later attempt replaced this one"
    rows = request_verdicts(session, request["request_key"])
    if not rows:
        inside = session.frame(
            "select 1 from window_requests where request_key = $key",
            {"key": request["request_key"]},
        )
        if inside.is_empty():
            return None, "none: outside the window"
        slow = session.frame(
            "select 1 from slow_requests where request_key = $key", {"key": request["request_key"]}
        )
        if not slow.is_empty():
            return None, "none: slow, but not in the sample that is judged of very many"
        if slo.metrics:
            return None, "none: it meets the SLO"
        limits = session.frame(
            "select ttft_ms, tpot_ms, e2e_ms from slow_thresholds"
            " where model = coalesce($model, '') and route = coalesce($route, '')",
            {"model": request["model"], "route": request["route"]},
        )
        if not any(limit is not None for row in limits.rows() for limit in row):
            return None, "none: too few requests to tell what is slow; give --slo"
        return None, "none: not among the slowest 5 %"
    verdict = dict(rows[0])
    verdict["culprits"] = verdict.pop("culprit_request_ids")
    verdict["evidence"] = evidence(session, rows[0])
    verdict["other_metrics"] = [
        {key: row[key] for key in ("metric", "class", "phase", "cause", "excess_ms")}
        for row in rows[1:]
    ]
    for key in ("request_key", "request_id", "trace_id"):
        del verdict[key]
    return verdict, None


def _inferred(session: Session, key: str) -> dict[str, float | None] | None:
    rows = session.frame(
        "select * exclude (request_key) from inferred_parts where request_key = $key", {"key": key}
    ).to_dicts()
    return rows[0] if rows else None


def _gpu(
    session: Session, request: dict[str, Any], legs: list[dict[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """Means over the samples of the request's hosts during its life; empty without samples."""
    hosts = sorted({leg["host_name"] for leg in legs if leg["host_name"]})
    start, end = request["start_unix_ns"], request["end_unix_ns"]
    if not hosts or start is None or end is None:
        return ()
    return tuple(
        session.frame(
            """
            select host, gpu_uuid, mig_uuid, count(*) as windows,
                avg(dram_bw_util) as dram_bw_util, avg(sm_util) as sm_util,
                avg(gpu_time_util) as gpu_time_util, avg(power_w) as power_w,
                min(sm_clock_hz) as sm_clock_min_hz, max(mem_used_bytes) as mem_used_max_bytes,
                sum(throttled_ns) / 1e6 as throttled_ms
            from gpu_samples
            where list_contains($hosts, host)
                and win_start_unix_ns < $until and win_end_unix_ns > $since
            group by host, gpu_uuid, mig_uuid order by host, gpu_uuid, mig_uuid
            """,
            {"hosts": hosts, "since": start, "until": end},
        ).to_dicts()
    )
