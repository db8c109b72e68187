"""llama.cpp server's log, text (`minutes.seconds.ms.us` since start) or JSON lines (--log-jsonl).

A task is gathered from its lines until `print_timing` is complete (or it is released after a
cancel) and becomes one record, whose attributes are the server's own numbers (`prompt_ms`,
`prompt_n`, `predicted_ms`, `predicted_n`) and the times that lines have, in us since start
(`posted_us`, `launched_us`, `prompt_us`, `printed_us`). The clock counts from the start, which no
line tells: without that nothing can be placed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import orjson

from tracekit.ingest.engine_logs._record import (
    BadLine,
    EngineLog,
    Facts,
    Line,
    Read,
    Record,
    SourceError,
)

_TEXT: Final = re.compile(r"^(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] (.*)$")
_TASK: Final = re.compile(r"\| task (\d+) \| *(.*)$")
_EVAL: Final = re.compile(
    r"^(prompt eval|eval|total) time = *(\d+(?:\.\d+)?) ms / *(\d+) tokens(?:$|[ (])"
)
#: A request's own task is printed with the number of its answers, housekeeping without.
_POST: Final = re.compile(r"post: new task, id = (\d+)/\d+(?:,|$)")
_CANCEL: Final = re.compile(r"cancel task, id_task = (\d+)$")
_PROMPT: Final = re.compile(r"^new prompt, .*task\.n_tokens = (\d+)$")
_ERROR: Final = re.compile(r"send_error: task id = (\d+), error: (.*)$")

#: Tasks that are gathered at a time; a log that was cut leaves some for ever.
_OPEN_MAX: Final = 100_000
#: A line that belongs to a task is about a request, and none of these is refused by itself.
_MARKS: Final = (b"launch_slot_", b"print_timing", b"task.n_tokens")


def _looks_like(head: bytes) -> bool:
    if not any(mark in head for mark in (b"slot ", b"srv ")):
        return False
    return any(isinstance(_line(line), tuple) for line in head.splitlines()[:50])


def _line(text: bytes) -> tuple[int, str] | BadLine | None:
    """(us since start, message); None for a line of another kind."""
    if text[:1] == b"{":
        try:
            found = orjson.loads(text)
        except ValueError:
            return BadLine("cut_line", "a JSON line that is cut off") if any(
                mark in text for mark in _MARKS
            ) else None  # fmt: skip
        if not isinstance(found, dict) or found.get("type") != "log":
            return None
        time_us, message = found.get("time"), found.get("msg")
        if isinstance(time_us, int) and time_us >= 0 and isinstance(message, str):
            return time_us, message.rstrip("\n")
        return None
    match = _TEXT.match(text.decode("utf-8", "replace"))
    if match is None:
        return None
    minutes, seconds, ms, us, message = match.groups()
    return ((int(minutes) * 60 + int(seconds)) * 1_000 + int(ms)) * 1_000 + int(us), message


def _read(lines: Iterable[Line], facts: Facts) -> Read:
    zero = facts.log_start_unix_ns
    tasks: dict[int, dict[str, Any]] = {}
    line = Line(0, b"")
    for line in lines:
        found = _line(line.text)
        if found is None:
            if line.text.strip():
                yield line.number, None
            continue
        if isinstance(found, BadLine):
            yield line.number, found
            continue
        if zero is None:
            raise SourceError(
                "the clock of this log counts from the server's start, which no line tells",
                where=f"line {line.number}",
                how="say when that was with --log-start TIME (ISO time or unix ns)",
            )
        ready = _gather(tasks, *found)
        if isinstance(ready, dict):
            yield line.number, _record(ready, zero)
        else:
            yield line.number, ready
    for task in tasks.values():
        if zero is not None and task.get("cancelled"):
            yield line.number, _record(task, zero)


def _gather(
    tasks: dict[int, dict[str, Any]], time_us: int, message: str
) -> dict[str, Any] | BadLine | None:
    """Adds a line to its task; the task when it is complete."""
    for pattern, key in ((_POST, "posted_us"), (_CANCEL, "cancelled_us")):
        if match := pattern.search(message):
            task = _task(tasks, int(match[1]), time_us)
            task[key] = time_us
            if key == "cancelled_us":
                task["cancelled"] = True
            return None
    if match := _ERROR.search(message):
        task = _task(tasks, int(match[1]), time_us)
        task |= {"error": match[2][:200], "released_us": time_us}
        return tasks.pop(task["task"])
    match = _TASK.search(message)
    if match is None:
        return None
    number, rest = int(match[1]), match[2]
    if "launch_slot_" in message:
        _task(tasks, number, time_us)["launched_us"] = time_us
    elif prompt := _PROMPT.match(rest):
        task = _task(tasks, number, time_us)
        task |= {"prompt_us": time_us, "n_tokens": int(prompt[1])}
    elif "print_timing" in message:
        return _timing(tasks, number, time_us, rest)
    elif "release:" in message and tasks.get(number, {}).get("cancelled"):
        tasks[number]["released_us"] = time_us
        return tasks.pop(number)
    return None


def _timing(
    tasks: dict[int, dict[str, Any]], number: int, time_us: int, rest: str
) -> dict[str, Any] | BadLine | None:
    match = _EVAL.match(rest)
    if match is None:
        cut = " time =" in rest
        return BadLine("cut_line", f"timings of task {number} that are cut off") if cut else None
    task = _task(tasks, number, time_us)
    which, ms, tokens = match[1], float(match[2]), int(match[3])
    if which == "prompt eval":
        task |= {"prompt_ms": ms, "prompt_n": tokens, "printed_us": time_us}
        return None
    if which == "eval":
        task |= {"predicted_ms": ms, "predicted_n": tokens}
        return None
    tasks.pop(number)
    if "prompt_ms" not in task or "predicted_ms" not in task:
        return BadLine("cut_line", f"timings of task {number} without their first lines")
    return task


def _task(tasks: dict[int, dict[str, Any]], number: int, time_us: int) -> dict[str, Any]:
    if number not in tasks and len(tasks) >= _OPEN_MAX:
        tasks.pop(next(iter(tasks)))
    return tasks.setdefault(number, {"task": number, "first_us": time_us})


def _record(task: dict[str, Any], zero: int) -> Record:
    done_us = task.get("printed_us", task.get("released_us", task.get("cancelled_us", 0)))
    start_us = task.get("posted_us", task.get("launched_us", task["first_us"]))
    if "prompt_ms" in task:
        begun_us = done_us - round(1e3 * (task["prompt_ms"] + task["predicted_ms"]))
        # a slot may be launched after the prompt was begun by this clock: lines are printed late
        start_us = min(task.get("posted_us", begun_us), begun_us)
    task.pop("line", None)
    named = "|".join(
        str(task.get(k)) for k in ("task", "printed_us", "first_us", "prompt_ms", "predicted_ms")
    )
    kind = (
        "print_timing" if "prompt_ms" in task else "cancelled" if "cancelled" in task else "error"
    )
    return Record(
        f"llama.cpp {kind}",
        named,
        zero + 1_000 * max(start_us, 0),
        zero + 1_000 * max(done_us, start_us, 0),
        {k: v for k, v in task.items() if k != "first_us"},
    )


LLAMA_CPP_LOG: Final = EngineLog(
    "llama-cpp-log",
    "llama.cpp server's log, text or --log-jsonl (with --log-start TIME)",
    "llama.cpp",
    _looks_like,
    _read,
    "print_timing lines of a task",
)
