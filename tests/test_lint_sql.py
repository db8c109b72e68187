"""The portability lint finds every planted violation and lets the portable way pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lint_sql import violations

_LINT = Path(__file__).with_name("lint_sql.py")

#: planted SQL, and a word of the finding it must cause
PLANTED = [
    ("select a // 1000 as r from t", "integer division"),
    ("select least(a, b) as r from t", "least"),
    ("select greatest(a, b) as r from t", "greatest"),
    ("select round(x) as r from t", "round"),
    ("select cast(x * 1e3 as bigint) as r from t", "floor() first"),
    ("select cast(x as integer) as r from t", "BIGINT"),
    ("select cast(x as varchar) as r from t", "only bigint and double"),
    ("select x::text as r from t", "only bigint and double"),
    ("select try_cast(x as bigint) as r from t", "try_cast"),
    ("select any_value(x) as r from t", "any_value"),
    ("select arg_max(x, y) as r from t", "ties"),
    ("select max_by(x, y) as r from t", "ties"),
    ("select median(x) as r from t", "median"),
    ("select quantile_cont(x, 0.5) as r from t", "percentile_cont"),
    ("select approx_quantile(x, 0.5) as r from t", "approximate"),
    ("select string_agg(s, ',') as r from t", "string_agg"),
    ("select log2(x) as r from t", "log"),
    ("select ln(x) as r from t", "known to agree"),
    ("select hash(s) as r from t", "known to agree"),
    ("select md5(s) as r from t", "known to agree"),
    ("select length(s) as r from t", "bytes"),
    ("select upper(s) as r from t", "known to agree"),
    ("select substr(s, 1, 3) as r from t", "fixed prefix"),
    ("select made_up(s) as r from t", "made_up"),
    ("select date_trunc('hour', at) as r from t", "timestamp"),
    ("select a + interval 1 hour as r from t", "interval"),
    ("select s.a.b as r from t", "struct access"),
    ("select m['k'] as r from t", "list or map"),
    ("select [1, 2] as r from t", "list literal"),
    ("select {'a': 1} as r from t", "struct literal"),
    ("select j ->> '$.a' as r from t", "json"),
    ("select json_extract_string(j, '$.a') as r from t", "json"),
    ("select regexp_extract(s, 'a') as r from t", "known to agree"),
    ("select case when s ~ 'a' then 1 else 0 end as r from t", "regular expression"),
    ("select case when s ilike 'a%' then 1 else 0 end as r from t", "ilike"),
    ("select u.r as r from t cross join unnest([1]) as u(r)", "unnest"),
    ("select r.range as r from range(3) as r", "known to agree"),
    ("select * from t", "select *"),
    ("select t.* from t", "select *"),
    ("select a, sum(b) as r from t group by all", "group by all"),
    ("select a + 1 from t", "alias"),
    ("select a > 1 as r from t", "boolean"),
    ("select a and b as r from t union all select 1 as r from t", "boolean"),
    ("select a as r from t order by a nulls last", "outermost"),
    ("select a as r from t limit 3", "outermost"),
    ("select a / b as r from t", "unguarded"),
    ("select a % b as r from t", "unguarded"),
    ("select a / 0 as r from t", "unguarded"),
    ("select lag(a) over (order by b nulls last) as r from t", "default"),
    ("select row_number() over (order by b) as r from t", "nulls first/last"),
    ("select row_number() over (order by b desc) as r from t", "nulls first/last"),
    ("select row_number() over (partition by b) as r from t", "without an order"),
    ("select sum(a) over (order by b nulls last) as r from t", "ROWS frame"),
    (
        "select sum(a) over (order by b nulls last range between 5 preceding and current row)"
        " as r from t",
        "other than ROWS",
    ),
    ("select t.a as r from t join u using (a)", "using"),
    ("select t.a as r from t asof join u on t.a = u.a and t.b > u.b", "asof"),
    ("select t.a as r from t left join u on t.a < u.a", "outer join"),
    ("select t.a as r from t join u on t.a < u.a", "quadratic"),
    ("select t.a as r from t, u", "without ON"),
    ("select t.a as r from t semi join u on t.a = u.a", "semi"),
    ("select a as r from t where a not in (select b from u)", "not exists"),
    ("select a as r from t union select b as r from u", "UNION ALL"),
    ("select a as r from t except select b as r from u", "UNION ALL"),
    ("select a as r from t union all by name select b as r from u", "by name"),
    ("with recursive r(k) as (select 1 union all select k + 1 from r) select k as r from r", "rec"),
    ("select s || cast(a as varchar) as r from t", "|| with a cast"),
    ("select a as r from t where a > $since", "parameter"),
    ("select a as r from t where a > ?", "parameter"),
    ("pivot t on a using sum(b)", "one SELECT"),
    ("create view v as select a from t", "one SELECT"),
    ("create macro f(x) as x + 1", "one SELECT"),
    ("select 1 as r; select 2 as r", "one SELECT"),
    ("", "one SELECT"),
    ("select from where", "parsed"),
]

PORTABLE = """
-- a comment; with a semicolon
with w as (
    select
        t.request_key as request_key,
        t.start_ns - t.start_ns % 1000000 as bin_ns,
        case when t.a < t.b then t.a else t.b end as smaller,
        cast(floor(t.x * 1e3) as bigint) as x_us,
        cast(t.a as double) / nullif(cast(t.b as double), 0) as ratio,
        case when t.b > 0 then t.a / t.b end as guarded,
        coalesce(u.n, 0) as n,
        t.s || '/' || t.r as label,
        substr(t.src, 10) as field
    from t
    left join u on u.request_key = t.request_key and u.at_ns <= t.start_ns
    cross join settings
    where t.s like 'a%' and t.a between 1 and 5 and t.b is not null
        and exists (select 1 from v where v.k = t.k)
        and not exists (select 1 from q where q.k = t.k)
        and t.k in (select k from keys)
),

