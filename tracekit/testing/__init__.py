"""For tests of applications that are watched by tracekit, and of tracekit itself.

`capture` collects the spans of a block in memory, `FakeServer` is an LLM server that does as it is
told and knows what really happened, `FakeClock` and `CountingIds` make spans that are the same in
every run. Needs nothing but OpenTelemetry. ::

    from tracekit.testing import FakeServer, Script, capture

    with FakeServer() as server, capture() as spans:
        server.script("m", Script(prefill_ms=50, chunks=20))
        my_application(base_url=server.openai_url, model="m")
        assert spans.call().attributes["tracekit.status"] == "ok"
"""

from tracekit.testing.capturing import Captured, capture, chunks_of
from tracekit.testing.clock import FakeClock
from tracekit.testing.ids import CountingIds
from tracekit.testing.script import SCRIPT_HEADER, Record, Script, Sent
from tracekit.testing.server import FakeServer

__all__ = [
    "SCRIPT_HEADER",
    "Captured",
    "CountingIds",
    "FakeClock",
    "FakeServer",
    "Record",
    "Script",
    "Sent",
    "capture",
    "chunks_of",
]
