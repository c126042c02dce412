"""The address and the limits of a server, checked before anything heavy is loaded."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from bearcat.errors import InputError


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any that is free

    @property
    def loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


@dataclass(frozen=True)
class Limits:
    max_bytes: int = 64 * 2**20
    timeout: float = 30.0  # seconds
    concurrency: int = 64

    def __post_init__(self) -> None:
        if self.max_bytes < 1024:
            raise InputError(f"--max-bytes: must be 1024 at least, not {self.max_bytes}")
        if not 0 < self.timeout <= 86_400:
            raise InputError(f"--timeout: must be a number of seconds above 0, up to a day, not {self.timeout:g}")
        if self.concurrency < 1:
            raise InputError(f"--concurrency: must be 1 at least, not {self.concurrency}")
