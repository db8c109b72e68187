"""``python -m tracekit.testing [PORT]``: a fake LLM server by itself.

Prints its port (any free one, unless told), and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from tracekit.testing.serve import serve


async def _main(port: int) -> None:
    until = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_end() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        loop.call_soon_threadsafe(until.set)

    threading.Thread(target=wait_for_end, daemon=True).start()
    await serve(lambda port: print(port, flush=True), until, port)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
