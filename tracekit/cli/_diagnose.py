"""``tracekit diagnose``: the answer."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tracekit.cli import _options as opt
from tracekit.cli import _output as out
from tracekit.cli._group import GATE_FAILED


class DiagnosisFormat(StrEnum):
    """How the diagnosis is printed."""

    text = "text"
    json = "json"
    md = "md"


def diagnose(
    store: opt.Store = None,
    slo: opt.SloText = None,
    baseline: opt.Baseline = None,
    since: opt.Since = None,
    until: opt.Until = None,
    model: opt.Model = None,
    route: opt.Route = None,
    fail: Annotated[
        bool,
        typer.Option(
            "--fail", help="Exit 1 if a request misses the --slo, or there is no request."
        ),
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also show what was expected: the cost model.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Also list the findings that matter little.")
    ] = False,
    as_json: opt.Json = False,
    diagnosis_format: Annotated[
        DiagnosisFormat, typer.Option("--format", help="How to print it.")
    ] = DiagnosisFormat.text,
) -> None:
    """Say why requests are slow: one sentence, with evidence.

    Slow is what misses the --slo; without one, the slowest 5 % of each model and route.
    Findings of one or two requests, or of under 2 % of the time lost, are one line (--all).
    """
    from tracekit.analysis.diagnose import diagnose as run
    from tracekit.analysis.session import Session
    from tracekit.analysis.slo import parse_slo
    from tracekit.errors import UsageError

    limits = parse_slo(slo)
    if fail and not limits.metrics:
        raise UsageError("--fail needs an SLO: --slo ttft=800ms,tpot=50ms,e2e=10s")
    with Session.open(
        opt.store_path(store), window=opt.window(since, until), model=model, route=route
    ) as session:
        result = run(session, limits, baseline=opt.range_of(baseline), for_readers=False)
        cells = session.frame("select * from cost_model order by cell_index") if explain else None
    if as_json or diagnosis_format is DiagnosisFormat.json:
        document = result.to_json()
        if cells is not None:
            from tracekit.analysis.cost_model_docs import column_docs

            document["cost_model"] = cells.to_dicts()
            document["cost_model_columns"] = column_docs()
        out.write_json(document)
    elif diagnosis_format is DiagnosisFormat.md:
        from tracekit.report import diagnosis_md

        out.write(diagnosis_md.render(result, cells, every=every))
    else:
        from tracekit.report import diagnosis_text

        console = out.console()
        console.print(diagnosis_text.render(result, width=console.width, every=every))
        if cells is not None:
            from tracekit.report import cost_model_text

            console.print(cost_model_text.render(cells.to_dicts()))
    if fail and (result.misses.total > 0 or result.requests.total == 0):
        # a gate that saw no request has nothing to pass on
        raise typer.Exit(GATE_FAILED)
