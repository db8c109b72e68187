"""The tables of the lake: names, columns, types, units.

Owns the shape of what is on disk and nothing else. Types are plain (BIGINT, INTEGER, DOUBLE,
VARCHAR) so that DuckDB, Spark, ClickHouse and Polars read them alike: times are integer
nanoseconds (Delta cuts timestamps to microseconds), flags are 0/1, nested values are JSON text.
Every table is partitioned by ``date`` (UTC day, ``YYYY-MM-DD``).

Columns may be added later, NULL in what is on disk by then: list them in `_ADDED`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tracekit.names import BOUNDARIES

_TYPES: Final[dict[str, pa.DataType]] = {
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
}


@dataclass(frozen=True)
class Column:
    """One column: ``doc`` starts with the unit in brackets where there is one."""

    name: str
    type: str
    doc: str


#: table → column → generation of the table's files that brought it; the first is 1. Older files
#: lack the column and are read as NULL there.
_ADDED: Final[dict[str, dict[str, int]]] = {
    "request_log": {"choices": 2, "response_id": 3},
    "legs": {"clock_offset_ns": 2, "sub_phase": 3, "norm_response_id": 4},
    "requests": {
        "clock_uncertainty_ms": 2,
        "clipped_ms": 2,
        "double_prefill_ms": 3,
        "kv_transfer_wire_ms": 3,
        "prefill_wait_ms": 4,
        "decode_preempted_ms": 4,
        "kv_transfer_uncertainty_ms": 4,
    },
    "phases": {"uncertainty_ms": 2, "whole_start_unix_ns": 3, "whole_end_unix_ns": 3},
}


@dataclass(frozen=True)
class Table:
    """One table of the lake; ``kind`` is ``raw`` (as received) or ``derived`` (settled)."""

    name: str
    kind: str
    doc: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema, in column order, ``date`` last."""
        return pa.schema([pa.field(c.name, _TYPES[c.type]) for c in self.columns])

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns)

    @property
    def generation(self) -> int:
        """Counts the times columns were added; files carry it in their names."""
        return max(_ADDED.get(self.name, {}).values(), default=1)

    def added_after(self, generation: int) -> frozenset[str]:
        """Columns that files of ``generation`` lack."""
        return frozenset(c for c, since in _ADDED.get(self.name, {}).items() if since > generation)


def _columns(text: str) -> tuple[Column, ...]:
    out = []
    for line in filter(None, text.splitlines()):
        name, type_, doc = line.split(None, 2)
        out.append(Column(name, type_, doc))
    return tuple(out)


_INGEST = """
origin VARCHAR how the row came in: otlp_grpc, otlp_http, import, demo, sdk
ingested_unix_ns BIGINT [unix ns] when the row was prepared for its commit
date VARCHAR partition: UTC day of the row's start (ingest day where there is none)
"""

SPANS: Final = Table(
    "spans",
    "raw",
    "One row per received span; may hold duplicates (read the relation `spans`, which drops them).",
    _columns(
        """
trace_id VARCHAR 32 hex digits
span_id VARCHAR 16 hex digits; unique only with trace, service, instance, process and rank
parent_span_id VARCHAR 16 hex digits, NULL for a root
name VARCHAR span name
kind INTEGER OTLP kind: 1 internal, 2 server, 3 client, 4 producer, 5 consumer, 0 unspecified
start_unix_ns BIGINT [unix ns] start
end_unix_ns BIGINT [unix ns] end
status_code INTEGER OTLP status: 0 unset, 1 ok, 2 error
status_message VARCHAR status text
flags INTEGER OTLP span flags
service_name VARCHAR resource service.name
service_instance_id VARCHAR resource service.instance.id
host_name VARCHAR resource host.name
process_id VARCHAR resource process.pid or vllm.process_id
process_rank VARCHAR rank within a parallel group, where the source says one
scope_name VARCHAR instrumentation scope
scope_version VARCHAR instrumentation scope version
operation_name VARCHAR attribute gen_ai.operation.name
model VARCHAR attribute gen_ai.request.model
request_id VARCHAR attribute gen_ai.request.id, else request_id, rid
response_id VARCHAR attribute gen_ai.response.id, else x_request_id, bootstrap_room
http_route VARCHAR attribute http.route, else url.path, else http.target
tracekit_phase VARCHAR attribute tracekit.phase
input_tokens BIGINT [tokens] attribute gen_ai.usage.input_tokens
output_tokens BIGINT [tokens] attribute gen_ai.usage.output_tokens
attributes VARCHAR all span attributes as a JSON object
resource VARCHAR all resource attributes as a JSON object
events VARCHAR JSON array of {name, time_unix_ns, attributes}, NULL if none
links VARCHAR JSON array of {trace_id, span_id, attributes}, NULL if none
"""
        + _INGEST
    ),
)

