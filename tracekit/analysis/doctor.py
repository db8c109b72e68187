"""Is anything arriving, from whom, joined how well, and what is missing: ``tracekit doctor``.

Owns the judgement over the facts of ``sql/health``: which of them deserve a remark and what mends
them. Reads one session; sends nothing (that is :mod:`tracekit.analysis.probe`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from tracekit.analysis import sqlfiles
from tracekit.analysis.doctor_chains import Remark, Row, chain_remarks
from tracekit.analysis.likely import propose
from tracekit.analysis.swapped import Swapped, looks_swapped
from tracekit.analysis.systems import EXAMPLE, turn_on
from tracekit.words import plural as _n

if TYPE_CHECKING:
    from tracekit.analysis.session import Session

SCHEMA: Final = "tracekit.doctor/1"

#: ``ok`` is as it should be, ``note`` limits what can be said, ``problem`` loses or splits data.
LEVELS: Final = ("problem", "note", "ok")

#: Service name of the doctor's own test spans; left out of every count shown.
DOCTOR_SERVICE: Final = "tracekit-doctor"


#: Pairs of clocks that get a remark of their own.
_CLOCKS_NAMED: Final = 5


@dataclass(frozen=True)
class Health:
    """The state of one store. Rows are those of the files in ``sql/health``."""

    store: str
    now_unix_ns: int
    arrivals: tuple[Row, ...]
    services: tuple[Row, ...]
    joins: Row
    engines: tuple[Row, ...]
    refused: tuple[Row, ...]
    remarks: tuple[Remark, ...]
    chains: tuple[Row, ...] = ()
    clocks: tuple[Row, ...] = ()

    @property
    def last_ingested_unix_ns(self) -> int | None:
        """When anything last came in, None for an empty store."""
        return max(
            (a["last_ingested_unix_ns"] for a in self.arrivals if a["last_ingested_unix_ns"]),
            default=None,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "store": self.store,
            "now_unix_ns": self.now_unix_ns,
            "last_ingested_unix_ns": self.last_ingested_unix_ns,
            "arrivals": [dict(r) for r in self.arrivals],
            "services": [dict(r) for r in self.services],
            "joins": dict(self.joins),
            "engines": [dict(r) for r in self.engines],
            "chains": [dict(r) for r in self.chains],
            "refused": [dict(r) for r in self.refused],
            "clocks": [dict(r) for r in self.clocks],
            "remarks": [asdict(r) for r in self.remarks],
        }


def health(session: Session) -> Health:
    """The facts of ``sql/health`` over the session's store, and the remarks they deserve."""
    now = session.frame("select now_unix_ns from settings").item()
    arrivals = _rows(session, "arrivals")
    services = tuple(r for r in _rows(session, "services") if r["service_name"] != DOCTOR_SERVICE)
    joins = _rows(session, "joins")[0]
    engines = _rows(session, "engine_evidence")
    refused = _rows(session, "refused")
    chains = _rows(session, "chains")
    clocks = _rows(session, "clocks")
    remarks = (
        *_arrival_remarks(arrivals, services, now),
        *(_silent_remark(r) for r in _rows(session, "silent_services")),
        *_join_remarks(joins, _engines(session)),
        *_likeness_remarks(session, joins),
        *(remark for row in engines for remark in _engine_remarks(row)),
        *(remark for row in chains for remark in chain_remarks(row)),
        *_clock_remarks(clocks, *_clipped(session)),
        *(_swapped_remark(found) for found in looks_swapped(session.con)),
        *_refused_remarks(refused),
    )
    return Health(
        store=str(session.store.path),
        now_unix_ns=now,
        arrivals=arrivals,
        services=services,
        joins=joins,
        engines=engines,
        refused=refused,
        clocks=clocks,
        chains=chains,
        remarks=tuple(sorted(remarks, key=lambda r: LEVELS.index(r.level))),
    )


def _rows(session: Session, name: str) -> tuple[dict[str, Any], ...]:
    return tuple(session.frame(sqlfiles.load("health", name).body).to_dicts())


