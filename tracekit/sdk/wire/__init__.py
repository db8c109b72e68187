"""What the APIs of providers say in requests, responses and chunks.

One file a format. A format reads objects of a client library or parsed JSON alike, takes only what
it knows, and never keeps text.
"""