#: Design §7: the request record that users import; also the spine of `requests`.
_RECORD = """
request_id VARCHAR id that client and server share
trace_id VARCHAR 32 hex digits
attempt INTEGER 1 for the first attempt
start_unix_ns BIGINT [unix ns] when the client sent (else the first server time)
intended_start_unix_ns BIGINT [unix ns] when the client meant to send
end_unix_ns BIGINT [unix ns] end at the outermost leg
model VARCHAR model name
provider VARCHAR provider or format flavour
engine VARCHAR serving engine: vllm, sglang, ...
route VARCHAR traffic class or endpoint
tenant VARCHAR tenant
worker VARCHAR worker that decoded (or the only one)
prefill_worker VARCHAR worker that prefilled, under P/D
decode_worker VARCHAR worker that decoded, under P/D
input_tokens BIGINT [tokens] prompt, cached part included
cached_tokens BIGINT [tokens] prompt tokens read from a prefix cache
cache_write_tokens BIGINT [tokens] prompt tokens written to a prefix cache
output_tokens BIGINT [tokens] generated, reasoning included, all choices
reasoning_tokens BIGINT [tokens] generated as reasoning
tokens_source VARCHAR server, client, estimated
streaming INTEGER 0/1
status VARCHAR ok, error, aborted, timeout, open
finish_reason VARCHAR finish reason
error VARCHAR error class or text
ttft_ms DOUBLE [ms] start to first token of any channel
ttft_kind VARCHAR first_chunk, first_content, server, server_excl_queue, after_headers
ttfa_ms DOUBLE [ms] start to first visible answer token
tpot_ms DOUBLE [ms] (last token - first token) / (output tokens - 1)
e2e_ms DOUBLE [ms] wall time: intended start to last token
tokens_per_s DOUBLE [tokens/s] output tokens / e2e
client_wait_ms DOUBLE [ms] phase client_wait
network_ms DOUBLE [ms] phase network
frontend_ms DOUBLE [ms] phase frontend
route_ms DOUBLE [ms] phase route
queue_ms DOUBLE [ms] phase queue
prefill_ms DOUBLE [ms] phase prefill
kv_transfer_ms DOUBLE [ms] phase kv_transfer, exposed part
decode_ms DOUBLE [ms] phase decode
unexplained_ms DOUBLE [ms] covered by no boundary
kv_bytes BIGINT [bytes] KV cache moved
preemptions INTEGER times preempted
accepted_tokens_per_step DOUBLE [tokens] per decode step with speculative decoding
max_gap_ms DOUBLE [ms] longest gap between tokens
stall_ms DOUBLE [ms] sum of gaps over max(4 x median gap, 50 ms), less the median
coverage DOUBLE [1] share of the wall time that boundaries explain
quarantine_reason VARCHAR why the row must not be used for statistics, NULL if it may
queue_or_prefill_ms DOUBLE [ms] phase queue_or_prefill
kv_hidden_ms DOUBLE [ms] KV transfer that overlapped prefill
note VARCHAR free text
"""

REQUEST_LOG: Final = Table(
    "request_log",
    "raw",
    "One row per imported log row, units converted, names mapped.",
    _columns(
        _RECORD
        + """
chunk_times VARCHAR packed chunk offsets from start and tokens per chunk (tracekit.chunks)
prefix_block_tokens INTEGER [tokens] block size of prefix_hashes
prefix_hashes VARCHAR JSON array of salted block hashes
choices INTEGER sequences generated for the one prompt (n), where the log says
response_id VARCHAR id that the server gave its answer, where the log also has one of its own
extra VARCHAR JSON object of the columns that were not mapped
source_file VARCHAR file name as given
source_sha256 VARCHAR hash of the file's content
source_row BIGINT row number in the file, from 1
log_key VARCHAR identity: request id and start, else file hash and row
"""
        + _INGEST
    ),
)

