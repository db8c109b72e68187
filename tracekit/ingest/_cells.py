"""One cell of a request log, as text or as a JSON or Arrow value, to a typed value.

Owns the spellings: what counts as empty, how numbers, durations, times, flags and statuses are
written. Knows no column names and decides no unit: where a cell does not say its own, the
caller passes one in. A cell that cannot be read raises `CellError`, nothing else.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Final

#: Cells that mean "not known", folded to lower case.
NULLS: Final = frozenset(
    ("", "-", "--", "\u2013", "\u2014", "n/a", "#n/a", "na", "null", "none", "nan", "nil", "없음")
)

#: Milliseconds in one of each unit of duration.
MS_PER: Final[dict[str, float]] = {
    "ns": 1e-6,
    "us": 1e-3,
    "ms": 1.0,
    "s": 1e3,
    "min": 6e4,
    "h": 3.6e6,
}

#: Nanoseconds in one of each unit of time since 1970.
NS_PER: Final[dict[str, int]] = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}

#: Bytes in one of each unit of size.
BYTES_PER: Final[dict[str, int]] = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}

#: Tokens per second in one of each unit of rate.
PER_S: Final[dict[str, float]] = {"1/s": 1.0, "1/min": 1 / 60, "1/ms": 1e3}

_UNIT_WORDS: Final[dict[str, str]] = {
    word: unit
    for unit, words in {
        "ns": "ns nano nanos nanosecond nanoseconds 나노초",
        "us": "us µs μs micro micros microsecond microseconds 마이크로초",
        "ms": "ms milli millis msec msecs millisecond milliseconds 밀리초",
        "s": "s sec secs second seconds 초",
        "min": "min mins minute minutes 분",
        "h": "h hr hrs hour hours 시간",
        "b": "b byte bytes 바이트",
        "kb": "kb",
        "mb": "mb",
        "gb": "gb",
        "kib": "kib",
        "mib": "mib",
        "gib": "gib",
        "1/s": "1/s /s tokens/s token/s tok/s tokens/sec tok/sec t/s tps per_second",
        "1/min": "1/min /min tokens/min tok/min tpm per_minute",
        "1/ms": "1/ms tokens/ms tok/ms",
    }.items()
    for word in words.split()
}

#: A count may be written 12k; and may say what it counts.
_COUNT_FACTOR: Final[dict[str, int]] = {"k": 10**3, "m": 10**6}
_COUNT_WORDS: Final = frozenset(("token", "tokens", "tok", "toks", "개", "토큰"))

_NUMBER: Final = re.compile(
    r"(?P<number>[+-]?(?:\d[\d.,'\u00a0\u202f ]*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>[^\d\s].*)?"
)
_GROUPED: Final = {
    ".": re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?"),
    ",": re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+(?:,\d+)?"),
}
_SPACED: Final = re.compile(r"[+-]?\d{1,3}(?:[ '\u00a0\u202f]\d{3})+(?:[.,]\d+)?")
_COMPOUND: Final = re.compile(
    r"(?:(\d+)\s*(?:h|시간)\s*)?(?:(\d+)\s*(?:m|min|분)\s*)?(\d+(?:\.\d+)?)\s*(?:s|초)"
)
_CLOCK_DURATION: Final = re.compile(r"(\d+):([0-5]?\d):([0-5]?\d(?:\.\d+)?)")
_COMMA_DECIMAL: Final = re.compile(r"\s*[+-]?\d+,\d+\s*[^\d,.]*")
_COMMA_NOT_GROUP: Final = re.compile(r"\s*[+-]?(?:\d+,(?:\d{1,2}|\d{4,})|0,\d+)\s*[^\d,.]*")

_ISO: Final = re.compile(
    r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})[T ]\s*(\d{1,2}):(\d{2})"
    r"(?::(\d{2})(?:[.,](\d{1,12})\d*)?)?"
    r"\s*(Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?",
    re.IGNORECASE,
)

#: No number, duration or time is longer; keeps the patterns from running long on any cell.
_MAX_CHARS: Final = 64

_TRUE: Final = frozenset(("1", "true", "t", "yes", "y", "on", "예", "o"))
_FALSE: Final = frozenset(("0", "false", "f", "no", "n", "off", "아니오", "x"))

_STATUS: Final[dict[str, str]] = {
    word: status
    for status, words in {
        "ok": "ok success succeeded successful complete completed done finished passed true "
        "stop length unset status_code_ok status_code_unset 성공 완료 정상",
        "error": "error errored err fail failed failure exception rejected refused false "
        "internal_error status_code_error 실패 오류 에러",
        "aborted": "aborted abort cancelled canceled cancel interrupted disconnected incomplete "
        "client_disconnect client_closed_request 중단 취소",
        "timeout": "timeout timed_out time_out timedout deadline_exceeded 시간초과 타임아웃",
        "open": "open running in_progress pending started 진행중",
    }.items()
    for word in words.split()
}

#: 2001-09-09, a billion seconds after 1970.
FIRST_UNIX_NS: Final = 10**18
_INT64: Final = 1 << 63
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class UnixNs(int):
    """A point in time that its file already stores as one; [unix ns]."""


class CellError(ValueError):
    """A cell that cannot be read: ``reason`` is a short name, the message says what is wrong."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def show(cell: object) -> str:
    """A cell for a message: short ones as they are, of long ones (prompts?) only the size."""
    if isinstance(cell, (str, bytes, list, dict)) and len(cell) > 24:
        return f"a {type(cell).__name__} of {len(cell)} characters or items"
    text = repr(cell)
    return text if len(text) <= 60 else f"a {type(cell).__name__}"


