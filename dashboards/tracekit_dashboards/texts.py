"""Every word of the dashboard, so that a second language is one file.

What phases, metrics, causes and classes are called comes from :mod:`tracekit.report.texts`, so
that terminal, reports and dashboard say the same. Braces are for ``str.format``.
"""

from __future__ import annotations

from typing import Final

APP_TITLE: Final = "tracekit"

# --- pages
DIAGNOSIS: Final = "Diagnosis"
REQUESTS: Final = "Requests"
SQL: Final = "SQL"
HEALTH: Final = "Data health"
QUESTIONS: Final = {
    DIAGNOSIS: "Why are requests slow, and what should be done?",
    REQUESTS: "Where did the time of one request go?",
    SQL: "Anything else: ask the tables.",
    HEALTH: "Is the data arriving, joined and complete?",
}

# --- sidebar
WINDOW: Final = "Window"
WINDOW_ALL: Final = "whole store"
WINDOW_HELP: Final = (
    "Requests that started in it. A duration back from now (15m, 6h) or A..B with ISO times in "
    "UTC; type to enter your own. Rows without a start time are always shown."
)
MODEL: Final = "Model"
MODEL_ALL: Final = "all models"
ROUTE: Final = "Route"
ROUTE_ALL: Final = "all routes"
SLO: Final = "SLO"
SLO_HELP: Final = (
    "What a request may take, e.g. ttft=800ms,tpot=50ms,e2e=10s. Without any, slow means the "
    "slowest 5 % of each model and route."
)
SLO_HINT: Final = "ttft=800ms,tpot=50ms"
PIN: Final = "Pin this view"
PIN_HELP: Final = (
    "Leave out everything received after this moment. The address in the browser then shows the "
    "same to whoever opens it."
)
UNPIN: Final = "Follow the store"
LIVE: Final = "Live: follows the store."
PINNED: Final = "Pinned to what was received by {time}."
PAUSED: Final = "This page keeps its result until you run a query."

# --- states
LOADING: Final = "Reading the store"
NO_STORE_TITLE: Final = "There is no store to show"
EMPTY_TITLE: Final = "No requests yet"
EMPTY_TEXT: Final = (
    "Nothing that is an LLM request has arrived in this store. Connect a source in one of three "
    "ways; this page follows the store and fills by itself."
)
EMPTY_STEPS: Final = (
    ("Start the receiver (OTLP on ports 4317 and 4318)", "tracekit collect{store}"),
    (
        "Send spans from vLLM",
        "OTEL_SERVICE_NAME=vllm vllm serve MODEL --otlp-traces-endpoint grpc://127.0.0.1:4317",
    ),
    ("Or import a log you already have", "tracekit import requests.csv{store}"),
)
EMPTY_OTHER: Final = (
    "Something has arrived, though: {what}. The page Data health says what became of it."
)
NOTHING_TITLE: Final = "Nothing in this view"
NOTHING_TEXT: Final = (
    "The store holds {requests}, none in this window and these filters. Widen the "
    "window or clear a filter on the left."
)
ERROR_TITLE: Final = "This page cannot be shown"
BAD_WINDOW: Final = "The window was not understood and is left out: {error}"
BAD_SLO: Final = "The SLO was not understood and is left out: {error}"
BAD_PIN: Final = "The pin was not understood and is left out: {error}"

# --- token
TOKEN_TITLE: Final = "This dashboard needs its token"
TOKEN_LABEL: Final = "Token"
TOKEN_HELP: Final = "The secret that the dashboard was started with."
TOKEN_SEND: Final = "Open"
TOKEN_WRONG: Final = "That is not the token."
NO_TOKEN_SET: Final = (
    "This dashboard listens on an address that other machines can reach, without a token. Start "
    "it with `tracekit dashboard`; for another address than loopback set TRACEKIT_DASHBOARD_TOKEN."
)

# --- tables and charts
DOWNLOAD_CSV: Final = "CSV"
DOWNLOAD_HELP: Final = "Download this table as CSV"
PHASE: Final = "Phase"
PROVENANCE: Final = "Known by"
UNIT_MS: Final = "{what} [ms]"
UNIT_S: Final = "{what} [s]"
START_UTC: Final = "start [UTC]"
SHARE: Final = "share"
SHARE_AXIS: Final = "share of all time [%]"
SINCE_START: Final = "since start"
TOOK: Final = "took"
SUB_PHASE: Final = "Sub-phase"
FIELD: Final = "Field"
SOURCE: Final = "Source"
LEG: Final = "Leg"
BOUNDARY: Final = "Boundary"
REQUEST: Final = "Request"
INPUT_TOKENS: Final = "input [tokens]"
OUTPUT_TOKENS: Final = "output [tokens]"
TOKENS: Final = "Tokens"
CHUNKS: Final = "Chunks"
PERCENTILE: Final = "Percentile"
GAP_INDEX: Final = "Gap"
OVER_MEDIAN: Final = "over the median gap"
STALL: Final = "Stall"
STEP: Final = "Step"
FROM: Final = "From"
TO: Final = "To"
N_REQUESTS: Final = "requests [count]"