GPU_SAMPLES: Final = Table(
    "gpu_samples",
    "raw",
    "One row per GPU (or MIG instance) and window; NULL = not available, never 0.",
    _columns(
        """
host VARCHAR host name
gpu_uuid VARCHAR device UUID
mig_uuid VARCHAR MIG instance UUID, else NULL
gpu_instance_id INTEGER MIG GPU instance, else NULL
gpu_index INTEGER NVML index
pci_bus_id VARCHAR PCI bus id
win_start_unix_ns BIGINT [unix ns] window start
win_end_unix_ns BIGINT [unix ns] window end
read_us INTEGER [us] time the read took
dram_bw_util DOUBLE [1] DRAM bandwidth over peak
dram_bw_bps DOUBLE [B/s] DRAM bandwidth
dram_source VARCHAR gpm, dcgm, none
mem_time_util DOUBLE [1] utilization.memory: share of time a copy ran
gpu_time_util DOUBLE [1] utilization.gpu: share of time a kernel ran
sm_util DOUBLE [1] SM activity
sm_occupancy DOUBLE [1] SM occupancy
tensor_util DOUBLE [1] tensor core activity
fp16_util DOUBLE [1] FP16 pipe activity
fp32_util DOUBLE [1] FP32 pipe activity
pcie_tx_bps DOUBLE [B/s] PCIe out
pcie_rx_bps DOUBLE [B/s] PCIe in
nvlink_tx_bps DOUBLE [B/s] NVLink out
nvlink_rx_bps DOUBLE [B/s] NVLink in
c2c_tx_bps DOUBLE [B/s] C2C out
c2c_rx_bps DOUBLE [B/s] C2C in
mem_used_bytes BIGINT [bytes] memory used
mem_reserved_bytes BIGINT [bytes] memory reserved
sm_clock_hz BIGINT [Hz] SM clock
mem_clock_hz BIGINT [Hz] memory clock
power_w DOUBLE [W] power
energy_j DOUBLE [J] energy counter
clock_reasons BIGINT bits: why clocks are low
throttled_ns BIGINT [ns] throttled time in the window
temp_c DOUBLE [C] GPU temperature
mem_temp_c DOUBLE [C] memory temperature
status VARCHAR ok, lost, error, gap
"""
        + _INGEST
    ),
)

METRIC_SAMPLES: Final = Table(
    "metric_samples",
    "raw",
    "One row per metric data point.",
    _columns(
        """
name VARCHAR metric name
unit VARCHAR unit as sent
metric_type VARCHAR gauge, sum, histogram, exponential_histogram, summary
is_monotonic INTEGER 0/1, NULL where it does not apply
temporality VARCHAR delta, cumulative, NULL where it does not apply
start_unix_ns BIGINT [unix ns] start of the interval, NULL if not sent
at_unix_ns BIGINT [unix ns] time of the point
value DOUBLE number value, or a histogram's sum
count BIGINT histogram count
buckets VARCHAR JSON {bounds, counts} of a histogram, {quantiles} of a summary
attributes VARCHAR data point attributes as a JSON object
resource VARCHAR resource attributes as a JSON object
service_name VARCHAR resource service.name
service_instance_id VARCHAR resource service.instance.id
host_name VARCHAR resource host.name
scope_name VARCHAR instrumentation scope
"""
        + _INGEST
    ),
)

LOG_RECORDS: Final = Table(
    "log_records",
    "raw",
    "One row per received OTLP log record.",
    _columns(
        """
at_unix_ns BIGINT [unix ns] time of the record (observed time if none)
severity_number INTEGER OTLP severity
severity_text VARCHAR severity as sent
event_name VARCHAR event name
body VARCHAR text, or JSON where the body is structured
attributes VARCHAR record attributes as a JSON object
resource VARCHAR resource attributes as a JSON object
service_name VARCHAR resource service.name
service_instance_id VARCHAR resource service.instance.id
host_name VARCHAR resource host.name
scope_name VARCHAR instrumentation scope
trace_id VARCHAR 32 hex digits
span_id VARCHAR 16 hex digits
"""
        + _INGEST
    ),
)

QUARANTINE: Final = Table(
    "quarantine",
    "raw",
    "One row per refused item: what, why, and enough of it to look again.",
    _columns(
        """
signal VARCHAR traces, metrics, logs, request_log
reason VARCHAR short reason, e.g. start_out_of_range, bad_trace_id, end_before_start
detail VARCHAR the offending field and value
trace_id VARCHAR 32 hex digits, if known
span_id VARCHAR 16 hex digits, if known
service_name VARCHAR resource service.name, if known
payload VARCHAR the item as JSON (cut at 8 KiB)
source_file VARCHAR file name for imports
source_row BIGINT line or row for imports, from 1
"""
        + _INGEST
    ),
)

_KEY = """
request_key VARCHAR identity of the request
revision BIGINT [unix ns] settle pass that wrote the row; tables join on (request_key, revision)
"""

_BOUNDARY_COLUMNS = "\n".join(
    f"{b}_unix_ns BIGINT [unix ns] boundary {b}\n"
    f"{b}_src VARCHAR provenance and field of {b}, e.g. 'reported gen_ai.latency.time_in_queue'"
    for b in BOUNDARIES
)

