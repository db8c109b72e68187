-- Requests whose phases the causes look at: suspects and controls, and those that load is counted
-- from.
-- grain: one row per request.
-- inputs: suspect_requests, request_facts, load_rules
-- request_key: identity of the request
-- is_counted: 1 if load is counted from it, else 0
-- place: where it decodes: its worker, or the model where no worker is known; NULL if not counted
-- prefill_place: where it prefills, as place
select
    request_key,
    max(is_counted) as is_counted,
    max(place) as place,
    max(prefill_place) as prefill_place
from (
    select request_key, 0 as is_counted, null as place, null as prefill_place
    from suspect_requests
    union all
    select c.request_key as request_key, 1 as is_counted,
        coalesce(c.worker, c.model) as place,
        coalesce(c.prefill_worker, c.model) as prefill_place
    from request_facts as c
    cross join load_rules as r
    where c.quarantine_reason is null and c.superseded_attempt = 0
        -- of very many requests a sample, each counting for several (see `load_rules`)
        and (r.step = 1 or c.arrival_unix_ns % nullif(r.step, 0) = 0)
) as u
group by request_key
