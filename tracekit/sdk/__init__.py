"""The SDK: LLM calls of an application as spans that tell where their time went.

Needs OpenTelemetry only. `setup` is the way in; `instrument` hooks into client libraries, `wire`
reads what goes over the wire, `call` and `streams` keep what happened, `emit` writes spans.
"""
