"""Registries: images pulled and pushed, every byte verified, only what is missing sent.

OCI distribution spec v1.1; the token flow is that of the Docker registry (distribution,
docs/spec/auth). Imports aiohttp: whoever must start quickly imports this package late.
"""

from danlu.oci.registry.client import Registry
from danlu.oci.registry.credentials import Credentials, docker_credentials
from danlu.oci.registry.endpoint import Endpoint
from danlu.oci.registry.failures import NotFound
from danlu.oci.registry.platforms import pick
from danlu.oci.registry.push import push_image

__all__ = [
    "Credentials",
    "Endpoint",
    "NotFound",
    "Registry",
    "docker_credentials",
    "pick",
    "push_image",
]