# --- diagnosis
FINDINGS: Final = "Findings"
FINDINGS_FEW: Final = "Under {n} completed requests nothing is judged; the table below says more."
LAST_REQUESTS: Final = "The last requests"
LONG_TTFT: Final = "long TTFT"
LOW_TOKENS_PER_S: Final = "low tokens/s"
LOW_ONLY_BY_TTFT: Final = "only by the TTFT"
FINDINGS_MORE: Final = "Other findings ({n})"
FINDINGS_MINOR: Final = "Smaller findings ({n})"
FINDINGS_MINOR_NOTE: Final = (
    "Of 1 or 2 requests each, or under 2 % of the time lost; in all {lost}."
)
FINDING_SHARE: Final = "{share} of the {slow} ({metric})"
FINDING_N: Final = "n = {n}"
FINDING_PLACEBO: Final = "up to {share} of them may be ordinary variation"
FINDING_EXCESS: Final = (
    "{phase} took {excess} more than the {expected} the requests' shapes explain (medians)"
)
FINDING_NO_EXCESS: Final = (
    "{phase} took no longer than the {expected} the requests' shapes explain (medians)"
)
FINDING_CONFIDENCE: Final = "confidence: {label} ({value})"
FINDING_WORKERS: Final = "workers: {workers}"
FINDING_ACTION: Final = "Do"
FINDING_EVIDENCE: Final = "Evidence"
FINDING_CULPRITS: Final = "Culprits"
FINDING_OPEN: Final = "Show these requests"
CULPRIT: Final = "{size}stalled {victims} for {stall}"
COMPLETED: Final = "Completed"
COMPLETED_HELP: Final = "Requests that ended well; percentiles are over these only."
COMPLETED_NOTE: Final = "of {total} in this view"
MISSES: Final = "Miss the SLO"
MISSES_NO_SLO: Final = "Slow requests"
MISSES_SLO: Final = "{share} of those that ended"
MISSES_SLOWEST: Final = "slowest 5 % of each model and route"
MISSES_HELP: Final = "Distinct requests. By metric: {by_metric}."
JUDGED: Final = (
    "{judged} of {violations} (each counted once a metric) were judged, drawn at random."
)
GOODPUT: Final = "Goodput"
GOODPUT_HELP: Final = "Share of requests that met the SLO, and their rate."
GOODPUT_RATE: Final = "{rate} requests/s"
COVERAGE: Final = "Explained"
COVERAGE_HELP: Final = "Share of all wall time that boundaries explain; the rest is unexplained."
COVERAGE_NOTE: Final = "of all wall time"
FAILED: Final = "Not completed"
FAILED_HELP: Final = (
    "Aborted, failed, timed out, still open, quarantined and replaced attempts; in no percentile."
)
FAILED_NONE: Final = "all completed"
PERCENTILES: Final = "Percentiles"
PERCENTILES_NOTE: Final = (
    "Over completed requests; a dash where they are too few for that percentile."
)
METRIC: Final = "metric"
PHASE_TOTALS: Final = "Where the time goes"
PHASE_TOTALS_NOTE: Final = (
    "All completed requests together. A large share is not a fault: only excess over what a "
    "request's shape explains is."
)
OVER_TIME: Final = "Phases over time"
OVER_TIME_NOTE: Final = (
    "Mean time per request and phase, by start, in bins of {width}; the strip below counts the "
    "requests of each bin."
)
OVER_TIME_FEW: Final = " Pale bins hold fewer than {n} requests."
NO_CLOCK: Final = (
    "{requests} without a start time: nothing can be drawn over time for them. Add "
    "start_unix_ns to the log."
)
LATENCY: Final = "Latency over time"
LATENCY_METRIC: Final = "Metric of the latency chart"
LATENCY_DOTS: Final = "Each dot is one request."
LATENCY_LINES: Final = "Median and 95th percentile per bin; no p95 where a bin holds under {n}."
LATENCY_LIMIT: Final = "The line is the SLO."
MISSING: Final = "What would say more"
MISSING_NONE: Final = "No evidence is missing that this diagnosis asked for."
NO_ENTRY: Final = "-"
STATUS_PARTS: Final = {
    "aborted": "aborted",
    "errored": "failed",
    "timeout": "timed out",
    "open": "open",
    "superseded": "replaced attempts",
}
QUARANTINED: Final = "quarantined ({reason})"

