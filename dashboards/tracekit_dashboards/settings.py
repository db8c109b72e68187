"""What the process that starts the app and the app itself agree on. Imports nothing heavy."""

from __future__ import annotations

import ipaddress
from typing import Final

#: Not TRACEKIT_STORE: the app tells apart which store is the reader's own and which was chosen.
STORE_VARIABLE: Final = "TRACEKIT_DASHBOARD_STORE"
TOKEN_VARIABLE: Final = "TRACEKIT_DASHBOARD_TOKEN"


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach ``address`` (a name or an IP address)."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False