def _arrival_remarks(
    arrivals: Sequence[Row], services: Sequence[Row], now_unix_ns: int
) -> Iterator[Remark]:
    total = {a["table_name"]: a["total"] for a in arrivals}
    if not sum(total.values()):
        yield Remark(
            "problem",
            "arrival",
            "the store is empty: nothing has arrived yet",
            "import a file (`tracekit import PATH`), or run `tracekit collect` and point exporters "
            "to it: OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317 (gRPC) or :4318 (HTTP)",
        )
        return
    spans = next(a for a in arrivals if a["table_name"] == "spans")
    if spans["total"] and not spans["last_minute"]:
        age_s = (now_unix_ns - spans["last_ingested_unix_ns"]) // 1_000_000_000
        yield Remark(
            "note",
            "arrival",
            f"0 spans in the last 60 s; the last one came {_age(age_s)} ago",
            "if traffic is running: is the receiver up, and do the exporters point to it?",
        )
    for service in services:
        if service["service_name"] in ("", "unknown_service") or service["service_name"].startswith(
            "unknown_service:"
        ):
            yield Remark(
                "note",
                "services",
                f"{_n(service['spans'], 'span')} without a service name: workers cannot be told "
                "apart",
                "set OTEL_SERVICE_NAME for each server (one name a worker, or a "
                "service.instance.id in OTEL_RESOURCE_ATTRIBUTES)",
            )
    if total["spans"] and not any(s["legs"] for s in services):
        yield Remark(
            "problem",
            "services",
            f"none of {_n(total['spans'], 'span')} is part of an LLM request",
            "send the engine's request spans (vLLM: --otlp-traces-endpoint) or GenAI client spans "
            "(gen_ai.* attributes)",
        )


def _silent_remark(row: Row) -> Remark:
    return Remark(
        "note",
        "services",
        f"{row['service_name'] or 'a service without a name'} sent its start-up spans and never a "
        "request span",
        "if it served requests: vLLM sends none with --disable-log-stats, and none for requests "
        "whose traceparent says unsampled",
    )


def _engines(session: Session) -> tuple[str, ...]:
    """The engines that requests name."""
    rows = session.frame("select distinct engine from window_requests where engine is not null")
    return tuple(sorted(rows["engine"].to_list()))


def _join_remarks(joins: Row, engines: Sequence[str] = ()) -> Iterator[Remark]:
    requests = joins["requests"]
    if not requests:
        return
    client, server = joins["with_client"], joins["with_server"]
    if client and server:
        level = "ok" if joins["joined"] >= 0.9 * min(client, server) else "problem"
        yield Remark(
            level,
            "joins",
            f"{joins['joined']:,} of {_n(requests, 'request')} seen by client and server",
            None
            if level == "ok"
            else "clients and proxies must forward the traceparent header, or send X-Request-Id so "
            "that both sides carry one id",
        )
        if joins["client_only"]:
            yield Remark(
                "note",
                "joins",
                f"{_n(joins['client_only'], 'request')} of a client without a server span",
                "engines report nothing for aborted, refused and unsampled requests"
                + (" (vLLM: traceparent flag 00)" if not engines or EXAMPLE in engines else ""),
            )
        if joins["engine_spans_alone"]:
            alone, spans = joins["engine_spans_alone"], joins["engine_spans"]
            yield Remark(
                "note",
                "joins",
                f"{alone:,} of {_n(spans, 'engine span')} ({_percent(alone / spans)}) found no "
                f"client's call: {_n(joins['server_only'], 'request')}",
                "their callers are not traced, or neither traceparent nor a request id of the "
                "client reached the engine",
            )
    elif server:
        yield Remark(
            "note",
            "joins",
            "no client reported anything: time in the client and the network is not known, and "
            "neither are aborted requests and token gaps",
            "instrument the clients (OpenTelemetry GenAI spans), or import a request log with the "
            "same request ids",
        )
    elif client:
        yield Remark(
            "note",
            "joins",
            "no server reported anything: before the first token, queue and prefill cannot be told "
            "apart",
            (turn_on(engines[0], "spans") if len(engines) == 1 else None)
            or "turn on the engine's tracing (vLLM: --otlp-traces-endpoint grpc://HOST:4317)",
        )
    if joins["weak_matches"]:
        yield Remark(
            "note",
            "joins",
            f"{_n(joins['weak_matches'], 'request')} joined by likeness (time and token counts), "
            "not by trace or id",
            "forward traceparent, or one X-Request-Id on every hop",
        )
    if client and not joins["with_chunks"]:
        yield Remark(
            "note",
            "evidence",
            "no chunk times: token gaps and stalls are not known, TPOT is an average",
            "keep chunk arrival times in the client's span or log (chunk_offsets_ms)",
        )
    if joins["badly_covered"]:
        yield Remark(
            "note",
            "coverage",
            f"{joins['badly_covered']:,} of {_n(joins['completed'], 'completed request')} with "
            "under 90 % of the time explained",
            "`tracekit show ID` says which part; the spans around it are missing",
        )
    if joins["without_clock"]:
        yield Remark(
            "note",
            "evidence",
            f"{_n(joins['without_clock'], 'request')} without a start time: no windows, no "
            "queueing over time, no interference for them",
            "add start_unix_ns to the log",
        )


def _likeness_remarks(session: Session, joins: Row) -> Iterator[Remark]:
    if not (joins["client_only"] and joins["server_only"]):
        return
    pairs = len(propose(session).pairs)
    if pairs:
        yield Remark(
            "note",
            "joins",
            f"{pairs:,} of {_n(joins['client_only'], 'call')} without an engine and "
            f"{_n(joins['server_only'], 'request')} of engines without a client are alike in time "
            "and token counts, each with one other only",
            "`tracekit join` lists them, and joins them with --write",
        )


