"""Before a push to a registry of a cloud: is there a repository, and may we push to it?"""

from __future__ import annotations

from danlu.errors import UsageError
from danlu.oci.registry.client import Registry
from danlu.oci.registry.clouds import explain_cloud_path, explain_missing_repository, find_cloud
from danlu.oci.registry.ecr import create_ecr_repository
from danlu.oci.registry.errors import RegistryNotFound


async def prepare_repository(registry: Registry, repository: str, *, create: bool) -> None:
    """Make sure that a repository of a cloud's registry takes a push, before layers are compressed.

    Other registries are not asked: they create repositories. With ``create`` it is created in
    Amazon ECR if it does not exist. Raises :class:`UsageError` for a name that the registry cannot
    have, :class:`RegistryNotFound` if the repository must be created first, and
    :class:`~danlu.oci.registry.errors.RegistryAccessDenied`.
    """
    host, path = registry.endpoint.host, registry.repository_path(repository)
    cloud = find_cloud(host)
    if cloud is None:
        return
    if names := explain_cloud_path(host, path):
        raise UsageError(f"{host}/{path} is not the name of an image", hint=names)
    try:
        # ECR creates repositories on push, too, if a template of the registry says so.
        await registry.check_push(repository)
    except RegistryNotFound as error:
        if not (create and cloud.is_aws):
            error.hint = explain_missing_repository(host, path)
            raise
        await create_ecr_repository(cloud, path)
