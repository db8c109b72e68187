"""One request as a drawing: lanes of legs, phases, boundaries and tokens on one axis of ms.

Owns placing what `detail` found on an axis that starts with the wall time; decides nothing about
phases or boundaries. Every frame has at most the rows that a chart can show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracekit import chunks
from tracekit.names import LEG_ROLES, PHASES

if TYPE_CHECKING:
    from tracekit.analysis.detail import Boundary, RequestDetail
    from tracekit.analysis.session import Session

#: The first lane: the whole request, each instant in the phase that claimed it.
WHOLE: Final = "request"

#: More chunks than this are drawn as their density.
_MARKS_MAX: Final = 1_200


@dataclass(frozen=True)
class RequestView:
    """Frames of one request; times in ms from the start of its wall time.

    ``phases``: ``lane``, ``phase``, ``sub_phase``, ``start_ms``, ``end_ms``, ``ms``, ``share``,
    ``provenance``, ``field``, ``role``, ``worker``; the phases of the lane WHOLE come again in the
    lane of the leg that claimed them. ``extents``: ``lane``, ``start_ms``, ``end_ms``, from a leg's
    first boundary to its last. ``boundaries``: ``lane``, ``name``, ``at_ms``, ``provenance``,
    ``field``, ``source``. ``chunks``: ``at_ms``, ``chunks``, ``tokens`` (several chunks a row where
    there are very many). ``gaps``: ``start_ms``, ``end_ms``, ``ms``, ``is_stall``, ``excess_ms``,
    ``tokens``, ``index``: stalls, and the other notable gaps longer than the stream's median.
    ``lanes`` are in display order.
    """

    lanes: tuple[str, ...]
    origin_unix_ns: int
    end_ms: float
    phases: pl.DataFrame
    extents: pl.DataFrame
    boundaries: pl.DataFrame
    chunks: pl.DataFrame
    gaps: pl.DataFrame


def request_view(session: Session, detail: RequestDetail) -> RequestView:
    """Place everything ``detail`` holds; ``session`` is asked for the chunk times only."""
    names = _lane_names(detail)
    origin = _origin(detail)
    phases = _phases(detail, names, origin)
    boundaries = _boundaries(detail.boundaries, names, origin)
    extents = boundaries.group_by("lane", maintain_order=True).agg(
        pl.col("at_ms").min().alias("start_ms"), pl.col("at_ms").max().alias("end_ms")
    )
    ends = [
        frame[column].max()
        for frame, column in ((phases, "end_ms"), (extents, "end_ms"))
        if frame.height
    ]
    present = set(phases["lane"]) | set(boundaries["lane"])
    return RequestView(
        lanes=tuple(n for n in (WHOLE, *dict.fromkeys(names.values())) if n in present),
        origin_unix_ns=origin,
        end_ms=max((float(e) for e in ends if isinstance(e, int | float)), default=0.0),
        phases=phases,
        extents=extents,
        boundaries=boundaries,
        chunks=_chunks(session, detail, origin),
        gaps=_gaps(detail, origin),
    )


def _lane_names(detail: RequestDetail) -> dict[tuple[str | None, str | None], str]:
    """The lane of each (role, worker), outermost role first.

    A leg that names no worker shares the lane of its role's only worker: a client's log and its
    span are one client.
    """
    pairs = {(b.role, b.worker) for b in detail.boundaries}
    pairs |= {(p.role, p.worker) for p in detail.phases if p.role is not None}
    named: dict[str | None, set[str]] = {}
    for role, worker in pairs:
        named.setdefault(role, set())
        if worker is not None:
            named[role].add(worker)

    def order(pair: tuple[str | None, str | None]) -> tuple[int, str]:
        role, worker = pair
        return (LEG_ROLES.index(role) if role in LEG_ROLES else len(LEG_ROLES), worker or "")

    lanes = {}
    for role, worker in sorted(pairs, key=order):
        workers = named[role]
        shown = next(iter(workers)) if worker is None and len(workers) == 1 else worker
        label = (role or "unknown").replace("_", " ")
        lanes[role, worker] = f"{label} · {shown}" if shown else label
    return lanes


def _origin(detail: RequestDetail) -> int:
    times = [p.start_unix_ns for p in detail.phases[:1]]
    times += [b.at_unix_ns for b in detail.boundaries]
    return min(times, default=0)


def _ms(at_unix_ns: int, origin: int) -> float:
    return (at_unix_ns - origin) / 1e6


def _phases(
    detail: RequestDetail, names: dict[tuple[str | None, str | None], str], origin: int
) -> pl.DataFrame:
    rows = []
    for p in detail.phases:
        row = {
            "phase": p.phase,
            "phase_order": list(PHASES).index(p.phase) if p.phase in PHASES else len(PHASES),
            "sub_phase": p.sub_phase,
            "start_ms": _ms(p.start_unix_ns, origin),
            "end_ms": _ms(p.end_unix_ns, origin),
            "ms": p.ms,
            "share": p.share,
            "provenance": p.provenance,
            "field": p.field,
            "role": p.role,
            "worker": p.worker,
        }
        rows.append({"lane": WHOLE} | row)
        if p.role is not None:
            rows.append({"lane": names[p.role, p.worker]} | row)
    return pl.DataFrame(
        rows,
        schema={
            "lane": pl.String,
            "phase": pl.String,
            "phase_order": pl.Int64,
            "sub_phase": pl.String,
            "start_ms": pl.Float64,
            "end_ms": pl.Float64,
            "ms": pl.Float64,
            "share": pl.Float64,
            "provenance": pl.String,
            "field": pl.String,
            "role": pl.String,
            "worker": pl.String,
        },
    )


def _boundaries(
    found: Sequence[Boundary], names: dict[tuple[str | None, str | None], str], origin: int
) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {
                "lane": names[b.role, b.worker],
                "name": b.name,
                "at_ms": _ms(b.at_unix_ns, origin),
                "provenance": b.provenance,
                "field": b.field,
                "source": b.source,
            }
            for b in found
        ],
        schema={
            "lane": pl.String,
            "name": pl.String,
            "at_ms": pl.Float64,
            "provenance": pl.String,
            "field": pl.String,
            "source": pl.String,
        },
    )


def _gaps(detail: RequestDetail, origin: int) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {
                "index": g.index,
                "start_ms": _ms(g.start_unix_ns, origin),
                "end_ms": _ms(g.end_unix_ns, origin),
                "ms": g.ms,
                "tokens": g.tokens,
                "is_stall": g.is_stall,
                "excess_ms": g.excess_ms,
            }
            for g in detail.gaps
            # among a stream's longest gaps may be ordinary ones: a short stream has no others
            if g.is_stall or (g.excess_ms or 0) > 0
        ],
        schema={
            "index": pl.Int64,
            "start_ms": pl.Float64,
            "end_ms": pl.Float64,
            "ms": pl.Float64,
            "tokens": pl.Int64,
            "is_stall": pl.Boolean,
            "excess_ms": pl.Float64,
        },
    )


def _chunks(session: Session, detail: RequestDetail, origin: int) -> pl.DataFrame:
    """Arrivals of the outermost leg that kept chunk times, thinned to what a chart can show."""
    rows = session.con.execute(
        "select role, send_unix_ns, chunk_times from legs"
        " where request_key = ? and revision = ? and chunk_times is not null"
        " and send_unix_ns is not null",
        [detail.request["request_key"], detail.request["revision"]],
    ).fetchall()
    schema = {"at_ms": pl.Float64, "chunks": pl.Int64, "tokens": pl.Int64}
    if not rows:
        return pl.DataFrame([], schema=schema)
    rows.sort(key=lambda r: LEG_ROLES.index(r[0]) if r[0] in LEG_ROLES else len(LEG_ROLES))
    _, send, packed = rows[0]
    stream = chunks.unpack(packed)
    shift_ms = _ms(send, origin)
    frame = pl.DataFrame(
        {
            "at_ms": [shift_ms + offset / 1e3 for offset in stream.offsets_us],
            "chunks": [1] * len(stream.offsets_us),
            "tokens": stream.tokens,
        },
        schema=schema,
    )
    if frame.height <= _MARKS_MAX:
        return frame
    first, last = stream.offsets_us[0] / 1e3 + shift_ms, stream.offsets_us[-1] / 1e3 + shift_ms
    step = max((last - first) / _MARKS_MAX, 1e-6)
    return (
        frame.group_by(((pl.col("at_ms") - first) / step).floor().alias("bin"))
        .agg(pl.col("at_ms").first(), pl.col("chunks").sum(), pl.col("tokens").sum())
        .sort("at_ms")
        .select(list(schema))
    )