LEGS: Final = Table(
    "legs",
    "derived",
    "One row per request and leg: one component's boundary times, with provenance.",
    _columns(
        _KEY
        + """
leg_id VARCHAR identity of the span or log row behind the leg
role VARCHAR client, gateway, router, engine, prefill_engine, decode_engine, provider
match_score DOUBLE [1] how sure the leg belongs to the request; 1 = by parentage
source VARCHAR vllm, genai_client, http_call, tracekit, request_log, ...
trace_id VARCHAR 32 hex digits
span_id VARCHAR 16 hex digits
parent_span_id VARCHAR 16 hex digits
request_id VARCHAR request id as the source wrote it
norm_request_id VARCHAR request id without the engine's prefix and suffix
norm_response_id VARCHAR id of the server's answer, likewise, where a log has it beside its own
service_name VARCHAR resource service.name
service_instance_id VARCHAR resource service.instance.id
host_name VARCHAR host whose clock stamped the boundaries
worker VARCHAR worker name
model VARCHAR model name
provider VARCHAR provider or format flavour
engine VARCHAR serving engine
engine_version VARCHAR engine version, if sent
route VARCHAR traffic class or endpoint
tenant VARCHAR tenant
attempt INTEGER attempt number as the source wrote it
streaming INTEGER 0/1
status VARCHAR ok, error, aborted, timeout, open
finish_reason VARCHAR finish reason
error VARCHAR error class or text
input_tokens BIGINT [tokens] prompt, cached part included
cached_tokens BIGINT [tokens] prompt tokens read from a prefix cache
cache_write_tokens BIGINT [tokens] prompt tokens written to a prefix cache
output_tokens BIGINT [tokens] generated by this leg
reasoning_tokens BIGINT [tokens] generated as reasoning
tokens_source VARCHAR server, client, estimated
kv_bytes BIGINT [bytes] KV cache moved
preemptions INTEGER times preempted
accepted_tokens_per_step DOUBLE [tokens] per decode step; unless told, per chunk that a client saw
ttft_kind VARCHAR kind of first_token
chunk_times VARCHAR packed chunk offsets from send and tokens per chunk (tracekit.chunks)
has_clock INTEGER 1 if boundaries are unix times, 0 if they count from the request's start
prefill_worker VARCHAR worker that prefilled, where the source names it
decode_worker VARCHAR worker that decoded, where the source names it
tpot_ms DOUBLE [ms] as the source reported it
max_gap_ms DOUBLE [ms] as the source reported it
stall_ms DOUBLE [ms] as the source reported it
kv_hidden_ms DOUBLE [ms] as the source reported it
note VARCHAR free text
leg_quarantine VARCHAR why the leg's boundaries must not be trusted, NULL if they may
sub_phase VARCHAR sub-phase that the leg is a stretch of, NULL for a leg that bounds phases
clock_offset_ns BIGINT [ns] added to all boundaries to put them on the clock of the outermost leg
"""
        + _BOUNDARY_COLUMNS
        + """
ingested_unix_ns BIGINT [unix ns] newest raw row behind the leg
date VARCHAR partition: UTC day of the request's start
"""
    ),
)

REQUESTS: Final = Table(
    "requests",
    "derived",
    "One row per request and revision; the newest revision counts.",
    _columns(
        _KEY
        + """
supersedes_revision BIGINT [unix ns] revision this row replaces, NULL for the first
merged_into VARCHAR request_key this request turned out to be part of, NULL if it stands
superseded_attempt INTEGER 1 if a later attempt replaced this one: counted apart
has_clock INTEGER 1 if times are unix times, 0 if the source had no start time
choices INTEGER sequences generated for the one prompt (n)
legs_count INTEGER legs behind the row
leg_roles VARCHAR roles of the legs, comma-separated, outermost first
sources VARCHAR sources of the legs, comma-separated
first_token_unix_ns BIGINT [unix ns] first token at the outermost leg that saw it
last_token_unix_ns BIGINT [unix ns] last token at the outermost leg
engine_step_wait_ms DOUBLE [ms] sub-phase frontend.engine_step_wait, part of frontend_ms
kv_transfer_wait_ms DOUBLE [ms] sub-phase kv_transfer.wait; the wire too where nothing tells it
kv_transfer_wire_ms DOUBLE [ms] sub-phase kv_transfer.wire: bytes moved; NULL if not told when
kv_transfer_recompute_ms DOUBLE [ms] sub-phase kv_transfer.recompute, part of kv_transfer_ms
double_prefill_ms DOUBLE [ms] sub-phase prefill.double, part of prefill_ms: the decode server's
prefill_wait_ms DOUBLE [ms] sub-phase prefill.wait: idle between chunks of a prefill; NULL if untold
decode_preempted_ms DOUBLE [ms] sub-phase decode.preempted, part of decode_ms; NULL if not told
after_last_token_ms DOUBLE [ms] time between the engine's last token and the client's
chunk_count BIGINT chunks the client saw
match_score DOUBLE [1] lowest score of its legs
engine_version VARCHAR engine version, if sent
clock_uncertainty_ms DOUBLE [ms] +- of its hosts' clocks; NULL for one clock or no bound
kv_transfer_uncertainty_ms DOUBLE [ms] +- of kv_transfer_ms; NULL for one clock or no bound
clipped_ms DOUBLE [ms] cut off: hosts contradict each other's order; NULL for one leg
"""
        + _RECORD
        + """
ingested_unix_ns BIGINT [unix ns] newest raw row behind the request
settled_unix_ns BIGINT [unix ns] when it settled; NULL in the tail
date VARCHAR partition: UTC day of the start (ingest day where there is none)
"""
    ),
)

