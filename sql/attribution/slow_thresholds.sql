-- From what value on a request is slow: the SLO where one is given, else the 95th percentile of
-- its (model, route). A stratum with too few rows borrows from its model, then from everything.
-- grain: one row per model and route.
-- inputs: request_facts, slo, attribution_rules
-- model: model name, '' if unknown
-- route: traffic class or endpoint, '' if unknown
-- ttft_ms: [ms] slow above this; NULL = no limit, or too few rows to set one
-- tpot_ms: [ms] slow above this
-- e2e_ms: [ms] slow above this
-- ttft_level: given, route, model or all; NULL without a limit
-- tpot_level: as ttft_level
-- e2e_level: as ttft_level
-- ttft_n: completed requests that ttft_ms is the percentile of, NULL where it is given or not known
-- tpot_n: as ttft_n
-- e2e_n: as ttft_n
with strata as (
    select
        f.model as model,
        f.route as route,
        count(case when f.completed = 1 then f.ttft_ms end) as ttft_n,
        count(case when f.completed = 1 then f.tpot_ms end) as tpot_n,
        count(case when f.completed = 1 then f.e2e_ms end) as e2e_n,
        -- nothing to rank where the limits are given
        percentile_cont(0.95) within group (
            order by case when f.completed = 1 and s.source <> 'given' then f.ttft_ms end) as ttft_ms,
        percentile_cont(0.95) within group (
            order by case when f.completed = 1 and s.source <> 'given' then f.tpot_ms end) as tpot_ms,
        percentile_cont(0.95) within group (
            order by case when f.completed = 1 and s.source <> 'given' then f.e2e_ms end) as e2e_ms
    from request_facts as f
    cross join slo as s
    group by f.model, f.route
),

-- models with a stratum too thin to stand alone: only these need more than their own percentiles
thin as (
    select distinct c.model as model
    from strata as c
    cross join attribution_rules as p
    where c.ttft_n < p.min_rows or c.tpot_n < p.min_rows or c.e2e_n < p.min_rows
),

-- a row if there is any of them: crossed with nothing, no fact is read a second time
any_thin as (
    select count(*) as n from thin having count(*) > 0
),

ranked as (
    select f.model as model, f.ttft_ms as ttft_ms, f.tpot_ms as tpot_ms, f.e2e_ms as e2e_ms
    from request_facts as f
    cross join any_thin as a
    cross join slo as s
    where f.completed = 1 and s.source <> 'given'
),

by_model as (
    select
        r.model as model,
        count(r.ttft_ms) as ttft_n,
        count(r.tpot_ms) as tpot_n,
        count(r.e2e_ms) as e2e_n,
        percentile_cont(0.95) within group (order by r.ttft_ms) as ttft_ms,
        percentile_cont(0.95) within group (order by r.tpot_ms) as tpot_ms,
        percentile_cont(0.95) within group (order by r.e2e_ms) as e2e_ms
    from ranked as r
    join thin as t on r.model = t.model
    group by r.model
),

overall as (
    select
        count(r.ttft_ms) as ttft_n,
        count(r.tpot_ms) as tpot_n,
        count(r.e2e_ms) as e2e_n,
        percentile_cont(0.95) within group (order by r.ttft_ms) as ttft_ms,
        percentile_cont(0.95) within group (order by r.tpot_ms) as tpot_ms,
        percentile_cont(0.95) within group (order by r.e2e_ms) as e2e_ms
    from ranked as r
),

leveled as (
    select
        c.model as model,
        c.route as route,
        s.ttft_ms as given_ttft_ms,
        s.tpot_ms as given_tpot_ms,
        s.e2e_ms as given_e2e_ms,
        case when s.source = 'given' then case when s.ttft_ms is not null then 'given' end
             when c.ttft_n >= p.min_rows then 'route'
             when m.ttft_n >= p.min_rows then 'model'
             when o.ttft_n >= p.min_rows then 'all' end as ttft_level,
        case when s.source = 'given' then case when s.tpot_ms is not null then 'given' end
             when c.tpot_n >= p.min_rows then 'route'
             when m.tpot_n >= p.min_rows then 'model'
             when o.tpot_n >= p.min_rows then 'all' end as tpot_level,
        case when s.source = 'given' then case when s.e2e_ms is not null then 'given' end
             when c.e2e_n >= p.min_rows then 'route'
             when m.e2e_n >= p.min_rows then 'model'
             when o.e2e_n >= p.min_rows then 'all' end as e2e_level,
        c.ttft_ms as route_ttft_ms,
        c.tpot_ms as route_tpot_ms,
        c.e2e_ms as route_e2e_ms,
        m.ttft_ms as model_ttft_ms,
        m.tpot_ms as model_tpot_ms,
        m.e2e_ms as model_e2e_ms,
        o.ttft_ms as all_ttft_ms,
        o.tpot_ms as all_tpot_ms,
        o.e2e_ms as all_e2e_ms,
        c.ttft_n as route_ttft_n,
        c.tpot_n as route_tpot_n,
        c.e2e_n as route_e2e_n,
        m.ttft_n as model_ttft_n,
        m.tpot_n as model_tpot_n,
        m.e2e_n as model_e2e_n,
        o.ttft_n as all_ttft_n,
        o.tpot_n as all_tpot_n,
        o.e2e_n as all_e2e_n
    from strata as c
    left join by_model as m on c.model = m.model
    cross join overall as o
    cross join slo as s
    cross join attribution_rules as p
)

select
    model,
    route,
    case ttft_level when 'given' then given_ttft_ms when 'route' then route_ttft_ms
        when 'model' then model_ttft_ms when 'all' then all_ttft_ms end as ttft_ms,
    case tpot_level when 'given' then given_tpot_ms when 'route' then route_tpot_ms
        when 'model' then model_tpot_ms when 'all' then all_tpot_ms end as tpot_ms,
    case e2e_level when 'given' then given_e2e_ms when 'route' then route_e2e_ms
        when 'model' then model_e2e_ms when 'all' then all_e2e_ms end as e2e_ms,
    ttft_level,
    tpot_level,
    e2e_level,
    case ttft_level when 'route' then route_ttft_n when 'model' then model_ttft_n
        when 'all' then all_ttft_n end as ttft_n,
    case tpot_level when 'route' then route_tpot_n when 'model' then model_tpot_n
        when 'all' then all_tpot_n end as tpot_n,
    case e2e_level when 'route' then route_e2e_n when 'model' then model_e2e_n
        when 'all' then all_e2e_n end as e2e_n
from leveled
