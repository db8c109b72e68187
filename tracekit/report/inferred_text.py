"""Sentences on what other requests tell of phases that a source knows only as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tracekit.report import formats, texts


def inferred_lines(parts: Mapping[str, float | None] | None) -> Iterator[str]:
    """Of a row of ``inferred_parts`` [ms]; nothing where nothing is inferred."""
    said = {name: formats.ms(ms) for name, ms in (parts or {}).items() if ms is not None}
    if most := said.get("prefill_at_most_ms"):
        waited = said.get("queue_at_least_ms")
        rest = (
            f"at least {waited} waiting"
            if waited
            else "the rest waiting, or a transfer that came before its token"
        )
        yield (
            f"inferred from the quickest requests of its size: of {said['queue_or_prefill_ms']} "
            f"{texts.phase_label('queue_or_prefill')}, at most {most} is prefill and {rest}"
        )
    if fixed := said.get("kv_transfer_fixed_ms"):
        yield (
            f"inferred from requests of other sizes: of {said['kv_transfer_ms']} "
            f"{texts.phase_label('kv_transfer')}, {fixed} is there whatever the size and "
            f"{said['kv_transfer_sized_ms']} is for its bytes"
        )