def is_null(cell: object) -> bool:
    """Whether a cell says nothing."""
    if cell is None:
        return True
    if isinstance(cell, str):
        text = cell.strip()
        return len(text) < 5 and text.lower() in NULLS
    return isinstance(cell, float) and math.isnan(cell)


def unit_of(word: str) -> str | None:
    """The unit that a word names (``s``, ``ms``, ``sec``, ``초``, ``MiB``, ``tok/s``), if any."""
    return _UNIT_WORDS.get(word.strip().lower().rstrip("."))


def has_comma_decimal(cell: object, *, delimiter: str | None) -> bool:
    """Whether this cell shows that its file writes 1,5 for one and a half."""
    if not isinstance(cell, str) or delimiter in (",", None) or len(cell) > _MAX_CHARS:
        return False
    pattern = _COMMA_DECIMAL if delimiter == ";" else _COMMA_NOT_GROUP
    return pattern.fullmatch(cell) is not None


def number_and_unit(cell: object, *, comma_decimal: bool = False) -> tuple[float, str | None]:
    """A finite number and the words after it, if there are any (``'850 ms'`` -> 850.0, 'ms')."""
    if isinstance(cell, str):
        text = _short(cell, "not_a_number", "a number")
        if not comma_decimal and "_" not in text:
            try:
                return _finite(float(text), cell), None
            except ValueError as error:
                if isinstance(error, CellError):
                    raise
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise CellError("not_a_number", f"{show(cell)} is not a number")
        digits = match["number"].strip()
        try:
            number = float(_plain(digits, comma_decimal=comma_decimal))
        except ValueError:
            raise CellError("not_a_number", f"{show(cell)} is not a number") from None
        return _finite(number, cell), match["unit"] or None
    if isinstance(cell, (int, float, Decimal)) and not isinstance(cell, bool):
        try:
            return _finite(float(cell), cell), None
        except (OverflowError, ValueError):  # too large, or a signalling NaN
            raise CellError("not_a_number", f"{show(cell)} is not a finite number") from None
    raise CellError("not_a_number", f"{show(cell)} is not a number")


def parse_count(cell: object, *, comma_decimal: bool = False, unit: str | None = None) -> int:
    """A whole number from 0 on; ``unit`` is one of `BYTES_PER`, else the cell may write 12k."""
    if type(cell) is int:
        number: float = cell
        suffix = None
    else:
        if isinstance(cell, str) and cell.isascii() and cell.isdigit() and len(cell) < 16:
            number, suffix = int(cell), None
        else:
            number, suffix = number_and_unit(cell, comma_decimal=comma_decimal)
    if suffix is not None:
        word = suffix.strip().lower()
        for count_word in _COUNT_WORDS:
            if word.endswith(count_word):
                word = word[: -len(count_word)].strip()
                break
        if word in _COUNT_FACTOR and unit is None:
            number = round(number * _COUNT_FACTOR[word], 3)
        elif unit is not None and unit_of(word) in BYTES_PER:
            unit = unit_of(word)
        elif word:
            raise CellError("not_a_number", f"{show(cell)} is not a count")
    if unit is not None:
        number = round(number * BYTES_PER[unit])
    if number < 0:
        raise CellError("negative", f"{show(cell)} is negative")
    if number != int(number):
        raise CellError("not_whole", f"{show(cell)} is not a whole number")
    if number >= 1e15:
        raise CellError("out_of_range", f"{show(cell)} is too large")
    return int(number)


