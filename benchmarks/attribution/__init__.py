"""Verdicts against known truth: a simulated LLM serving cluster, its telemetry, and the score.

`traffic` draws requests, `system` the hardware, `faults` what goes wrong; `engine` and `cluster`
simulate; `emit` writes what real engines and clients write; `truth` replays the same requests
without the fault; `judge` asks tracekit; `score`, `culprits` and `report` compare. `run` is the
command. Nothing here is part of the product, and nothing of the truth reaches the telemetry.
"""
