"""The notes beside the numbers: whom percentiles leave out. One place for every view.

Puts numbers of the diagnosis into words; makes none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tracekit.report import formats

if TYPE_CHECKING:
    from tracekit.analysis.diagnosis import Diagnosis

_COMPLETED: Final = (
    "{share} of the requests completed ({completed} of {ended} that ended): percentiles leave the "
    "others out"
)


def percentile_notes(diagnosis: Diagnosis) -> Iterator[str]:
    """What the percentiles do not say by themselves."""
    counts = diagnosis.requests
    if counts.completed < counts.ended:
        yield _COMPLETED.format(
            share=formats.percent(counts.completed_share),
            completed=formats.count(counts.completed),
            ended=formats.count(counts.ended),
        )
