"""Tables on disk: schemas, Delta commits, the spool, maintenance. Knows nothing of LLMs' phases."""
