"""Generated traffic for benchmarks: spans of LLM requests as an engine and its client send them.

Made in DuckDB, so that a million requests take seconds. Shapes are plausible (log-normal prompts,
exponential queueing, prefill by prompt length, decode by output length); one request in fifty
meets a fault on top: a long wait in the queue.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa

from tracekit.lake.schema import SPANS

_REQUESTS = """
create or replace temp table r as
with a as (
    select
        i,
        $t0::bigint + (i * 1e9 / $rate)::bigint as send_ns,
        1 + floor(exp(6.6 + 1.1 * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())))::bigint
            as input_tokens,
        2 + floor(random() * 400)::bigint as output_tokens,
        (i % 8)::integer as worker,
        (-ln(1 - random()) * 20e6 + case when random() < 0.02 then 3e9 else 0 end)::bigint
            as queue_ns,
        0.95 + 0.3 * random() as noise,
        md5($seed::varchar || 't' || i) as trace_id,
        substr(md5($seed::varchar || 'c' || i), 1, 16) as client_span,
        substr(md5($seed::varchar || 'e' || i), 1, 16) as engine_span
    from range($first::bigint, $last::bigint) as g(i)
)
select
    *,
    send_ns + 2000000 as recv_ns,
    ((8e6 + 50e3 * input_tokens) * noise)::bigint as prefill_ns,
    ((output_tokens - 1) * 12e6 * noise)::bigint as decode_ns,
    4000000::bigint as frontend_ns
from a
"""

_ENGINE = """
select
    trace_id, engine_span as span_id, client_span as parent_span_id, 'llm_request' as name,
    2 as kind, recv_ns as start_unix_ns,
    recv_ns + frontend_ns + queue_ns + prefill_ns + decode_ns + 300000 as end_unix_ns,
    0 as status_code, 768 as flags, 'vllm' as service_name, 'w' || worker as service_instance_id,
    'gpu-' || worker as host_name, '9' as process_id, 'vllm.tracing.otel' as scope_name,
    'chatcmpl-' || substr(trace_id, 1, 12) as request_id,
    format('{{"gen_ai.latency.time_in_queue":{},"gen_ai.latency.time_in_model_prefill":{},'
        || '"gen_ai.latency.time_in_model_decode":{},"gen_ai.latency.time_to_first_token":{},'
        || '"gen_ai.latency.e2e":{},"gen_ai.usage.prompt_tokens":{},'
        || '"gen_ai.usage.completion_tokens":{},"gen_ai.request.id":"chatcmpl-{}",'
        || '"gen_ai.request.max_tokens":1024,"gen_ai.request.temperature":0.8,'
        || '"gen_ai.request.top_p":0.95,"gen_ai.request.n":1}}',
        queue_ns / 1e9, prefill_ns / 1e9, decode_ns / 1e9,
        (frontend_ns + queue_ns + prefill_ns) / 1e9,
        (frontend_ns + queue_ns + prefill_ns + decode_ns) / 1e9,
        input_tokens, output_tokens, substr(trace_id, 1, 12)) as attributes,
    format('{{"service.name":"vllm","service.instance.id":"w{}"}}', worker) as resource
from r
"""

_CLIENT = """
select
    trace_id, client_span as span_id, null as parent_span_id, 'chat m' as name,
    3 as kind, send_ns as start_unix_ns,
    recv_ns + frontend_ns + queue_ns + prefill_ns + decode_ns + 3000000 as end_unix_ns,
    0 as status_code, 256 as flags, 'app' as service_name, 'a0' as service_instance_id,
    'app-0' as host_name, null as process_id, 'app' as scope_name, 'chat' as operation_name,
    'm' || (worker % 3) as model, 'chatcmpl-' || substr(trace_id, 1, 12) as response_id,
    input_tokens, output_tokens,
    format('{{"gen_ai.operation.name":"chat","gen_ai.request.model":"m{}",'
        || '"gen_ai.response.id":"chatcmpl-{}","gen_ai.request.stream":true,'
        || '"gen_ai.usage.input_tokens":{},"gen_ai.usage.output_tokens":{},'
        || '"gen_ai.response.time_to_first_chunk":{},"gen_ai.response.finish_reasons":["stop"],'
        || '"gen_ai.provider.name":"vllm"}}',
        worker % 3, substr(trace_id, 1, 12), input_tokens, output_tokens,
        (frontend_ns + queue_ns + prefill_ns + 3000000) / 1e9) as attributes,
    '{"service.name":"app","service.instance.id":"a0"}' as resource
from r
"""

_OTHER = """
select
    trace_id, substr(md5(client_span || n.k), 1, 16) as span_id, client_span as parent_span_id,
    'retrieve' as name, 1 as kind, send_ns as start_unix_ns, send_ns + 1000000 as end_unix_ns,
    0 as status_code, 256 as flags, 'app' as service_name, 'a0' as service_instance_id,
    'app-0' as host_name, 'app' as scope_name, '{"db.system":"postgresql"}' as attributes,
    '{"service.name":"app","service.instance.id":"a0"}' as resource
from r cross join range($others::bigint) as n(k)
"""


def spans(
    requests: int,
    *,
    first: int = 0,
    t0_unix_ns: int = 1_795_990_000_000_000_000,
    rate_per_s: float = 1000.0,
    ingested_unix_ns: int | None = None,
    others: int = 0,
    seed: int = 1,
) -> pa.Table:
    """Spans of ``requests`` requests in the schema of `spans`: client, engine, ``others`` more."""
    con = duckdb.connect()
    con.execute("select setseed(0.42)").fetchall()
    con.execute(
        _REQUESTS,
        {
            "t0": t0_unix_ns,
            "rate": rate_per_s,
            "seed": seed,
            "first": first,
            "last": first + requests,
        },
    )
    shape = ", ".join(f'null::{c.type} as "{c.name}"' for c in SPANS.columns)
    columns = ", ".join(f'"{c.name}"::{c.type} as "{c.name}"' for c in SPANS.columns)
    other = _OTHER.replace("$others", str(others))
    stamp = "end_unix_ns" if ingested_unix_ns is None else str(ingested_unix_ns)
    query = f"""
        select {columns} from (
            (select {shape} where false) union all by name ({_ENGINE}) union all by name ({_CLIENT})
            union all by name ({other})
        )
    """
    query = f"""
        select * replace ('otlp_grpc' as origin, {stamp} as ingested_unix_ns,
            strftime(make_timestamp(start_unix_ns // 1000), '%Y-%m-%d') as date)
        from ({query})
    """
    table: pa.Table = con.sql(query).to_arrow_table()
    con.close()
    return table.cast(SPANS.schema)