PHASES_TABLE: Final = Table(
    "phases",
    "derived",
    "One row per request and phase interval; exclusive, in order, summing to the wall time.",
    _columns(
        _KEY
        + """
phase VARCHAR client_wait, network, route, frontend, queue, prefill, queue_or_prefill, ...
sub_phase VARCHAR e.g. kv_transfer.wait, NULL if none
start_unix_ns BIGINT [unix ns] start (from the request's start where it has no clock)
end_unix_ns BIGINT [unix ns] end
duration_ms DOUBLE [ms] end - start
provenance VARCHAR measured, reported, inferred
field VARCHAR field behind the phase's end boundary
role VARCHAR leg that claimed the interval
worker VARCHAR worker of that leg
uncertainty_ms DOUBLE [ms] +- of the clocks that stamped its ends; NULL for one clock or no bound
whole_start_unix_ns BIGINT [unix ns] start of the interval it is a sub-phase cut of, NULL if none
whole_end_unix_ns BIGINT [unix ns] end of the interval it is a sub-phase cut of, NULL if none
date VARCHAR partition: UTC day of the request's start
"""
    ),
)

TOKEN_GAPS: Final = Table(
    "token_gaps",
    "derived",
    "One row per notable token gap: every stall and the 32 longest gaps of a request.",
    _columns(
        _KEY
        + """
gap_index INTEGER which gap of the stream, from 1 (between token chunk i and i+1)
start_unix_ns BIGINT [unix ns] start of the gap
end_unix_ns BIGINT [unix ns] end of the gap
gap_ms DOUBLE [ms] chunk gap
tokens INTEGER tokens in the chunk that ended the gap
is_stall INTEGER 0/1: gap over max(4 x median gap, 50 ms)
excess_ms DOUBLE [ms] gap less the stream's median gap
date VARCHAR partition: UTC day of the request's start
"""
    ),
)

CLOCK_OFFSETS: Final = Table(
    "clock_offsets",
    "derived",
    "What settle passes learned of clocks: one row per pass, pair of hosts and minute or so.",
    _columns(
        """
revision BIGINT [unix ns] settle pass that wrote the row
domain_a VARCHAR clock: host name, else service name and instance; sorts before domain_b
domain_b VARCHAR the other clock
window_start_unix_ns BIGINT [unix ns] first request behind the row
window_end_unix_ns BIGINT [unix ns] last request behind the row
low_ns BIGINT [ns] least that must be added to b's times, by causality; NULL if nothing bounds it
high_ns BIGINT [ns] most that may be added to b's times, by causality; NULL if nothing bounds it
offset_ns BIGINT [ns] what the pass took for b's times against a's; 0 if nothing contradicts it
n BIGINT requests behind the row
violations BIGINT of these, requests that contradict equal clocks
date VARCHAR partition: UTC day of the window's start
"""
    ),
)

TABLES: Final[dict[str, Table]] = {
    t.name: t
    for t in (
        SPANS,
        REQUEST_LOG,
        GPU_SAMPLES,
        METRIC_SAMPLES,
        LOG_RECORDS,
        QUARANTINE,
        LEGS,
        REQUESTS,
        PHASES_TABLE,
        TOKEN_GAPS,
        CLOCK_OFFSETS,
    )
}

#: Columns of the request record (design §7) in contract order, and how many answers share a row's
#: output tokens: its TPOT depends on that.
RECORD_COLUMNS: Final[tuple[str, ...]] = (*(c.name for c in _columns(_RECORD)), "choices")
