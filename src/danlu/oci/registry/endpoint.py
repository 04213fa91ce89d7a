"""Where a registry is and how it is spoken to."""

from __future__ import annotations

import ipaddress
import ssl

import msgspec

from danlu.errors import UsageError

__all__ = ["Endpoint"]

#: Docker Hub's images are named by one host and served by another.
_SERVED_BY = {"docker.io": "registry-1.docker.io"}


class Endpoint(msgspec.Struct, frozen=True):
    """A registry by the host that references name, with port.

    ``insecure`` allows certificates that cannot be verified, and plain HTTP; a registry on this
    machine is allowed that anyway. ``ca`` is a file of further certificates to trust; those of
    this machine, or of ``SSL_CERT_FILE``, always are. ``prefix`` comes before every repository.
    """

    host: str
    insecure: bool = False
    ca: str = ""
    prefix: str = ""

    @property
    def address(self) -> str:
        """Host and port to connect to."""
        return _SERVED_BY.get(self.host, self.host)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        name = self.address.rsplit(":", 1)[0] if not self.address.endswith("]") else self.address
        name = name.strip("[]")
        if name == "localhost":
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    @property
    def schemes(self) -> tuple[str, ...]:
        """Schemes to try, the better first."""
        return ("https", "http") if self.insecure or self.is_local else ("https",)

    def tls(self) -> ssl.SSLContext:
        """How certificates are verified; raises :class:`UsageError` for a bad ``ca``."""
        context = ssl.create_default_context()
        if self.ca:
            try:
                context.load_verify_locations(self.ca)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(
                    f"cannot read the certificates of {self.ca}: {error}",
                    hint=f'it is the ca of [registries."{self.host}"] in config.toml',
                ) from error
        elif self.insecure or self.is_local:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
