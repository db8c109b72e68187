-- How well the parts of a request found each other, and how much of its time is explained.
-- grain: one row
-- inputs: window_requests, legs
-- requests: requests in the window
-- completed: those that ended well and are in the statistics
-- quarantined: those that are counted and in no statistic
-- superseded: attempts that a later one replaced
-- with_client: requests seen by a client (span or log)
-- with_server: requests seen by an engine
-- joined: requests seen by both
-- client_only: requests no engine reported: aborted, unsampled, or not connected
-- server_only: requests no client reported
-- engine_spans: request spans of engines
-- engine_spans_alone: of these, spans that found no client's call
-- weak_matches: requests joined by less than parentage or a shared id
-- without_clock: rows without a start time
-- without_model: requests whose model is unknown
-- without_cached_tokens: requests whose cached tokens are unknown
-- with_chunks: requests whose chunk times are known
-- coverage_p50: [1] median share of the wall time that boundaries explain
-- covered_share: [1] share of all wall time that boundaries explain
-- badly_covered: completed requests with under 90 % explained
with l as (
    select
        request_key,
        revision,
        max(case when role = 'client' then 1 else 0 end) as client,
        max(case when role in ('engine', 'prefill_engine', 'decode_engine') then 1 else 0 end)
            as server,
        count(case when role in ('engine', 'prefill_engine', 'decode_engine') then span_id end)
            as engine_spans,
        max(case when chunk_times is not null then 1 else 0 end) as chunks
    from legs
    group by request_key, revision
),

r as (
    select
        w.*,
        coalesce(l.client, 0) as client,
        coalesce(l.server, 0) as server,
        coalesce(l.engine_spans, 0) as engine_spans,
        coalesce(l.chunks, 0) as chunks,
        w.quarantine_reason is null and w.superseded_attempt = 0 as counted
    from window_requests as w
    left join l on l.request_key = w.request_key and l.revision = w.revision
)

select
    count(*) as requests,
    count(*) filter (where counted and status = 'ok') as completed,
    count(*) filter (where quarantine_reason is not null) as quarantined,
    count(*) filter (where superseded_attempt = 1) as superseded,
    count(*) filter (where client = 1) as with_client,
    count(*) filter (where server = 1) as with_server,
    count(*) filter (where client = 1 and server = 1) as joined,
    count(*) filter (where client = 1 and server = 0) as client_only,
    count(*) filter (where client = 0 and server = 1) as server_only,
    coalesce(sum(engine_spans), 0)::bigint as engine_spans,
    coalesce(sum(engine_spans) filter (where client = 0), 0)::bigint as engine_spans_alone,
    count(*) filter (where match_score < 0.9) as weak_matches,
    count(*) filter (where has_clock = 0) as without_clock,
    count(*) filter (where model is null) as without_model,
    count(*) filter (where cached_tokens is null) as without_cached_tokens,
    count(*) filter (where chunks = 1) as with_chunks,
    quantile_cont(coverage, 0.5) filter (where counted) as coverage_p50,
    sum(coverage * e2e_ms) filter (where counted)
        / nullif(sum(e2e_ms) filter (where counted and coverage is not null), 0) as covered_share,
    count(*) filter (where counted and status = 'ok' and coverage < 0.9) as badly_covered
from r
