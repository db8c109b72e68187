"""Long-running collectors of tracekit: the OTLP receiver (``tracekit collect``).

Imports :mod:`tracekit`, never the other way round.
"""
