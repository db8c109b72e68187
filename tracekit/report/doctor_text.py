"""What ``tracekit doctor`` prints: arrival, services, joins, then what to mend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tracekit.analysis.doctor import Health
from tracekit.analysis.doctor_chains import Remark
from tracekit.analysis.probe import Probe
from tracekit.report import formats
from tracekit.report.console import make_table

#: Pairs of clocks listed: those moved or clipped most come first.
_CLOCKS_SHOWN: Final = 12

_SIGNS: Final = {"ok": ("ok", "green"), "note": ("--", "yellow"), "problem": ("!!", "bold red")}


_FOUND_BY: Final = {
    "options": "as given",
    "ready_file": "from the ready file",
    "store": "as its receiver noted in the store",
    "default": "the default ports; no receiver has noted others in the store",
}


def render(health: Health | None, probe: Probe | None, *, missing: str | None) -> Group:
    """The whole report; ``missing`` says why there is no ``health`` (no store)."""
    return Group(*_blocks(health, probe, missing))


def _blocks(
    health: Health | None, probe: Probe | None, missing: str | None
) -> Iterator[RenderableType]:
    remarks: list[Remark] = []
    if missing is not None:
        remarks.append(Remark("problem", "store", missing))
    if health is not None:
        remarks.extend(health.remarks)
        yield Text.assemble(("store ", "bold"), health.store)
        yield from _arrival(health)
        if health.services:
            yield Text()
            yield _services(health)
        yield from _joins(health)
        if health.clocks:
            yield Text()
            yield _clocks(health)
        yield Text()
    if probe is not None:
        remarks.extend(probe.remarks)
        yield _ports(probe)
        yield Text()
    order = ("problem", "note", "ok")
    remarks.sort(key=lambda r: order.index(r.level))
    if not remarks:
        yield Text("nothing to remark", style="green")
    yield from _remarks(remarks)


def _arrival(health: Health) -> Iterator[Text]:
    last = health.last_ingested_unix_ns
    if last is None:
        return
    age_s = (health.now_unix_ns - last) / 1e9
    present = [a for a in health.arrivals if a["total"]]
    listed = ", ".join(
        f"{a['table_name'].replace('_', ' ')} {formats.count(a['total'])}" for a in present
    )
    yield Text(f"last arrival {formats.age(age_s)} ({formats.time(last)}); {listed}")


def _services(health: Health) -> RenderableType:
    table = make_table(
        "service",
        "spans",
        "legs",
        "requests",
        "understood as",
        "sent by",
        "last",
        right=("spans", "legs", "requests", "last"),
    )
    for row in health.services:
        last = row["last_ingested_unix_ns"]
        table.add_row(
            row["service_name"] or "(no name)",
            formats.count(row["spans"]),
            formats.count(row["legs"]),
            formats.count(row["requests"]),
            ", ".join(dict.fromkeys(filter(None, (row["sources"], row["engines"]))))
            or "no LLM request",
            formats.cut(row["scopes"] or formats.UNKNOWN, 40),
            formats.age((health.now_unix_ns - last) / 1e9),
        )
    return table


def _joins(health: Health) -> Iterator[Text]:
    joins = health.joins
    if not joins["requests"]:
        return
    yield Text()
    yield Text(
        f"{formats.plural(joins['requests'], 'request')}: {formats.count(joins['completed'])} "
        f"completed, {formats.count(joins['quarantined'])} quarantined, "
        f"{formats.count(joins['superseded'])} superseded attempts"
    )
    yield Text(
        f"seen by client {formats.count(joins['with_client'])}, by server "
        f"{formats.count(joins['with_server'])}, by both {formats.count(joins['joined'])}; "
        f"explained {formats.percent(joins['covered_share'])} of all wall time"
    )


def _clocks(health: Health) -> RenderableType:
    table = make_table(
        "clock",
        "against",
        "requests",
        "moved",
        "offset",
        "clipped",
        "set aside",
        right=("requests", "moved", "offset", "clipped", "set aside"),
    )
    for row in health.clocks[:_CLOCKS_SHOWN]:
        sure = row["uncertainty_ms"]
        table.add_row(
            formats.cut(row["clock"], 30),
            formats.cut(row["against"], 30),
            formats.count(row["requests"]),
            formats.count(row["moved"]),
            f"{row['offset_ms']:.1f} ± {formats.UNKNOWN if sure is None else f'{sure:.1f}'} ms",
            formats.count(row["clipped"]),
            formats.count(row["set_aside"]),
        )
    return table


def _ports(probe: Probe) -> Text:
    words = {None: "closed", "grpc": "gRPC", "http": "HTTP", "tls": "TLS", "unknown": "unknown"}
    listed = ", ".join(f"{p.port} {words[p.speaks]}" for p in probe.ports)
    how = _FOUND_BY[probe.found_by]
    return Text.assemble(("receiver ", "bold"), f"{probe.host}: {listed}", (f"  ({how})", "dim"))


def _remarks(remarks: Sequence[Remark]) -> Iterator[RenderableType]:
    for remark in remarks:
        sign, style = _SIGNS[remark.level]
        yield Text.assemble((f"{sign} ", style), remark.text)
        if remark.how:
            yield Padding(Text(remark.how, style="dim"), (0, 0, 0, 3), expand=False)