def parse_real(cell: object, *, comma_decimal: bool = False, factor: float = 1.0) -> float:
    """A number from 0 on; a rate may say its unit (``'35 tok/s'``)."""
    number, suffix = number_and_unit(cell, comma_decimal=comma_decimal)
    if suffix is not None:
        unit = unit_of(suffix.replace(" ", ""))
        if unit not in PER_S:
            raise CellError("not_a_number", f"{show(cell)} is not a number")
        factor = PER_S[unit]
    if number < 0:
        raise CellError("negative", f"{show(cell)} is negative")
    return number * factor


def raw_duration(cell: object, *, comma_decimal: bool = False) -> tuple[float | None, float | None]:
    """(number without a unit, None) or (None, milliseconds) where the cell says its unit."""
    if isinstance(cell, str):
        text = _short(cell, "not_a_number", "a duration").lower()
        if ":" in text or text.endswith(("s", "초")):
            compound = _CLOCK_DURATION.fullmatch(text) or _COMPOUND.fullmatch(text)
            if compound is not None:
                hours, minutes, seconds = (float(part or 0) for part in compound.groups())
                return None, _positive(((hours * 60 + minutes) * 60 + seconds) * 1e3, cell)
    elif isinstance(cell, dt.timedelta):
        return None, _positive(cell.total_seconds() * 1e3, cell)
    number, suffix = number_and_unit(cell, comma_decimal=comma_decimal)
    if suffix is None:
        return _positive(number, cell), None
    unit = unit_of(suffix)
    if unit not in MS_PER:
        raise CellError("not_a_number", f"{show(cell)} is not a duration")
    return None, _positive(number * MS_PER[unit], cell)


def parse_duration(cell: object, *, unit: str, comma_decimal: bool = False) -> float:
    """Milliseconds from 0 on; a cell's own unit beats ``unit`` (one of `MS_PER`)."""
    raw, milliseconds = raw_duration(cell, comma_decimal=comma_decimal)
    if milliseconds is None:
        assert raw is not None
        milliseconds = raw * MS_PER[unit]
    if milliseconds > 1e12:  # 31 years
        raise CellError("out_of_range", f"{show(cell)} is too long to be a duration")
    return milliseconds


def parse_time(cell: object, *, unit: str | None = None) -> tuple[int | None, bool]:
    """(unix ns, whether the cell names its zone); (None, True) for a number that is no unix time.

    ``unit`` is one of `NS_PER`; without it the magnitude tells s, ms, us and ns apart: their
    ranges from 2001 to 2262 do not touch. Smaller numbers come from monotonic clocks. Text that
    is neither ISO 8601 nor a number raises `CellError`.
    """
    if isinstance(cell, UnixNs):
        return _in_int64(int(cell), cell), True
    if isinstance(cell, dt.datetime):
        zoned = cell.tzinfo is not None
        moment = cell if zoned else cell.replace(tzinfo=dt.UTC)
        return _in_int64(_unix_ns(moment, 0), cell), zoned
    if isinstance(cell, str):
        text = _short(cell, "not_a_time", "a time")
        match = _ISO.fullmatch(text)
        if match is not None:
            return _iso_ns(match, cell)
        number = _decimal(text, cell)
    elif isinstance(cell, (int, float, Decimal)) and not isinstance(cell, bool):
        number = _decimal(repr(cell) if isinstance(cell, float) else str(cell), cell)
    else:
        raise CellError("not_a_time", f"{show(cell)} is not a time")
    if unit is None:
        unit = next((u for u, per in NS_PER.items() if _is_unix(number * per)), None)
        if unit is None:
            return None, True
    nanoseconds = number * NS_PER[unit]
    return (int(nanoseconds), True) if _is_unix(nanoseconds) else (None, True)


