"""Listening sockets, with errors that name the option to change."""

from __future__ import annotations

import errno
import socket

from tracekit.errors import UsageError


def listen(host: str, port: int, *, option: str) -> socket.socket:
    """A listening TCP socket on ``host`` (name, IPv4 or IPv6); port 0 takes a free one."""
    try:
        infos = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise UsageError(f"--host {host} is no address of this machine ({error})") from error
    family, kind, protocol, _, address = infos[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(512)
    except OSError as error:
        sock.close()
        raise _cannot_listen(host, port, option, error) from error
    return sock


def check_free(host: str, port: int, *, option: str) -> None:
    """UsageError if ``port`` is taken; for servers that bind by themselves and explain less."""
    if port:
        listen(host, port, option=option).close()


def _cannot_listen(host: str, port: int, option: str, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {port} on {host} is in use, perhaps by another collector; choose another with "
            f"{option} (0 takes a free one)"
        )
    if error.errno == errno.EACCES:
        return UsageError(f"port {port} needs privileges; choose one above 1023 with {option}")
    return UsageError(f"cannot listen on {host} port {port} ({error.strerror}); see {option}")
