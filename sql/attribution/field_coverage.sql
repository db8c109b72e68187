-- Which fields the completed requests bring: what is missing decides what cannot be said.
-- grain: one row.
-- inputs: request_facts
-- n: completed requests
-- with_ttft: how many have a time to first token
-- with_input: how many have a prompt size
-- with_output: how many have an output size
-- with_cached: how many say what came from a prefix cache
-- with_whole_cached: how many say that all of the prompt, or more, came from a cache
-- with_model: how many name a model
-- with_worker: how many name a worker
-- with_clock: how many have a start time
-- with_gaps: how many have token gaps
-- with_server_phases: how many have queue or prefill of their own
-- with_merged_phase: how many know only queue and prefill together
-- with_merged_transfer: how many of these were handed over, so that the transfer is in there too
-- engine: the serving engine, if all have the same
-- with_client: how many were reported by a client too (span or log row)
-- with_transfer: how many had a KV transfer
-- with_transfer_bytes: how many of these know its bytes
-- with_wait_part: how many of these know how much of it was waiting
-- with_coverage: how many of the requests have at least nine tenths of their time explained
-- cached_share: [1] mean share of the prompt that came from a cache, where known
select
    count(*) as n,
    count(ttft_ms) as with_ttft,
    count(input_tokens) as with_input,
    count(output_tokens) as with_output,
    cast(sum(cached_known) as bigint) as with_cached,
    count(case when cached_known = 1 and input_tokens > 0 and uncached_tokens <= 0 then 1 end)
        as with_whole_cached,
    count(case when model <> '' then 1 end) as with_model,
    count(worker) as with_worker,
    count(arrival_unix_ns) as with_clock,
    count(max_gap_ms) as with_gaps,
    count(case when queue_ms is not null or prefill_ms is not null then 1 end)
        as with_server_phases,
    count(case when queue_or_prefill_ms > 0 and prefill_ms is null then 1 end)
        as with_merged_phase,
    count(case when queue_or_prefill_ms > 0 and kv_transfer_ms is null
        and prefill_worker <> worker then 1 end) as with_merged_transfer,
    case when min(engine) = max(engine) then max(engine) end as engine,
    -- not by its phases: a client whose server does not say when the call arrived has none of its own
    cast(sum(has_client) as bigint) as with_client,
    count(case when kv_transfer_ms > 0 then 1 end) as with_transfer,
    count(case when kv_transfer_ms > 0 then kv_bytes end) as with_transfer_bytes,
    count(case when kv_transfer_ms > 0 then kv_transfer_wait_ms end) as with_wait_part,
    count(case when unexplained_ms <= 0.1 * e2e_ms then 1 end) as with_coverage,
    avg(case when cached_known = 1 and input_tokens > 0
        then 1.0 - uncached_tokens / nullif(input_tokens, 0.0) end) as cached_share
from request_facts
where completed = 1