# --- requests
ORDER: Final = "Order"
ORDERS: Final = {
    "newest": "newest first",
    "ttft_ms": "longest TTFT",
    "tpot_ms": "longest TPOT",
    "e2e_ms": "longest E2E",
    "max_gap_ms": "longest token gap",
    "input_tokens": "most input tokens",
    "output_tokens": "most output tokens",
}
STATUS: Final = "Status"
STATUS_ALL: Final = "any status"
WORKER: Final = "Worker"
WORKER_ALL: Final = "any worker"
SEARCH: Final = "Search"
SEARCH_HINT: Final = "request id, trace id, note"
SLOW_ONLY: Final = "Slow only"
SLOW_HELP: Final = (
    "Requests that miss the SLO; without one the slowest 5 % of each model and route."
)
LIST_COUNT: Final = "{requests}"
LIST_CUT: Final = "the first {shown} of {requests}; narrow the filters to see others"
LIST_HINT: Final = "Select a row to see where its time went."
LIST_EMPTY: Final = "No request passes these filters."
VERDICT_FILTER: Final = "Only requests whose verdict is {what}"
CLEAR_FILTER: Final = "Clear"
CLOSE_REQUEST: Final = "Close"
REQUEST_TITLE: Final = "Request {id}"
REQUEST_MISSING: Final = "The request of this link cannot be shown: {error}"
WATERFALL: Final = "Timeline"
WATERFALL_NOTE: Final = (
    "Time from the start of the wall time. The first lane is the whole request; below, each leg "
    "from its first boundary to its last, with the phases it claimed. Solid: measured; dashed: "
    "reported as a duration; dotted and pale: inferred. A red line through a phase: time in which "
    "it got nowhere (a prefill between its chunks, a stalled or preempted decode)."
)
WATERFALL_NONE: Final = "No phases: the source gave no usable boundary."
LANE_TOKENS: Final = "tokens"
LANE_GAPS: Final = "token gaps"
TOKENS_NOTE: Final = (
    "Each tick is a chunk; red spans are stalls, grey ones other gaps longer than the median."
)
TOKENS_NONE: Final = (
    "Token times are not known: the client kept no chunk times (chunk_offsets_ms in a log, or a "
    "packed string in its span)."
)
VERDICT: Final = "Verdict"
VERDICT_NONE: Final = "No verdict"
VERDICT_CONFIDENCE: Final = "confidence {value} ({label})"
CULPRITS: Final = "Stalled by"
PHASE_TABLE: Final = "Phases"
BOUNDARIES: Final = "Boundaries"
BOUNDARIES_NOTE: Final = "Every time that any source gave for this request, and how it is known."
GAPS: Final = "Longest token gaps"
RECORD: Final = "Record"
DOWNLOAD_JSON: Final = "JSON"
GPU: Final = "GPUs during the request"

PREFILL_ON: Final = "prefill on"
DECODE_ON: Final = "decode on"
CACHED: Final = "{n} cached"
STALLS: Final = "Stalls"
STALLS_HELP: Final = "Sum of gaps over max(4 x median gap, 50 ms), less the median gap."
LONGEST_GAP: Final = "longest gap {ms}"
QUARANTINED_ROW: Final = "Quarantined ({reason}): counted, and in no statistic."
COLUMNS: Final = {
    "start": "start [UTC]",
    "request_id": "request",
    "total_ms": "total [ms]",
    "tokens_per_s": "output rate [tokens/s]",
    "input_tokens": "input [tokens]",
    "cached_tokens": "cached [tokens]",
    "output_tokens": "output [tokens]",
    "ttft_ms": "TTFT [ms]",
    "tpot_ms": "TPOT [ms]",
    "e2e_ms": "E2E [ms]",
    "client_wait_ms": "client wait [ms]",
    "network_ms": "network [ms]",
    "route_ms": "route [ms]",
    "frontend_ms": "frontend [ms]",
    "queue_ms": "queue [ms]",
    "prefill_ms": "prefill [ms]",
    "queue_or_prefill_ms": "queue or prefill [ms]",
    "kv_transfer_ms": "KV transfer [ms]",
    "decode_ms": "decode [ms]",
    "unexplained_ms": "unexplained [ms]",
    "max_gap_ms": "longest gap [ms]",
    "coverage": "explained [%]",
    "quarantine_reason": "quarantined",
    "lane": "leg",
    "name": "boundary",
    "at_ms": "at [ms]",
    "start_ms": "from [ms]",
    "end_ms": "to [ms]",
    "ms": "took [ms]",
    "share_pct": "share [%]",
    "sub_phase": "sub-phase",
    "provenance": "known by",
    "role": "leg",
    "index": "gap",
    "is_stall": "stall",
    "excess_ms": "over median [ms]",
}
GPU_COLUMNS: Final = {
    "host": "host",
    "gpu_uuid": "GPU",
    "mig_uuid": "MIG instance",
    "windows": "samples [count]",
    "dram_bw_util": "DRAM bandwidth used [%]",
    "sm_util": "SMs busy [%]",
    "gpu_time_util": "GPU busy [%]",
    "power_w": "power [W]",
    "sm_clock_min_hz": "lowest SM clock [Hz]",
    "mem_used_max_bytes": "memory used, most [bytes]",
    "throttled_ms": "throttled [ms]",
}

