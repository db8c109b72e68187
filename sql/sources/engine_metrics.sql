-- The metrics of engines, routers and transfer libraries that tracekit knows: what each one tells.
-- To add one, write a line below; `docs/sources/engine-metrics.md` lists them, a test compares both.
-- grain: one row per metric name (and label value, where one name tells several things)
-- inputs: none
-- system: who emits it
-- name: as it stands in /metrics, without the suffixes of a histogram's lines
-- alias_of: the name it has now, where this is a former or second one: then only one of both counts
-- field: what it tells; names of one system, field and scope that are no aliases add up
-- kind: gauge, counter or histogram (whose sum is the value)
-- unit: unit as emitted
-- factor: emitted value x factor = value in base_unit
-- base_unit: s, bytes, tokens, requests, events, steps, or 1 (a share 0..1)
-- scope: engine (a worker's own), process (a library inside one, no request known), router
-- only_label: label that must have only_value, NULL where every series counts
-- only_value: value of only_label
-- worker_label: label with the id of the worker, decimal or hexadecimal (set by Dynamo)
-- part_label: label of the part of a server that serves alone (a data-parallel rank)
-- role_label: label that tells prefill, decode or unified
-- rank_labels: labels of ranks that tell the same once more, with blanks between
-- since: oldest release known to have it, NULL where that was not looked up
-- gone_by: oldest release known not to have it any more
-- meaning: what the field is
-- note: what this very metric leaves out or mixes in
with fields (field, base_unit, meaning) as (
    values
    ('running', 'requests', 'being computed'),
    ('waiting', 'requests', 'in the engine''s own queue'),
    ('waiting_reason', 'requests', 'a part of waiting, by reason'),
    ('waiting_kv_space', 'requests', 'waiting for KV space on a decode server'),
    ('waiting_transfer', 'requests', 'waiting while their KV cache moves'),
    ('waiting_router', 'requests', 'in a router or gateway, no worker chosen yet'),
    ('waiting_first_token', 'requests', 'no token yet: queue and prefill together'),
    ('in_flight', 'requests', 'taken and not answered: waiting and running together'),
    ('kv_usage', '1', 'share of the KV cache in use'),
    ('preemptions', 'events', 'running requests that lost their KV cache for want of space'),
    ('cache_queries', 'tokens', 'looked up in the prefix cache'),
    ('cache_hits', 'tokens', 'found in the prefix cache'),
    ('external_cache_queries', 'tokens', 'looked up at a KV connector'),
    ('external_cache_hits', 'tokens', 'answered by a KV connector'),
    ('cached_tokens', 'tokens', 'prompt tokens not computed, wherever they came from'),
    ('predicted_cached_tokens', 'tokens', 'prompt tokens a router expects to be cached'),
    ('computed_tokens', 'tokens', 'prompt tokens computed'),
    ('cache_hit_share', '1', 'share of prompt tokens found in a cache'),
    ('transfer_s', 's', 'KV bytes under way; with transfer_bytes a bandwidth'),
    ('transfer_bytes', 'bytes', 'KV bytes moved'),
    ('transfer_latency_s', 's', 'until a transfer was seen to be over: no bandwidth comes of it'),
    ('transfer_wait_s', 's', 'before KV bytes move'),
    ('transfer_failures', 'events', 'KV transfers that failed'),
    ('transfer_failovers', 'events', 'KV transfers that changed their transport'),
    ('cache_load_s', 's', 'KV blocks fetched from a cache outside the engine'),
    ('cache_load_bytes', 'bytes', 'KV bytes fetched from a cache outside the engine'),
    ('steps', 'steps', 'calls of the model'),
    ('step_tokens', 'tokens', 'tokens of the engine''s steps')
),

units (unit, unit_base, factor) as (
    values
    ('s', 's', 1.0),
    ('ms', 's', 0.001),
    ('us', 's', 0.000001),
    ('bytes', 'bytes', 1.0),
    ('MiB', 'bytes', 1048576.0),
    ('1', '1', 1.0),
    ('tokens', 'tokens', 1.0),
    ('requests', 'requests', 1.0),
    ('events', 'events', 1.0),
    ('steps', 'steps', 1.0)
),

-- what the labels of a system's metrics say
systems (system, worker_label, part_label, role_label, rank_labels) as (
    values
    ('vllm', 'worker_id', 'engine', null, ''),
    ('sglang', 'worker_id', 'dp_rank', 'engine_type', 'tp_rank pp_rank moe_ep_rank pid'),
    ('dynamo', 'worker_id', 'dp_rank', 'dynamo_component', ''),
    ('llm_d', null, null, null, ''),
    ('tensorrt_llm', 'worker_id', null, 'disaggregation_mode', ''),
    ('triton', null, null, null, ''),
    ('tgi', null, null, null, ''),
    ('llama_cpp', null, null, null, ''),
    ('lmcache', null, null, 'role', 'worker_id'),
    ('nixl', null, null, null, ''),
    ('mooncake', null, null, null, '')
),

metrics (
    system, name, alias_of, field, kind, unit, scope, only_label, only_value, since, gone_by, note
) as (
    values
    ('vllm', 'vllm:num_requests_running', null, 'running', 'gauge', 'requests', 'engine', null, null, null, null, null),
    ('vllm', 'vllm:num_requests_waiting', null, 'waiting', 'gauge', 'requests', 'engine', null, null, null, null, null),
    ('vllm', 'vllm:num_requests_waiting_by_reason', null, 'waiting_reason', 'gauge', 'requests', 'engine', null, null, '0.20', null, 'its sum is num_requests_waiting'),
    ('vllm', 'vllm:num_requests_kv_fetch_by_stage', null, 'waiting_transfer', 'gauge', 'requests', 'engine', null, null, '0.32', null, 'KV consumers only; shorter than most scrape intervals'),
    ('vllm', 'vllm:kv_cache_usage_perc', null, 'kv_usage', 'gauge', '1', 'engine', null, null, '0.10', null, '0..1 in spite of its name'),
    ('vllm', 'vllm:gpu_cache_usage_perc', 'vllm:kv_cache_usage_perc', 'kv_usage', 'gauge', '1', 'engine', null, null, null, '0.13', '0..1 in spite of its name'),
    ('vllm', 'vllm:num_preemptions_total', null, 'preemptions', 'counter', 'events', 'engine', null, null, null, null, null),
    ('vllm', 'vllm:prefix_cache_queries_total', null, 'cache_queries', 'counter', 'tokens', 'engine', null, null, '0.10', null, 'preempted requests left out'),
    ('vllm', 'vllm:gpu_prefix_cache_queries_total', 'vllm:prefix_cache_queries_total', 'cache_queries', 'counter', 'tokens', 'engine', null, null, null, '0.13', null),
    ('vllm', 'vllm:prefix_cache_hits_total', null, 'cache_hits', 'counter', 'tokens', 'engine', null, null, '0.10', null, 'preempted requests left out'),
    ('vllm', 'vllm:gpu_prefix_cache_hits_total', 'vllm:prefix_cache_hits_total', 'cache_hits', 'counter', 'tokens', 'engine', null, null, null, '0.13', null),
    ('vllm', 'vllm:external_prefix_cache_queries_total', null, 'external_cache_queries', 'counter', 'tokens', 'engine', null, null, '0.13', null, null),
    ('vllm', 'vllm:external_prefix_cache_hits_total', null, 'external_cache_hits', 'counter', 'tokens', 'engine', null, null, '0.13', null, 'the whole prompt on a decode server'),
    ('vllm', 'vllm:prompt_tokens_cached_total', null, 'cached_tokens', 'counter', 'tokens', 'engine', null, null, '0.16', null, 'local and external; on a decode server what was transferred too'),
    ('vllm', 'vllm:prompt_tokens_by_source_total', null, 'computed_tokens', 'counter', 'tokens', 'engine', 'source', 'local_compute', '0.16', null, null),
    ('vllm', 'vllm:nixl_xfer_time_seconds', null, 'transfer_s', 'histogram', 's', 'engine', null, null, null, null, 'on the reading side (decode), one observation a transfer, a lower bound of a request''s wait'),
    ('vllm', 'vllm:nixl_bytes_transferred', null, 'transfer_bytes', 'histogram', 'bytes', 'engine', null, null, null, null, 'on the reading side (decode)'),
    ('vllm', 'vllm:nixl_post_time_seconds', null, 'transfer_wait_s', 'histogram', 's', 'engine', null, null, null, null, 'posting only'),
    ('vllm', 'vllm:nixl_num_failed_transfers_total', null, 'transfer_failures', 'counter', 'events', 'engine', null, null, null, null, 'failed notifications are in it'),
    ('vllm', 'vllm:nixl_num_kv_expired_reqs_total', null, 'transfer_failures', 'counter', 'events', 'engine', null, null, null, null, 'on the prefill side: blocks never fetched'),
    ('vllm', 'vllm:iteration_tokens_total', null, 'step_tokens', 'histogram', 'tokens', 'engine', null, null, null, null, 'counts a chunked prompt whole, in its last step: not to be taken for a step''s size'),

    ('sglang', 'sglang:num_running_reqs', null, 'running', 'gauge', 'requests', 'engine', null, null, null, null, null),
    ('sglang', 'sglang:num_queue_reqs', null, 'waiting', 'gauge', 'requests', 'engine', null, null, null, null, 'stays 0 while a decode server''s KV is full'),
    ('sglang', 'sglang:num_grammar_queue_reqs', null, 'waiting', 'gauge', 'requests', 'engine', null, null, null, null, 'waiting for their grammar'),
    ('sglang', 'sglang:num_decode_prealloc_queue_reqs', null, 'waiting_kv_space', 'gauge', 'requests', 'engine', null, null, null, null, 'decode server'),
    ('sglang', 'sglang:num_prefill_bootstrap_queue_reqs', null, 'waiting_kv_space', 'gauge', 'requests', 'engine', null, null, null, null, 'prefill server: waiting for the decode server to allocate'),
    ('sglang', 'sglang:num_decode_transfer_queue_reqs', null, 'waiting_transfer', 'gauge', 'requests', 'engine', null, null, null, null, 'decode server; holds the remote queue and prefill too'),
    ('sglang', 'sglang:num_prefill_inflight_queue_reqs', null, 'waiting_transfer', 'gauge', 'requests', 'engine', null, null, null, null, 'prefill server: sending'),
    ('sglang', 'sglang:token_usage', null, 'kv_usage', 'gauge', '1', 'engine', null, null, null, null, null),
    ('sglang', 'sglang:num_retracted_requests_total', null, 'preemptions', 'counter', 'events', 'engine', null, null, null, null, 'absent until the first; the gauge num_retracted_reqs is 0 again at once'),
    ('sglang', 'sglang:cached_tokens_total', null, 'cached_tokens', 'counter', 'tokens', 'engine', null, null, null, null, 'by cache_source: device, host, storage'),
    ('sglang', 'sglang:prefill_effective_tokens_total', null, 'computed_tokens', 'counter', 'tokens', 'engine', 'mode', 'input', null, null, 'what a retraction computed again left out'),
    ('sglang', 'sglang:cache_hit_rate', null, 'cache_hit_share', 'gauge', '1', 'engine', null, null, null, null, null),
    ('sglang', 'sglang:kv_transfer_latency_ms', null, 'transfer_latency_s', 'histogram', 'ms', 'engine', null, null, null, null, 'Mooncake, Mori, Ascend: of the last chunk only; ends when a scheduler looks; a gauge in older releases'),
    ('sglang', 'sglang:kv_transfer_total_mb', null, 'transfer_bytes', 'histogram', 'MiB', 'engine', null, null, null, null, 'of the whole request, so kv_transfer_speed_gb_s fits neither; a gauge in older releases'),
    ('sglang', 'sglang:kv_transfer_bootstrap_ms', null, 'transfer_wait_s', 'histogram', 'ms', 'engine', null, null, null, null, 'prefill server: holds the wait for KV space on the decode server'),
    ('sglang', 'sglang:kv_transfer_alloc_ms', null, 'transfer_wait_s', 'histogram', 'ms', 'engine', null, null, null, null, 'decode server: the wait for KV space'),
    ('sglang', 'sglang:num_transfer_failed_reqs_total', null, 'transfer_failures', 'counter', 'events', 'engine', null, null, null, null, 'absent until the first'),
    ('sglang', 'sglang:num_bootstrap_failed_reqs_total', null, 'transfer_failures', 'counter', 'events', 'engine', null, null, null, null, 'absent until the first'),
    ('sglang', 'sglang:cuda_graph_passes_total', null, 'steps', 'counter', 'steps', 'engine', null, null, null, null, 'forward passes, with and without a CUDA graph'),

    ('dynamo', 'dynamo_frontend_router_queue_pending_requests', null, 'waiting_router', 'gauge', 'requests', 'router', null, null, null, null, 'by worker_type'),
    ('dynamo', 'dynamo_frontend_queued_requests', null, 'waiting_first_token', 'gauge', 'requests', 'router', null, null, null, null, 'until the first token'),
    ('dynamo', 'dynamo_frontend_active_requests', null, 'in_flight', 'gauge', 'requests', 'router', null, null, null, null, null),
    ('dynamo', 'dynamo_frontend_inflight_requests', 'dynamo_frontend_active_requests', 'in_flight', 'gauge', 'requests', 'router', null, null, null, null, null),
    ('dynamo', 'dynamo_component_inflight_requests', null, 'in_flight', 'gauge', 'requests', 'engine', 'dynamo_endpoint', 'generate', null, null, 'the engine''s queue is in it'),
    ('dynamo', 'dynamo_work_handler_queue_depth', null, 'waiting', 'gauge', 'requests', 'engine', null, null, null, null, 'before the engine; the engine''s own queue is not in it'),
    ('dynamo', 'dynamo_component_kvstats_gpu_cache_usage_percent', null, 'kv_usage', 'gauge', '1', 'engine', null, null, '0.6', '1.6.1', '0..1 in spite of its name'),
    ('dynamo', 'dynamo_component_router_kv_worker_reused_tokens_total', null, 'cached_tokens', 'counter', 'tokens', 'router', null, null, null, null, 'worker_id is the router''s own here; stays 0 where engines do not report'),
    ('dynamo', 'dynamo_frontend_cached_tokens', null, 'predicted_cached_tokens', 'histogram', 'tokens', 'router', null, null, null, null, 'matching blocks by the router''s index'),
    ('dynamo', 'dynamo_component_router_kv_transfer_estimated_latency_seconds', null, 'transfer_latency_s', 'histogram', 's', 'router', null, null, null, null, 'prefill complete to first token: an upper bound; 0 in bootstrap mode'),

    ('llm_d', 'inference_extension_flow_control_queue_size', null, 'waiting_router', 'gauge', 'requests', 'router', null, null, null, null, null),
    ('llm_d', 'inference_objective_running_requests', null, 'in_flight', 'gauge', 'requests', 'router', null, null, null, null, null),
    ('llm_d', 'inference_model_running_requests', 'inference_objective_running_requests', 'in_flight', 'gauge', 'requests', 'router', null, null, null, null, null),
    ('llm_d', 'inference_pool_average_queue_size', null, 'waiting', 'gauge', 'requests', 'router', null, null, null, null, 'mean over the pool''s workers'),
    ('llm_d', 'inference_pool_average_kv_cache_utilization', null, 'kv_usage', 'gauge', '1', 'router', null, null, null, null, 'mean over the pool''s workers'),
    ('llm_d', 'inference_objective_prompt_cached_tokens', null, 'cached_tokens', 'histogram', 'tokens', 'router', null, null, null, null, null),

    ('tensorrt_llm', 'trtllm_num_requests_running', null, 'running', 'gauge', 'requests', 'engine', null, null, null, null, null),
    ('tensorrt_llm', 'trtllm_num_requests_waiting', null, 'waiting', 'gauge', 'requests', 'engine', null, null, null, null, null),
    ('tensorrt_llm', 'trtllm_kv_cache_utilization', null, 'kv_usage', 'gauge', '1', 'engine', null, null, null, null, null),
    ('tensorrt_llm', 'trtllm_kv_cache_hit_rate', null, 'cache_hit_share', 'gauge', '1', 'engine', null, null, null, null, null),
    ('tensorrt_llm', 'trtllm_prompt_cached_tokens_total', null, 'cached_tokens', 'counter', 'tokens', 'engine', null, null, null, null, null),
    ('tensorrt_llm', 'trtllm_kv_cache_onboard_bytes_total', null, 'cache_load_bytes', 'counter', 'bytes', 'engine', null, null, null, null, 'from host memory'),
    ('tensorrt_llm', 'trtllm_kv_transfer_latency_seconds', null, 'transfer_latency_s', 'histogram', 's', 'engine', null, null, null, null, 'one a request; holds the wait for a buffer slot'),
    ('tensorrt_llm', 'trtllm_kv_transfer_bytes', null, 'transfer_bytes', 'histogram', 'bytes', 'engine', null, null, null, null, 'one a request'),

    ('triton', 'nv_trt_llm_request_metrics', null, 'running', 'gauge', 'requests', 'engine', 'request_type', 'scheduled', null, null, null),
    ('triton', 'nv_trt_llm_request_metrics', null, 'waiting', 'gauge', 'requests', 'engine', 'request_type', 'waiting', null, null, 'the in-flight batcher''s queue, which Triton''s own queue times leave out'),
    ('triton', 'nv_trt_llm_kv_cache_block_metrics', null, 'kv_usage', 'gauge', '1', 'engine', 'kv_cache_block_type', 'fraction', null, null, null),

    ('tgi', 'tgi_queue_size', null, 'waiting', 'gauge', 'requests', 'engine', null, null, null, null, null),
    ('tgi', 'tgi_batch_current_size', null, 'running', 'gauge', 'requests', 'engine', null, null, null, null, null),

    ('llama_cpp', 'llamacpp:requests_processing', null, 'running', 'gauge', 'requests', 'engine', null, null, null, null, 'slots at work; a scrape waits for the running batch, up to 1.7 s'),
    ('llama_cpp', 'llamacpp:requests_deferred', null, 'waiting', 'gauge', 'requests', 'engine', null, null, null, null, 'tasks that came during the running batch left out'),
    ('llama_cpp', 'llamacpp:prompt_tokens_cached_total', null, 'cached_tokens', 'counter', 'tokens', 'engine', null, null, null, null, null),
    ('llama_cpp', 'llamacpp:prompt_tokens_total', null, 'computed_tokens', 'counter', 'tokens', 'engine', null, null, null, null, 'cached ones left out'),
    ('llama_cpp', 'llamacpp:n_decode_total', null, 'steps', 'counter', 'steps', 'engine', null, null, null, null, null),
    ('llama_cpp', 'llamacpp:kv_cache_usage_ratio', null, 'kv_usage', 'gauge', '1', 'engine', null, null, null, '11549', null),

    ('lmcache', 'lmcache:time_to_retrieve', null, 'cache_load_s', 'histogram', 's', 'process', null, null, null, null, 'in process; speeds are tokens/s here and GB/s in the log'),
    ('lmcache', 'lmcache:num_remote_read_bytes_total', null, 'cache_load_bytes', 'counter', 'bytes', 'process', null, null, null, null, 'from remote backends only'),
    ('lmcache', 'lmcache:num_requested_tokens_total', null, 'external_cache_queries', 'counter', 'tokens', 'process', null, null, null, null, null),
    ('lmcache', 'lmcache:num_hit_tokens_total', null, 'external_cache_hits', 'counter', 'tokens', 'process', null, null, null, null, null),

    ('nixl', 'agent_tx_bytes_total', null, 'transfer_bytes', 'counter', 'bytes', 'process', null, null, null, null, null),
    ('nixl', 'agent_rx_bytes_total', null, 'transfer_bytes', 'counter', 'bytes', 'process', null, null, null, null, null),
    ('nixl', 'agent_xfer_time_us', null, 'transfer_s', 'histogram', 'us', 'process', null, null, null, null, 'one a transfer, so several a request'),
    ('nixl', 'agent_xfer_time_total', 'agent_xfer_time_us', 'transfer_s', 'counter', 'us', 'process', null, null, null, null, 'us without saying so; agent_xfer_time alone is the last transfer''s'),
    ('nixl', 'agent_xfer_post_time_us', null, 'transfer_wait_s', 'histogram', 'us', 'process', null, null, null, null, 'posting only'),
    ('nixl', 'agent_errors_total', null, 'transfer_failures', 'counter', 'events', 'process', null, null, null, null, 'by status'),

    ('mooncake', 'tent_read_bytes_total', null, 'transfer_bytes', 'counter', 'bytes', 'process', null, null, null, null, 'TENT'),
    ('mooncake', 'tent_write_bytes_total', null, 'transfer_bytes', 'counter', 'bytes', 'process', null, null, null, null, 'TENT'),
    ('mooncake', 'tent_read_latency_us', null, 'transfer_s', 'histogram', 'us', 'process', null, null, null, null, 'TENT'),
    ('mooncake', 'tent_write_latency_us', null, 'transfer_s', 'histogram', 'us', 'process', null, null, null, null, 'TENT'),
    ('mooncake', 'tent_stage_queue_wait_us', null, 'transfer_wait_s', 'histogram', 'us', 'process', null, null, null, null, 'TENT'),
    ('mooncake', 'tent_read_failures_total', null, 'transfer_failures', 'counter', 'events', 'process', null, null, null, null, 'TENT'),
    ('mooncake', 'tent_write_failures_total', null, 'transfer_failures', 'counter', 'events', 'process', null, null, null, null, 'TENT'),
    ('mooncake', 'tent_transport_failover_total', null, 'transfer_failovers', 'counter', 'events', 'process', null, null, null, null, 'TENT'),
    ('mooncake', 'mooncake_transfer_read_bytes', null, 'cache_load_bytes', 'counter', 'bytes', 'process', null, null, null, null, 'store client'),
    ('mooncake', 'mooncake_transfer_get_latency', null, 'cache_load_s', 'histogram', 'us', 'process', null, null, null, null, 'store client; us without saying so'),
    ('mooncake', 'mooncake_transfer_batch_get_latency', null, 'cache_load_s', 'histogram', 'us', 'process', null, null, null, null, 'store client; us without saying so')
)

select
    m.system,
    m.name,
    m.alias_of,
    m.field,
    m.kind,
    m.unit,
    -- an unknown field or unit, or one that does not fit the field, leaves these NULL: a test looks
    case when u.unit_base = f.base_unit then u.factor end::double as factor,
    f.base_unit,
    m.scope,
    m.only_label,
    m.only_value,
    s.worker_label,
    s.part_label,
    s.role_label,
    s.rank_labels,
    m.since,
    m.gone_by,
    f.meaning,
    m.note
from metrics as m
left join fields as f on m.field = f.field
left join units as u on m.unit = u.unit
left join systems as s on m.system = s.system
