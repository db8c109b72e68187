"""Runs ``sql/``, matches legs to requests, fits expectations, composes the diagnosis."""