def parse_flag(cell: object) -> int:
    """0 or 1."""
    if isinstance(cell, bool):
        return int(cell)
    word = str(cell).strip().lower() if isinstance(cell, (str, int, float)) else ""
    word = word.removesuffix(".0")
    if word in _TRUE:
        return 1
    if word in _FALSE:
        return 0
    raise CellError("not_a_flag", f"{show(cell)} is neither true nor false")


def parse_status(cell: object) -> str | None:
    """One of `tracekit.names.STATUSES` from a word, a flag or an HTTP code; None if unknown."""
    word = str(cell).strip().lower().replace(" ", "_").replace("-", "_").removesuffix(".0")
    if is_http_code(word):
        if word in ("408", "504"):
            return "timeout"
        if word == "499":
            return "aborted"
        return "ok" if word < "400" else "error"
    if word in ("0", "1"):
        return None  # an exit code or a flag: no telling
    return _STATUS.get(word)


def is_http_code(cell: object) -> bool:
    """Whether a status is given as a code of three digits rather than a word."""
    word = str(cell).strip().removesuffix(".0")
    return word.isascii() and word.isdigit() and len(word) == 3


def parse_text(cell: object, *, limit: int) -> str:
    """Text, cut to ``limit`` characters; without surrogates, which no table can hold."""
    if isinstance(cell, (dict, list, bytes)):
        raise CellError("not_text", f"{show(cell)} is not text")
    text = cell if isinstance(cell, str) else str(cell)
    text = text.strip()[:limit]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _short(cell: str, reason: str, wanted: str) -> str:
    text = cell.strip()
    if len(text) > _MAX_CHARS:
        raise CellError(reason, f"{show(cell)} is not {wanted}")
    return text


def _finite(number: float, cell: object) -> float:
    if not math.isfinite(number):
        raise CellError("not_a_number", f"{show(cell)} is not a finite number")
    return number


def _positive(number: float, cell: object) -> float:
    if number < 0:
        raise CellError("negative", f"{show(cell)} is negative")
    return number


def _plain(digits: str, *, comma_decimal: bool) -> str:
    """Digits with their thousands separators removed and a point for a decimal comma."""
    if _SPACED.fullmatch(digits):
        digits = re.sub(r"[ '\u00a0\u202f]", "", digits)
    if comma_decimal:
        if _GROUPED[","].fullmatch(digits):
            digits = digits.replace(".", "")
        return digits.replace(",", ".")
    if _GROUPED["."].fullmatch(digits):
        return digits.replace(",", "")
    return digits


def _decimal(text: str, cell: object) -> Decimal:
    """Exact: a double cannot hold unix nanoseconds, nor seconds with microseconds."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise CellError("not_a_time", f"{show(cell)} is not a time") from None
    if not number.is_finite() or number.adjusted() > 30:
        raise CellError("not_a_time", f"{show(cell)} is not a time")
    if number.adjusted() < -30:
        return Decimal(0)
    return number


def _iso_ns(match: re.Match[str], cell: object) -> tuple[int, bool]:
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        moment = dt.datetime(
            int(year),
            int(month),
            int(day),
            int(hour),
            int(minute),
            int(second or 0),
            tzinfo=_zone(zone),
        )
    except ValueError as error:
        raise CellError("not_a_time", f"{show(cell)} is not a time: {error}") from None
    nanoseconds = int((fraction or "0").ljust(9, "0")[:9])
    return _in_int64(_unix_ns(moment, nanoseconds), cell), zone is not None


def _is_unix(nanoseconds: Decimal) -> bool:
    """2001 to 2262; smaller numbers come from monotonic clocks."""
    return FIRST_UNIX_NS <= nanoseconds < _INT64


def _zone(text: str | None) -> dt.timezone:
    if text is None or text.upper() in ("Z", "UTC", "GMT"):
        return dt.UTC
    minutes = int(text[1:3]) * 60 + int(text[3:].lstrip(":") or 0)
    return dt.timezone(dt.timedelta(minutes=-minutes if text[0] == "-" else minutes))


def _unix_ns(moment: dt.datetime, nanoseconds: int) -> int:
    try:
        since = moment - _EPOCH
    except OverflowError:  # year 1 with an offset
        return -_INT64 - 1
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000 + nanoseconds


def _in_int64(nanoseconds: int, cell: object) -> int:
    if not 0 <= nanoseconds < _INT64:
        raise CellError("out_of_range", f"{show(cell)} is not a time between 1970 and 2262")
    return nanoseconds
