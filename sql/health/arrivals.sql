-- Is anything arriving? What each raw table holds and when it last got something.
-- grain: one row per raw table
-- inputs: spans, request_log, metric_samples, log_records, gpu_samples, settings
-- table_name: raw table
-- total: rows (spans without duplicates)
-- last_minute: rows received in the minute before now
-- last_ingested_unix_ns: [unix ns] when the last row was received, NULL if there is none
with raw as (
    -- the span that `tracekit doctor` sends to see the way is no arrival
    select 'spans' as table_name, ingested_unix_ns from spans
    where service_name is distinct from 'tracekit-doctor'
    union all
    select 'request_log' as table_name, ingested_unix_ns from request_log
    union all
    select 'metric_samples' as table_name, ingested_unix_ns from metric_samples
    union all
    select 'log_records' as table_name, ingested_unix_ns from log_records
    union all
    select 'gpu_samples' as table_name, ingested_unix_ns from gpu_samples
)

select
    names.table_name,
    count(raw.ingested_unix_ns) as total,
    count(*) filter (where raw.ingested_unix_ns > s.now_unix_ns - 60000000000) as last_minute,
    max(raw.ingested_unix_ns) as last_ingested_unix_ns
from (
    values ('spans'), ('request_log'), ('metric_samples'), ('log_records'), ('gpu_samples')
) as names (table_name)
cross join settings as s
left join raw on raw.table_name = names.table_name
group by names.table_name
order by total desc, names.table_name