ranked as (
    select
        w.request_key,
        row_number() over (partition by w.bin_ns order by w.x_us desc nulls last) as rank_in_bin,
        sum(w.n) over (
            order by w.bin_ns nulls last, w.request_key nulls last
            rows between unbounded preceding and current row
        ) as running,
        lag(w.n, 1, -1) over (order by w.bin_ns nulls last) as before_n,
        count(*) over (partition by w.bin_ns) as in_bin
    from w
)

select
    request_key,
    percentile_cont(0.5) within group (order by running) as running_p50,
    count(*) filter (where before_n > 0) as n,
    stddev_samp(running) as running_sd,
    sqrt(abs(min(running))) as root
from ranked
where rank_in_bin = 1
group by request_key
union all
select request_key, running as running_p50, in_bin as n, null as running_sd, null as root
from ranked
"""


@pytest.mark.parametrize(("sql", "word"), PLANTED, ids=[sql for sql, _ in PLANTED])
def test_planted_violation_is_found(sql: str, word: str) -> None:
    findings = violations(sql)
    assert any(word in finding for finding in findings), findings


def test_portable_sql_passes() -> None:
    assert violations(PORTABLE) == []


def test_command_line_names_file_and_fails(tmp_path: Path) -> None:
    (tmp_path / "good.sql").write_text("select a as r from t\n")
    good = subprocess.run([sys.executable, _LINT, tmp_path], capture_output=True, text=True)
    assert (good.returncode, good.stdout) == (0, "portable SQL: 1 files, 0 findings\n")

    (tmp_path / "bad.sql").write_text("select median(a) as r from t\n")
    bad = subprocess.run([sys.executable, _LINT, tmp_path], capture_output=True, text=True)
    assert bad.returncode == 1
    assert "bad.sql: median" in bad.stdout
