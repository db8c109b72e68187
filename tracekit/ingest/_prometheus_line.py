"""One line of Prometheus' text: a sample's name, labels, value and time.

Names and labels are read by Prometheus' own client library, which is imported when such text is
read: it takes long to import, and few imports need it. Numbers are read here, strictly.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Final, NamedTuple

#: 2200 in ns.
LATEST_NS: Final = 7_258_118_400_000_000_000
#: Between a time in s and one in ms.
_LEAST_MS: Final = 100_000_000_000
_EXEMPLAR: Final = re.compile(r" # \{[^{}]*\} \S+(?: \S+)?$")


class Sample(NamedTuple):
    """One sample; ``at_unix_ns`` only if the line has a time of its own."""

    line: int
    name: str
    labels: dict[str, str]
    value: float
    at_unix_ns: int | None


def read_sample(number: int, text: str) -> Sample:
    """One line; ValueError if it is none. What stands after the labels is read strictly: the
    library takes the first of several numbers and the last for a time, which cut lines look like.
    """
    if " # {" in text and (bare := _EXEMPLAR.sub("", text)) != text:
        try:
            return read_sample(number, bare)
        except ValueError:
            pass  # it stands in a label
    series, brace, rest = text.rpartition("}")
    if not brace:
        series, _, rest = text.partition(" ") if " " in text else text.partition("\t")
    words = rest.split()
    if not 1 <= len(words) <= 2 or (brace and rest[:1] not in (" ", "\t")):
        raise ValueError(f"{text[:80]!r}")
    name, labels = _series(series + brace)
    at = None
    if len(words) == 2:
        told = read_number(words[1])
        # ms in Prometheus' own format, s in OpenMetrics
        # (to the us: a double holds no more)
        per_us = 1e3 if abs(told) >= _LEAST_MS else 1e6
        at = round(told * per_us) * 1_000 if math.isfinite(told) else 0
        if not 0 < at <= LATEST_NS:
            raise ValueError(f"time {words[1][:40]!r}")
    return Sample(number, name, labels, read_number(words[0]), at)


def read_number(text: str) -> float:
    """A number as Prometheus writes it; ValueError if it is none."""
    if "_" in text or not text.isascii():
        raise ValueError(f"not a number: {text[:40]!r}")
    return float(text)


@lru_cache(maxsize=65_536)
def _series(text: str) -> tuple[str, dict[str, str]]:
    """Name and labels of what stands before the value; ValueError if it is nothing such."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        found = [s for f in text_string_to_metric_families(f"{text} 1") for s in f.samples]
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(f"{text[:80]!r} ({error})") from None
    if len(found) != 1 or found[0].value != 1 or found[0].timestamp is not None:
        raise ValueError(f"{text[:80]!r}")
    return found[0].name, dict(found[0].labels)


def plain_name(text: str) -> str:
    """A family's name without the quotes that UTF-8 names have."""
    return text[1:-1].replace('\\"', '"').replace("\\\\", "\\") if text[:1] == '"' else text
