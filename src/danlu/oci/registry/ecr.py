"""The API of Amazon ECR: passwords for its registries, and their repositories."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import anyio.to_thread

from danlu.errors import OutsideError
from danlu.oci.registry.clouds import CloudRegistry
from danlu.util.aws import AwsError, call_aws, create_aws_client


async def request_ecr_password(host: str, cloud: CloudRegistry) -> tuple[str, str]:
    """Return a user name and a password for a registry, which are valid for 12 hours.

    Raises what :func:`~danlu.util.aws.call_aws` and :func:`~danlu.util.aws.create_aws_client` do.
    """
    # Its import takes as long as a request.
    client = await anyio.to_thread.run_sync(create_ecr_client, cloud)
    # Those of a token's principal are its rights in any account, so that ours are asked for.
    which = {"registryIds": [cloud.account]} if cloud.account else {}
    answer = await call_aws(client, "get_authorization_token", **which)
    data = answer.get("authorizationData")
    # The public registry's is not a list.
    entry = data[0] if isinstance(data, list) and data else data
    token = entry.get("authorizationToken") if isinstance(entry, dict) else None
    try:
        name, _, password = base64.b64decode(token or "", validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        name = password = ""
    if not name or not password:
        raise OutsideError(f"AWS returned no password for {host}")
    return name, password


async def create_ecr_repository(cloud: CloudRegistry, path: str) -> bool:
    """Create the repository ``path``; return whether it did not exist.

    Raises what :func:`~danlu.util.aws.call_aws` and :func:`~danlu.util.aws.create_aws_client` do.
    """
    client = await anyio.to_thread.run_sync(create_ecr_client, cloud)
    # The first part of a public name is the alias of the registry, which is that of the account.
    name = path if cloud.account else path.partition("/")[2]
    which = {"registryId": cloud.account} if cloud.account else {}
    try:
        await call_aws(client, "create_repository", repositoryName=name, **which)
    except AwsError as error:
        if error.code == "RepositoryAlreadyExistsException":
            return False
        raise
    return True


def create_ecr_client(cloud: CloudRegistry) -> Any:
    """Return a client of the API in the registry's region, by FIPS and IPv6 as its host.

    Raises as :func:`~danlu.util.aws.create_aws_client` does.
    """
    return create_aws_client(
        cloud.kind,
        region=cloud.region,
        use_fips_endpoint=cloud.is_fips,
        use_dualstack_endpoint=cloud.is_dualstack,
    )