def _engine_remarks(row: Row) -> Iterator[Remark]:
    engine = row["engine"] or "engine"
    legs = row["legs"]
    if row["split_ids"]:
        yield Remark(
            "problem",
            "joins",
            f"{engine}: {_n(row['split_ids'], 'request id')} on several servers in several traces",
            "the proxy between the servers does not forward traceparent"
            + (" (vLLM's example proxy does not)" if engine == EXAMPLE else "")
            + ": the parts are joined by id alone",
        )
    if row["without_request_id"]:
        yield Remark(
            "note",
            "joins",
            f"{engine}: {row['without_request_id']:,} of {_n(legs, 'span')} without a request id",
            "they join by parentage only",
        )
    if row["roots"] and row["roots"] < legs:
        yield Remark(
            "note",
            "joins",
            f"{engine}: {row['roots']:,} of {_n(legs, 'request span')} without a parent: the "
            "callers sent no traceparent",
            "instrument the HTTP client of these callers",
        )
    elif row["roots"]:
        yield Remark(
            "note",
            "joins",
            f"{engine}: {_n(legs, 'request span')}, none with a parent: no caller sends a "
            "traceparent",
            "instrument the HTTP client (OpenTelemetry), or send X-Request-Id",
        )
    if row["parents_missing"]:
        yield Remark(
            "problem",
            "joins",
            f"{engine}: the parents of {row['parents_missing']:,} of {_n(legs, 'request span')} "
            "never arrived",
            "point the exporters of clients and proxies to the same receiver",
        )
    if row["without_queue"]:
        yield Remark(
            "note",
            "evidence",
            f"{engine}: {row['without_queue']:,} of {_n(legs, 'request span')} not telling queue "
            "from prefill",
            turn_on(engine, "split", "log the columns queue_ms and prefill_ms"),
        )
    if row["without_cached_tokens"] == row["requests"]:
        yield Remark(
            "note",
            "evidence",
            f"{engine}: cached prompt tokens are unknown: a cache miss cannot be told from a long "
            "prompt",
            turn_on(
                engine,
                "cached",
                "report cached tokens (gen_ai.usage.cache_read.input_tokens)",
            ),
        )


def _clipped(session: Session) -> tuple[int, float]:
    """Requests of which something was cut off, and the most that was [ms]."""
    count, worst = session.frame(
        "select count(*), coalesce(max(clipped_ms), 0) from window_requests where clipped_ms > 0"
    ).row(0)
    return int(count), float(worst)


def _clock_remarks(
    clocks: Sequence[Row], clipped: int, worst_clipped_ms: float
) -> Iterator[Remark]:
    moved = [row for row in clocks if row["moved"]]
    for row in moved[:_CLOCKS_NAMED]:
        offset = row["offset_ms"]
        sure = row["uncertainty_ms"]
        yield Remark(
            "note",
            "clocks",
            f"the clock of {row['clock']} is {abs(offset):,.1f} ms "
            f"{'behind' if offset > 0 else 'ahead of'} that of {row['against']}"
            + (f" (+- {sure:,.1f} ms)" if sure is not None else "")
            + f": moved in {_n(row['moved'], 'request')}",
            "keep the hosts' clocks together (chrony, NTP, PTP): phases between hosts are only as "
            "sure as that, and a view that stays open may show the first calls unmoved until they "
            "settle",
        )
    if len(moved) > _CLOCKS_NAMED:
        yield Remark(
            "note",
            "clocks",
            f"{_n(len(moved) - _CLOCKS_NAMED, 'more pair')} of clocks apart",
            "`tracekit doctor --json` lists them",
        )
    if clipped:
        yield Remark(
            "note",
            "clocks",
            f"{_n(clipped, 'request')} whose legs contradict each other's order, by up to "
            f"{worst_clipped_ms:,.1f} ms: cut off",
        )


def _swapped_remark(found: Swapped) -> Remark:
    return Remark("problem", "evidence", *found.words())


def _refused_remarks(refused: Sequence[Row]) -> Iterator[Remark]:
    for row in refused:
        where = "refused on receipt" if row["place"] == "receipt" else "kept out of the statistics"
        yield Remark(
            "note",
            "quarantine",
            f"{row['n']:,} {where}: {row['reason']}"
            + (f" (e.g. {row['example']})" if row["example"] else ""),
            "`tracekit sql set_aside` lists them",
        )


def _percent(share: float) -> str:
    value = 100 * share
    return f"{value:.0f} %" if 1 <= value < 99.5 or share == 1 else f"{value:.1f} %"


def _age(seconds: int) -> str:
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
