"""Pull from and push to registries: every byte is verified, and only what is missing is sent.

OCI distribution spec v1.1; the token flow is the Docker registry's (distribution, docs/spec/auth).
Imports aiohttp, so code that must start quickly should import this package only when needed.
"""

from danlu.oci.registry.client import Registry
from danlu.oci.registry.credentials import RegistryCredentials, find_docker_credentials
from danlu.oci.registry.errors import RegistryNotFound
from danlu.oci.registry.prepare import prepare_repository
from danlu.oci.registry.push import BlobLocations, push_image, push_index
from danlu.oci.registry.transport import RegistryEndpoint

__all__ = [
    "BlobLocations",
    "Registry",
    "RegistryCredentials",
    "RegistryEndpoint",
    "RegistryNotFound",
    "find_docker_credentials",
    "prepare_repository",
    "push_image",
    "push_index",
]
