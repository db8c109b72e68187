"""The log of llama.cpp's server, text or ``--log-jsonl``: one record a request.

A request is a *task* of the log: lines that name it are gathered until the server says that it
is over. The log's times count from the start of the server, so its records need ``--log-start``.
How much there is to gather depends on the verbosity: from level 3 (the default) launch, timings,
cancellation and release; from 4 (``-lv 4``) also when the prompt began and what of it was cached;
at 5 also the arrival and each token. Of all that, numbers are kept and never text.

The ``n`` sequences of one call are tasks of their own, of which only the first is no child; the
children's launches come right before it. They become one record with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tracekit.errors import SourceError
from tracekit.ingest._text import drop_body_text
from tracekit.ingest.engine_logs._record import BadLine, EngineLog, Facts, Line, Read, Record

_US_NS: Final = 1_000
#: Times past the year 2200 are none (as in ``sql/sources``), nor is a server that old.
_LATEST_UNIX_NS: Final = 7_258_118_400_000_000_000
#: Threads write the log, so lines may be a little out of order; a clock further back is a restart.
_RESTART_US: Final = 10_000_000
#: Tasks that are remembered: those under way, and the last of those that are over.
_OPEN_MAX: Final = 100_000
_OVER_MAX: Final = 10_000
_ERROR_CHARS: Final = 300

# minutes.seconds.milliseconds.microseconds since the start, level, text
_STAMPED: Final = re.compile(rb"(\d{1,9})\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] (.*)")
_JSON: Final = re.compile(rb'\s*\{"type":"')
_SLOT: Final = re.compile(r"slot +(\S+): id +(-?\d{1,9}) \| task (\d{1,18}) \| (.*)", re.DOTALL)
_PROMPT: Final = re.compile(r"prompt eval time = +(\d{1,12}\.\d+) ms / +(\d{1,9}) tokens\b")
_EVAL: Final = re.compile(r" *eval time = +(\d{1,12}\.\d+) ms / +(\d{1,9}) tokens\b")
_TIMING: Final = re.compile(r" *(?:prompt )?eval time\b")
_LAUNCH: Final = re.compile(r"processing task(?:, is_child = (\d))?")
_RELEASE: Final = re.compile(r"stop processing: n_tokens = (\d{1,9}), truncated = ([01])")
_NEW_PROMPT: Final = re.compile(r"new prompt, .*\btask\.n_tokens = (\d{1,9})")
_CACHED: Final = re.compile(r"cached n_tokens = (\d{1,9}),")
_GENERATED: Final = re.compile(r"n_gen = (\d{1,9}), n_remaining = ")
_STOPPED: Final = re.compile(r"stopped by [a-z]+, n_gen = ")
# "4/1": task 4, one of those that are waited for; tasks of the server itself have one number
_POST: Final = re.compile(r"que +post: new task, id = (\d{1,18})/\d+, ")
_CANCEL: Final = re.compile(r"srv +stop: cancel task, id_task = (\d{1,18})\b")
_ERROR: Final = re.compile(r"srv +send_error: task id = (\d{1,18}), error: (.*)", re.DOTALL)
_EXCEPTION: Final = re.compile(r"srv +operator\(\): got exception: ")
_MODEL: Final = re.compile(r"srv +load_model: loading model '(.+)'")
_BUILD: Final = re.compile(r"srv +init: build_info: (\S+)")
_START: Final = re.compile(r"srv +init: initializing \.\.\.")

_HEAD_TEXT: Final = re.compile(
    rb"^\d{1,9}\.\d\d\.\d{3}\.\d{3} [A-Z] (?:slot|srv|que|cmn) +\S+: ", re.MULTILINE
)
_HEAD_JSON: Final = re.compile(
    rb'^\{"type":"log","time":\d+,"level":"\w+","msg":"(?:slot|srv|que|cmn) +\S+: ', re.MULTILINE
)
_HEAD_BARE: Final = re.compile(
    rb"^(?:[A-Z] )?slot +(?:print_timing|launch_slot_): id +\d+ \| task ", re.MULTILINE
)

NOT_OVER: Final = (
    "requests under way at the end of the log, left out: {n}; import it again when they are over"
)
NO_TIMINGS: Final = "tasks that ended without timings, no generations (embeddings, say): {n}"
NO_TASK: Final = "requests refused before they became a task (bad bodies), of no length: {n}"
NO_ARRIVALS: Final = (
    "requests without an arrival, of which the time in the queue is not known: {n}; llama-server "
    "logs arrivals at verbosity 5 (-lv 5)"
)
NO_STAMPS: Final = (
    "lines about requests without a time, which cannot be used: {n}; start llama-server with "
    "--log-timestamps"
)
RESTARTED: Final = (
    "the server was started again here, and its log counts from 0 again: cut the file there and "
    "import each part with its own --log-start"
)


#: What a line brings: records and refusals with their places.
_Found = list[tuple[int, Record | BadLine]]


def _looks_like(head: bytes) -> bool:
    return any(form.search(head) for form in (_HEAD_TEXT, _HEAD_JSON, _HEAD_BARE))


def _read(lines: Iterable[Line], facts: Facts) -> Read:
    return _Reader(facts).read(lines)


@dataclass
class _Task:
    """What was told of one task so far; times are µs of the log's clock."""

    id_task: int
    line: int
    seen_us: int
    parent: int | None = None
    children: list[int] = field(default_factory=list)
    over: bool = False
    is_unreadable: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_timed(self) -> bool:
        return "prompt_ms" in self.facts and "predicted_ms" in self.facts

    @property
    def end_us(self) -> int | None:
        """When it was done, refused or cancelled; None while it is under way."""
        for name in ("print_timing_us", "error_us", "cancelled_us"):
            if (at := self.facts.get(name)) is not None and (
                name != "print_timing_us" or self.is_timed
            ):
                return int(at)
        return None


