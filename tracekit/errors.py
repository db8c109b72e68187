"""Every error tracekit raises on purpose.

::

    TracekitError
    ├── UsageError      the caller's fault: a wrong option, window, name (CLI exit 2)
    └── SourceError     the data's or the peer's fault: bytes, a file, a table (CLI exit 3)

A message says what is wrong, where (file, line, field) and how to mend it.
"""

from __future__ import annotations


class TracekitError(Exception):
    """Base of all errors that tracekit raises on purpose; catch this to catch them all."""


class UsageError(TracekitError):
    """The caller asked for something that cannot be done as asked."""


class SourceError(TracekitError):
    """Input data could not be understood.

    ``where`` names the place (file and line, field), ``how`` the way to mend it, if known.
    """

    def __init__(self, what: str, *, where: str | None = None, how: str | None = None) -> None:
        self.what = what
        self.where = where
        self.how = how
        parts = [what]
        if where:
            parts.append(f"at {where}")
        if how:
            parts.append(how)
        super().__init__("; ".join(parts))
