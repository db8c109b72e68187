-- What load each worker usually bears, and the most it was seen to bear.
-- grain: one row per worker.
-- inputs: load_bins, request_facts, attribution_rules
-- worker: worker, or the model where no worker is known
-- model: model it serves (of several the last by name)
-- prefills: 1 if it prefills: for more than a few requests, whose other server may be unknown
-- decodes: 1 if it decodes, likewise
-- waiting_share: [1] share of slices in which something waited most of the time
-- usual_decoding: [1] requests decoding in the median slice
-- most_busy: [1] requests in service, prefilling or decoding, in the busiest hundredth of the slices
-- since_unix_ns: [unix ns] the first slice in which it had anything to do, NULL if it never had
-- until_unix_ns: [unix ns] the last one
-- last_arrival_unix_ns: [unix ns] the last slice in which a request came to it
with seen as (
    select worker, prefill_worker, model, cast(count(*) as double) as n
    from request_facts
    where quarantine_reason is null and superseded_attempt = 0
    group by worker, prefill_worker, model
),

served as (
    select coalesce(worker, model) as worker, model, 0.0 as prefilled, n as decoded
    from seen
    union all
    select coalesce(prefill_worker, model) as worker, model, n as prefilled, 0.0 as decoded
    from seen
),

models as (
    select
        worker,
        max(model) as model,
        sum(prefilled) as prefilled,
        sum(decoded) as decoded
    from served
    group by worker
),

levels as (
    select
        worker,
        case when max(prefilling) > 0 then 1 else 0 end as prefills,
        case when max(decoding) > 0 then 1 else 0 end as decodes,
        avg(case when waiting >= 0.5 then 1.0 else 0.0 end) as waiting_share,
        percentile_cont(0.5) within group (order by decoding) as usual_decoding,
        percentile_cont(0.99) within group (order by prefilling + decoding) as most_busy,
        -- running sums of floats leave crumbs
        min(case when arrived > 0 or waiting + prefilling + decoding > 0.001 then bin_unix_ns end)
            as since_unix_ns,
        max(case when arrived > 0 or waiting + prefilling + decoding > 0.001 then bin_unix_ns end)
            as until_unix_ns,
        max(case when arrived > 0 then bin_unix_ns end) as last_arrival_unix_ns
    from load_bins
    group by worker
)

select
    l.worker as worker,
    m.model as model,
    case when m.prefilled >= p.role_share * m.decoded then l.prefills else 0 end as prefills,
    case when m.decoded >= p.role_share * m.prefilled then l.decodes else 0 end as decodes,
    l.waiting_share as waiting_share,
    l.usual_decoding as usual_decoding,
    l.most_busy as most_busy,
    l.since_unix_ns as since_unix_ns,
    l.until_unix_ns as until_unix_ns,
    l.last_arrival_unix_ns as last_arrival_unix_ns
from levels as l
join models as m on l.worker = m.worker
cross join attribution_rules as p
