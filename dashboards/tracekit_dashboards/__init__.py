"""The tracekit dashboard: a Streamlit app that draws what :mod:`tracekit.analysis` says.

Holds no SQL and no arithmetic of its own. Start it with ``tracekit dashboard``.
"""
