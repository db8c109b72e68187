-- What engines' metrics said of each worker, in one set of words and base units.
-- grain: one row per worker, system, scope, field and sample.
-- inputs: metric_samples, engine_metrics, legs
-- worker: worker as in `legs`, NULL where neither a label nor the service's name tells it
-- at_unix_ns: [unix ns] time of the sample
-- system: who emits it
-- scope: engine, process (a transfer library inside one: no request is known), router
-- field: what is told, see `engine_metrics`
-- value: [base unit of field] a gauge's value, a counter's or histogram's sum since its start
-- delta: [base unit of field] growth since the sample before; NULL of gauges and where it fell
-- Ranks that tell the same count once: the one that tells most. Parts that serve alone (data
-- parallel) and different names of one field add up, but of shares the fullest counts.
-- A counter that falls was reset: how much came before is not known. One that was not there at an
-- earlier scrape of the same process was 0 then (client libraries show a labelled series from its
-- first event on); one that was there at the first scrape had a past that is not known.
with names as (
    select *, name as seen_as from engine_metrics
    union all
    -- pipelines cut the suffix of counters
    select *, regexp_replace(name, '_total$', '') as seen_as
    from engine_metrics
    where kind = 'counter' and name like '%\_total' escape '\'
    union all
    -- and some keep a histogram's lines apart
    select *, name || '_sum' as seen_as from engine_metrics where kind = 'histogram'
),

told as (
    select
        n.*,
        s.service_name,
        s.service_instance_id,
        s.attributes,
        s.at_unix_ns,
        s.temporality,
        s.value
    from metric_samples as s
    join names as n on s.name = n.seen_as
    where isfinite(s.value)
        -- a gauge of that name is another thing: the last transfer's, or an older release's
        and (n.kind = 'gauge' or s.metric_type <> 'gauge')
        and (n.only_label is null
            or json_extract_string(s.attributes, '/' || n.only_label) = n.only_value)
),

-- legs' workers; by the last part of their names too, which is the id in Dynamo
known as (
    select distinct service_name, worker, split_part(worker, '/', -1) as id
    from legs
    where role in ('engine', 'prefill_engine', 'decode_engine') and worker is not null
),

by_id as (
    select id, min(worker) as worker from known group by id having count(distinct worker) = 1
),

workers as (
    select distinct worker from known
),

-- where a service has one worker, and one process tells its metrics, they are the same
alone as (
    select k.service_name, min(k.worker) as worker
    from known as k
    join (
        select service_name from told
        group by service_name
        having count(distinct coalesce(service_instance_id, '')) = 1
    ) as t on k.service_name = t.service_name
    group by k.service_name
    having count(distinct k.worker) = 1
),

labelled as (
    select
        *,
        json_transform(attributes, '"MAP(VARCHAR, VARCHAR)"') as labels,
        concat_ws('/', service_name, case
            when length(service_instance_id) > 16 then substr(service_instance_id, 1, 8)
            else service_instance_id
        end) as process
    from (
        select distinct
            service_name, service_instance_id, attributes,
            worker_label, part_label, rank_labels
        from told
    ) as s
),

series as (
    select
        l.*,
        nullif(
            coalesce(d.worker, h.worker, p.worker, i.worker, n.worker, a.worker, process), ''
        ) as worker,
        map_from_entries(list_filter(
            map_entries(labels),
            lambda e: not list_contains(string_split(rank_labels, ' '), e.key)
        ))::varchar as part
    from labelled as l
    -- the same id is written in decimal here and in hexadecimal there
    left join by_id as d on l.labels[l.worker_label] = d.id
    left join by_id as h on h.id = try_cast('0x' || l.labels[l.worker_label] as ubigint)::varchar
    left join workers as p
        on p.worker = l.service_name || '/DP' || l.labels[l.part_label]
    left join workers as i on i.worker = l.process
    left join workers as n on n.worker = l.service_name
    left join alone as a on a.service_name = l.service_name
),

points as (
    select
        t.system,
        t.scope,
        t.field,
        t.kind,
        t.name,
        coalesce(t.alias_of, t.name) as metric,
        t.alias_of is null as is_current,
        t.base_unit,
        s.worker,
        s.process,
        s.part,
        t.at_unix_ns,
        t.temporality,
        max(t.value * t.factor) as value
    from told as t
    join series as s
        on t.service_name is not distinct from s.service_name
        and t.service_instance_id is not distinct from s.service_instance_id
        and t.attributes = s.attributes
        and t.worker_label is not distinct from s.worker_label
        and t.part_label is not distinct from s.part_label
        and t.rank_labels = s.rank_labels
    group by all
),

steps as (
    select
        *,
        lag(value) over (
            partition by worker, process, name, field, part order by at_unix_ns
        ) as before,
        min(at_unix_ns) over (partition by worker, process, system) as first_unix_ns,
        -- where a metric stands under two of its names, one of them counts
        bool_or(is_current) over (
            partition by worker, process, system, field, metric, at_unix_ns
        ) as has_current
    from points
),

grown as (
    select
        *,
        case
            when kind = 'gauge' then null
            when temporality = 'delta' then value
            when value >= before then value - before
            -- the metrics of one scrape need not have one time to the nanosecond
            when before is null and at_unix_ns > first_unix_ns + 500000000 then value
        end as delta
    from steps
    where is_current or not has_current
)

select
    worker,
    at_unix_ns,
    system,
    scope,
    field,
    case when base_unit = '1' then max(value) else sum(value) end as value,
    sum(delta) as delta
from grown
group by worker, at_unix_ns, system, scope, field, base_unit