# --- sql
SQL_NAMED: Final = "Start from"
SQL_NAMED_HINT: Final = "a named query"
SQL_QUERY: Final = "Query"
SQL_RUN: Final = "Run"
SQL_HELP: Final = (
    "One SELECT. Nothing can be changed, no file or network is reached. At most {rows} rows and "
    "{seconds} s."
)
SQL_FIRST: Final = (
    "select model, route, count(*) as n,\n"
    "    quantile_cont(ttft_ms, 0.95) as ttft_p95_ms\n"
    "from window_requests\n"
    "group by all\n"
    "order by n desc"
)
SQL_DONE: Final = "{n} in {ms}"
SQL_CUT: Final = "the first {n} (the limit), in {ms}"
SQL_EMPTY: Final = "No rows."
SQL_NOTE: Final = (
    "The window and filters on the left apply to window_requests and all that follows from it."
)
SCHEMA: Final = "Tables"
SCHEMA_COLUMN: Final = "Column"
SCHEMA_TYPE: Final = "Type"
SCHEMA_DOC: Final = "Meaning, unit in brackets"

# --- data health
LAST_ARRIVAL: Final = "Last arrival"
LAST_ARRIVAL_HELP: Final = "When anything was last received, and when that was."
SPANS: Final = "Spans"
LOG_ROWS: Final = "Log rows"
JOINED: Final = "Joined"
JOINED_HELP: Final = "Requests seen by a client and by a server, of all requests."
JOINED_NOTE: Final = "{joined} of {requests}"
SET_ASIDE: Final = "Set aside"
SET_ASIDE_HELP: Final = "Refused on receipt, or counted but kept out of every statistic."
HEALTH_EMPTY: Final = "Nothing has arrived in this store."
HEALTH_FINE: Final = "Nothing to remark."
REMARKS: Final = "Remarks"
SERVICES: Final = "Services"
SERVICES_NOTE: Final = "What each service sent, and what became of it."
SERVICE_NONAME: Final = "(no name)"
FUNNEL: Final = "From rows to requests"
FUNNEL_NOTE: Final = "How many rows became legs, and how the legs joined into requests."
FUNNEL_STEPS: Final = {
    "spans": "spans",
    "log_rows": "log rows",
    "legs": "legs",
    "requests": "requests",
    "with_client": "seen by a client",
    "with_server": "seen by a server",
    "joined": "seen by both",
    "completed": "completed",
}
ARRIVALS: Final = "What has arrived"
REFUSED: Final = "Set aside, by reason"
REFUSED_NONE: Final = "Nothing was set aside."
REFUSED_PLACES: Final = {
    "receipt": "refused on receipt",
    "request": "kept out of the statistics",
}
COVERAGE_CHART: Final = "How much of each request is explained"
COVERAGE_AXIS: Final = "share of the wall time explained [%]"
COUNT_AXIS: Final = "rows [count]"
HEALTH_SENTENCE: Final = (
    "{joined} of {requests} seen by client and server; {covered} of the time is explained"
)
HEALTH_COLUMNS: Final = {
    "service_name": "service",
    "sources": "understood as",
    "engines": "engine",
    "roles": "legs are",
    "scopes": "sent by",
    "last": "last received [UTC]",
    "spans": "spans [count]",
    "legs": "legs [count]",
    "requests": "requests [count]",
    "instances": "instances [count]",
    "table_name": "table",
    "total": "rows [count]",
    "last_minute": "rows of the last minute [count]",
    "place": "where",
    "n": "rows [count]",
}
LEVEL_ICONS: Final = {
    "ok": ":material/check_circle:",
    "note": ":material/info:",
    "problem": ":material/error:",
}
LEVEL_COLOURS: Final = {"ok": "green", "note": "orange", "problem": "red"}
