"""Runs ``sql/`` on an engine, matches legs to requests, fits expectations, composes the diagnosis."""
