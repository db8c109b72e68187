"""tracekit: why is this LLM request slow?

The base package needs nothing but the OpenTelemetry API and SDK. The lake, SQL, importers
and reports live behind the ``analysis`` extra and are imported only by who needs them.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