class _Reader:
    """Follows the tasks of one log."""

    def __init__(self, facts: Facts) -> None:
        self._remarks = facts.remarks
        self._start_ns = facts.log_start_unix_ns
        self._open: dict[int, _Task] = {}
        self._over: dict[int, None] = {}
        self._children: list[int] = []
        self._server: dict[str, str] = {}
        self._latest_us = 0
        self._tells_arrivals = False
        self._is_restarted = False

    def read(self, lines: Iterable[Line]) -> Read:
        for line in lines:
            stamped = _stamp(line.text)
            if stamped is None:
                if _HEAD_BARE.match(line.text):
                    self._remarks[NO_STAMPS] += 1
                if line.text.strip():
                    yield line.number, None
                continue
            if self._start_ns is None:
                raise SourceError(
                    "the clock of this log counts from the server's start, which no line tells",
                    where=f"line {line.number}",
                    how="say when that was with --log-start TIME (ISO time or unix ns)",
                )
            at_us, text = stamped
            if not self._is_restarted and self._restarts(at_us, text):
                self._is_restarted = True
                yield from self._leave()
                yield line.number, BadLine("log_restarted", RESTARTED)
            self._latest_us = max(self._latest_us, at_us)
            found = None if self._is_restarted else self._line(line.number, at_us, text)
            if found is None:
                yield line.number, None
            else:
                yield from found
        yield from self._leave()

    def _restarts(self, at_us: int, text: str) -> bool:
        begins = _START.match(text) is not None and self._latest_us > at_us
        return begins or at_us < self._latest_us - _RESTART_US

    # -- one line ------------------------------------------------------------------------------

    def _line(self, number: int, at_us: int, text: str) -> _Found | None:
        """What a line brings to an end, if anything; None if it is about no request."""
        if slot := _SLOT.match(text):
            return self._slot(number, at_us, slot)
        if post := _POST.match(text):
            self._tells_arrivals = True
            self._task(int(post[1]), number, at_us).facts.setdefault("posted_us", at_us)
            return []
        if cancel := _CANCEL.match(text):
            return self._stopped(number, at_us, int(cancel[1]), cancelled_us=at_us)
        if error := _ERROR.match(text):
            return self._stopped(
                number, at_us, int(error[1]), error_us=at_us, error=_message(error[2])
            )
        if model := _MODEL.match(text):
            # where it lies on the server's disk is nobody's business
            self._server["model"] = re.split(r"[/\\]", model[1])[-1]
        elif build := _BUILD.match(text):
            self._server["build_info"] = build[1]
        elif _EXCEPTION.match(text):
            self._remarks[NO_TASK] += 1
        return None

    def _slot(self, number: int, at_us: int, slot: re.Match[str]) -> _Found | None:
        name, id_slot, id_task, text = slot[1], int(slot[2]), int(slot[3]), slot[4]
        if launch := _LAUNCH.match(text):
            self._launch(self._task(id_task, number, at_us), at_us, id_slot, launch[1] == "1")
            return []
        if release := _RELEASE.match(text):
            return self._release(id_task, at_us, int(release[1]), int(release[2]))
        if name == "print_timing" and _TIMING.match(text):
            return self._timing(number, at_us, id_task, text)
        if prompt := _NEW_PROMPT.match(text):
            facts = self._task(id_task, number, at_us).facts
            facts.setdefault("new_prompt_us", at_us)
            facts.setdefault("n_prompt_tokens", int(prompt[1]))
            return []
        if cached := _CACHED.match(text):
            self._task(id_task, number, at_us).facts.setdefault("cache_n", int(cached[1]))
            return []
        if generated := _GENERATED.match(text):
            self._generated(self._task(id_task, number, at_us).facts, at_us, int(generated[1]))
            return []
        return [] if _STOPPED.match(text) else None

    def _launch(self, task: _Task, at_us: int, id_slot: int, is_child: bool) -> None:
        task.facts.setdefault("launched_us", at_us)
        task.facts.setdefault("id_slot", id_slot)
        if is_child:
            self._children.append(task.id_task)
            return
        if task.parent is not None:  # launched twice, as a child and not: nothing to go by
            self._children.clear()
        # the children of a call come before it, with higher ids
        for child in self._children:
            found = self._open.get(child)
            if child > task.id_task and found is not None and not found.children:
                found.parent = task.id_task
                task.children.append(child)
        self._children.clear()

    def _timing(self, number: int, at_us: int, id_task: int, text: str) -> _Found:
        for form, name in ((_PROMPT, "prompt"), (_EVAL, "predicted")):
            if found := form.match(text):
                facts = self._task(id_task, number, at_us).facts
                facts.setdefault("print_timing_us", at_us)
                facts.setdefault(f"{name}_ms", float(found[1]))
                facts.setdefault(f"{name}_n", int(found[2]))
                return []
        self._task(id_task, number, at_us).is_unreadable = True
        detail = f"task {id_task}: not `... ms / ... tokens`, as timing lines are"
        return [(number, BadLine("cut_line", detail))]

    @staticmethod
    def _generated(facts: dict[str, Any], at_us: int, count: int) -> None:
        """A token of which the log tells: only from the first one on are they all there."""
        if count == 1:
            facts.setdefault("first_token_us", at_us)
        if "first_token_us" in facts:
            facts["n_gen"] = count
            facts["last_token_us"] = at_us

    def _stopped(self, number: int, at_us: int, id_task: int, **facts: Any) -> _Found | None:
        """A task that was cancelled, or that failed."""
        task = self._open.get(id_task)
        if task is None:
            # over already, or (where arrivals are told) none of a request
            if id_task in self._over or self._tells_arrivals:
                return None
            task = self._task(id_task, number, at_us)
        task.facts = facts | task.facts
        # one that never had a slot is not released either
        return [] if "launched_us" in task.facts else self._end(task)

    def _release(self, id_task: int, at_us: int, n_tokens: int, truncated: int) -> _Found:
        task = self._open.get(id_task)
        if task is None:
            return []
        task.facts |= {"released_us": at_us, "n_tokens": n_tokens, "truncated": truncated}
        return self._end(task)

    # -- tasks ---------------------------------------------------------------------------------

    def _task(self, id_task: int, number: int, at_us: int) -> _Task:
        task = self._open.get(id_task)
        if task is None:
            if len(self._open) >= _OPEN_MAX:
                self._open.pop(next(iter(self._open)))
                self._remarks[NOT_OVER] += 1
            task = self._open[id_task] = _Task(id_task, number, at_us)
        return task

    def _end(self, task: _Task) -> _Found:
        """The record of a task that is over, once all sequences of its call are."""
        task.over = True
        family = self._family(task)
        if family is None:
            return []
        for member in family:
            self._open.pop(member.id_task, None)
            self._over[member.id_task] = None
        while len(self._over) > _OVER_MAX:
            self._over.pop(next(iter(self._over)))
        return self._record(family)

    def _family(self, task: _Task) -> list[_Task] | None:
        """A call's tasks, its own first; None if one of them is not over."""
        if task.parent is not None:
            parent = self._open.get(task.parent)
            return self._family(parent) if parent is not None else [task]
        family = [task, *(self._open[c] for c in task.children if c in self._open)]
        return family if all(member.over for member in family) else None

    def _leave(self) -> Iterator[tuple[int, Record | BadLine]]:
        """At the end of the log: what has ended but for its release, and how many have not."""
        for task in self._open.values():
            task.over = task.over or task.end_us is not None
        for task in list(self._open.values()):
            if task.parent is not None and task.parent in self._open:
                continue
            family = self._family(task)
            if family is None:
                self._remarks[NOT_OVER] += 1
            else:
                yield from self._record(family)
        self._open.clear()

    def _record(self, family: list[_Task]) -> _Found:
        task = family[0]
        facts = task.facts
        end_us = task.end_us
        if end_us is None:
            if not task.is_unreadable:
                self._remarks[NO_TIMINGS] += 1
            return []
        ends = [end_us]
        attributes = {**self._server, "id_task": task.id_task, **facts}
        zero_ns = self._start_ns or 0
        attributes["log_start_unix_ns"] = zero_ns
        if children := family[1:]:
            ends += [at for child in children if (at := child.end_us) is not None]
            attributes["n_children"] = len(children)
            if all(child.is_timed for child in children):
                attributes["children_predicted_n"] = sum(
                    child.facts["predicted_n"] for child in children
                )
            attributes["children_end_us"] = max(ends)
        start_us = min(
            facts.get("posted_us", task.seen_us), task.seen_us, facts.get("launched_us", end_us)
        )
        if task.is_timed:
            took_us = round((facts["prompt_ms"] + facts["predicted_ms"]) * 1_000)
            start_us = min(start_us, max(end_us - took_us, 0))
        start_ns = zero_ns + start_us * _US_NS
        end_ns = zero_ns + max(ends) * _US_NS
        if not 0 < start_ns <= end_ns <= _LATEST_UNIX_NS:
            detail = f"task {task.id_task}: from {start_ns} to {end_ns} unix ns, by --log-start"
            return [(task.line, BadLine("time_out_of_range", detail))]
        if "posted_us" not in facts:
            self._remarks[NO_ARRIVALS] += 1
        # µs and durations tell tasks of other servers and runs apart, which have the same ids
        told = (facts.get(n) for n in ("prompt_ms", "prompt_n", "predicted_ms", "predicted_n"))
        identity = "|".join(map(str, (task.id_task, end_us, *told)))
        kind = "print_timing" if task.is_timed else "error" if "error" in facts else "cancelled"
        record = Record(f"llama.cpp {kind}", identity, start_ns, end_ns, attributes)
        return [(task.line, record)]


def _message(text: str) -> str:
    """An error of the server, cut, and without text that somebody wrote."""
    return str(drop_body_text(None, text.strip()[:_ERROR_CHARS]))


def _stamp(line: bytes) -> tuple[int, str] | None:
    """(µs since the server's start, text) of a line of either form; None if it has no time."""
    if _JSON.match(line):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            return None
        at, text = value.get("time"), value.get("msg")
        if type(at) is not int or not 0 <= at < 1 << 53 or not isinstance(text, str):
            return None
        return at, text.rstrip("\n")
    if found := _STAMPED.match(line):
        minutes, seconds, ms, us = (int(part) for part in found.groups()[:4])
        at_us = ((minutes * 60 + seconds) * 1_000 + ms) * 1_000 + us
        return at_us, found[5].decode("utf-8", "replace")
    return None


LLAMA_CPP_LOG: Final = EngineLog(
    "llama-cpp-log",
    "llama.cpp server's log, text or --log-jsonl (with --log-start TIME)",
    "llama.cpp",
    _looks_like,
    _read,
    "print_timing lines of a task",
    counts_from_start=True,
)
