"""What requests say of clocks, as a table: which order of events is certain between their legs.

Owns the SQL that turns legs into bounds of offsets, one row a request. Decides nothing about
offsets (`_clock_fit`) and moves nothing (`clocks`).

The clock of a leg is its host's, else its service instance's. Rows of a request log stand on the
clock of the traced client, or, without one, on a clock of their own.
"""

from __future__ import annotations

from typing import Final

import duckdb

from tracekit.analysis._duck import run

#: Requests this near in time share an offset (unless the clock was stepped or drifts between).
WINDOW_NS: Final = 60 * 1_000_000_000

#: A server's span may end this much after its client has the whole answer: it is closed after
#: the last byte has left. Its last token, where it says so, may not.
_LATE_END_NS: Final = 50_000_000

#: The clocks a request may have: client's, gateway's, prefill server's, engine's.
NODES: Final = ("c", "g", "p", "e")

#: What causality orders, outer clock and inner clock: times of the inner one plus its offset must
#: lie within the outer one's. SQL of both bounds of the offset, over columns of a request.
LINKS: Final = (
    ("c", "g", "c_send - g_recv", f"c_end - (g_end - {_LATE_END_NS})"),
    ("c", "p", "c_send - p_first", "c_end - p_last"),
    ("c", "e", "c_send - e_first", "c_end - e_last"),
    ("g", "p", "g_recv - p_first", "g_end - p_last"),
    ("g", "e", "g_recv - e_first", "g_end - e_last"),
    # the decode server schedules a request once its KV cache is there
    ("p", "e", "p_done - e_ready", "null::bigint"),
)

#: SQL over `legs`: the clock that stamped a leg, NULL if that is not known.
DOMAIN: Final = (
    "coalesce(nullif(host_name, ''), nullif(concat_ws('/', nullif(service_name, ''), "
    "nullif(service_instance_id, '')), ''))"
)

_FIRST: Final = (
    "coalesce(recv_unix_ns, queued_unix_ns, scheduled_unix_ns, kv_start_unix_ns, "
    "prefill_end_unix_ns, first_token_unix_ns)"
)
_LAST: Final = (
    f"coalesce(last_token_unix_ns, first_token_unix_ns, leg_end_unix_ns - {_LATE_END_NS})"
)

#: Order among legs of one role: the outermost is the longest, whatever the clocks say.
_LENGTH: Final = "coalesce(leg_end_unix_ns - coalesce(send_unix_ns, recv_unix_ns), -1)"


def create_nodes(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """An empty table of the shape of ``clock_nodes``."""
    bounds = ", ".join(f"low{k} bigint, high{k} bigint" for k in range(len(LINKS)))
    clocks = ", ".join(f"{c} varchar" for c in NODES)
    con.execute(
        f"create or replace table {name} (request_key varchar, {clocks}, at_ns bigint, {bounds})"
    )


def sum_nodes(con: duckdb.DuckDBPyConnection, name: str, nodes: str) -> None:
    """Add to ``name`` (of the same shape) what the rows of ``nodes`` say together.

    One row a window, combination of clocks and links that are bounded, at its first and at its
    last time: where nobody contradicts equal clocks, offsets follow from these as from all rows.
    """
    links = range(len(LINKS))
    bounded = ", ".join(f"low{k} is null and high{k} is null" for k in links)
    bounds = ", ".join(f"max(low{k}) as low{k}, min(high{k}) as high{k}" for k in links)
    run(
        con,
        f"""
        insert into {name} by name
        with s as (
            select {", ".join(NODES)}, min(at_ns) as first_ns, max(at_ns) as last_ns, {bounds}
            from {nodes} group by at_ns // {WINDOW_NS}, {", ".join(NODES)}, {bounded}
        )
        select '' as request_key, first_ns as at_ns, * exclude (first_ns, last_ns) from s
        union all
        select '', last_ns, * exclude (first_ns, last_ns) from s
        """,
    )


def gather_nodes(con: duckdb.DuckDBPyConnection) -> None:
    """``clock_nodes`` of ``legs``: one row per request that more than one clock has stamped.

    Columns: the clocks (`NODES`), when it was (on the outermost clock), and for each of `LINKS`
    the least and the most [ns] that may be added to the inner clock's times.
    """
    client, log = "role = 'client' and dom is not null", "role = 'client' and is_log"
    gateway = "role in ('gateway', 'router') and dom is not null"
    prefill = "role = 'prefill_engine' and good"
    engine = "role in ('engine', 'decode_engine') and dom is not null"
    bounds = ", ".join(
        f"case when {o} <> {i} then {low} end as low{k}, "
        # a call that was given up ends before its servers do
        f"case when {o} <> {i} and fine then {high} end as high{k}"
        for k, (o, i, low, high) in enumerate(LINKS)
    )
    run(
        con,
        f"""
        create or replace temp table clock_nodes as
        with l as (
            select request_key, role, status,
                case when source <> 'request_log' then {DOMAIN} end as dom,
                source = 'request_log' as is_log, leg_quarantine is null as good,
                {_LENGTH} as length, {_FIRST} as first_ns, {_LAST} as last_ns,
                send_unix_ns, recv_unix_ns, leg_end_unix_ns, last_token_unix_ns,
                coalesce(prefill_end_unix_ns, first_token_unix_ns) as done_ns,
                coalesce(scheduled_unix_ns, first_token_unix_ns) as ready_ns
            from legs where has_clock = 1
        ),
        s as (
            select
                request_key,
                bool_and(status not in ('aborted', 'timeout', 'error', 'open')) as fine,
                arg_max(dom, length) filter ({client}) as span_c,
                arg_max(send_unix_ns, length) filter ({client}) as span_send,
                arg_max(leg_end_unix_ns, length) filter ({client}) as span_end,
                bool_or({log}) as logged,
                min(send_unix_ns) filter ({log}) as log_send,
                max(coalesce(leg_end_unix_ns, last_token_unix_ns)) filter ({log}) as log_end,
                arg_max(dom, length) filter ({gateway}) as g,
                arg_max(coalesce(recv_unix_ns, send_unix_ns), length) filter ({gateway}) as g_recv,
                arg_max(leg_end_unix_ns, length) filter ({gateway}) as g_end,
                min(dom) filter (role = 'prefill_engine') as p,
                min(first_ns) filter ({prefill}) as p_first,
                max(last_ns) filter ({prefill}) as p_last,
                max(done_ns) filter ({prefill}) as p_done,
                min(dom) filter ({engine}) as e,
                max(dom) filter ({engine}) as e_other,
                min(first_ns) filter ({engine} and good) as e_first,
                max(last_ns) filter ({engine} and good) as e_last,
                min(ready_ns) filter (role = 'decode_engine' and good) as e_ready
            from l group by request_key
            having min(dom) <> max(dom) or (logged and count(dom) > 0)
        ),
        n as (
            select
                request_key, fine, g, g_recv, g_end, p, p_first, p_last, p_done,
                coalesce(span_c, case when logged then 'request_log' end) as c,
                case when span_c is null then log_send else span_send end as c_send,
                case when span_c is null then log_end else span_end end as c_end,
                -- engines of several hosts that are no pair: one cannot speak for the others
                case when e = e_other then e end as e, e_first, e_last, e_ready
            from s
        )
        select request_key, c, g, p, e,
            coalesce(c_send, g_recv, p_first, e_first) as at_ns, {bounds}
        from n
        where coalesce(c_send, g_recv, p_first, e_first) is not null
            and len(list_distinct([c, g, p, e])) > 1
        """,
    )
