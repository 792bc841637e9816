"""HOST:PORT, as it is written and as it is read; an IPv6 host stands in brackets."""

from __future__ import annotations


def written(host: str, port: int) -> str:
    """``10.0.0.1:29600`` or ``[::1]:29600``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read(address: str) -> tuple[str, int]:
    """Host and port; ValueError where there is no port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
