"""Pull from and push to registries: every byte is verified, and only what is missing is sent.

OCI distribution spec v1.1; the token flow is the Docker registry's (distribution, docs/spec/auth).
Imports aiohttp, so code that must start quickly should import this package only when needed.
"""

from danlu.oci.registry.auth import RegistryCredentials, find_docker_credentials
from danlu.oci.registry.client import Registry
from danlu.oci.registry.errors import RegistryNotFound
from danlu.oci.registry.push import push_image, push_index
from danlu.oci.registry.transport import RegistryEndpoint

__all__ = [
    "Registry",
    "RegistryCredentials",
    "RegistryEndpoint",
    "RegistryNotFound",
    "find_docker_credentials",
    "push_image",
    "push_index",
]
