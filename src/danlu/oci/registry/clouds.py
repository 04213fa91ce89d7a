"""The registries of clouds: whose host names they have, and what their users must do."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

#: As amazon-ecr-credential-helper has it (ecr-login/api/client.go): also FIPS and dual stack.
_ECR_HOST = re.compile(
    r"(?P<account>\d{12})\.dkr[.-]ecr(?P<fips>-fips)?\.(?P<region>[a-z0-9][a-z0-9-]*)\."
    r"(?P<domain>amazonaws\.(?:com(?:\.cn)?|eu)|on\.(?:aws|amazonwebservices\.com\.cn)"
    r"|sc2s\.sgov\.gov|c2s\.ic\.gov|cloud\.adc-e\.uk|csp\.hci\.ic\.gov)",
    re.ASCII,
)
_ECR_PUBLIC_HOST = "public.ecr.aws"
#: Its API has endpoints in few regions (AWS General Reference, "Amazon ECR Public endpoints").
_ECR_PUBLIC_REGION = "us-east-1"
_GOOGLE_HOST = re.compile(r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev|(?:(?:us|eu|asia)\.)?gcr\.io")
_AZURE_HOST = re.compile(r"(?P<name>[a-z0-9]{5,50})(?:-[a-z0-9]+)?\.azurecr\.(?:io|cn|us)")
#: Of a location of Artifact Registry: project and repository, then the image.
_GOOGLE_PARTS = 3


class CloudRegistry(msgspec.Struct, frozen=True):
    """A registry of a cloud, by its host name.

    ``helpers`` are its credential helpers, which are used without configuration if they are
    installed. ``needs_login`` is false if images are public. ``account``, ``region`` and the rest
    are those of a host of Amazon ECR; ``name`` is the location or the name of the others.
    """

    kind: Literal["ecr", "ecr-public", "google", "azure"]
    helpers: tuple[str, ...]
    name: str = ""
    account: str = ""
    region: str = ""
    needs_login: bool = True
    is_fips: bool = False
    is_dualstack: bool = False

    @property
    def is_aws(self) -> bool:
        """Whether AWS gives the login and creates repositories."""
        return self.kind in ("ecr", "ecr-public")


def find_cloud(host: str) -> CloudRegistry | None:
    """Return the registry of a cloud that has this host name, or None.

    The whole name must match: what is returned decides where the login of a cloud is sent.
    """
    if match := _ECR_HOST.fullmatch(host):
        return CloudRegistry(
            "ecr",
            ("ecr-login",),
            account=match["account"],
            region=match["region"],
            is_fips=bool(match["fips"]),
            is_dualstack=match["domain"].startswith("on."),
        )
    if host == _ECR_PUBLIC_HOST:
        return CloudRegistry(
            "ecr-public", ("ecr-login",), region=_ECR_PUBLIC_REGION, needs_login=False
        )
    if match := _GOOGLE_HOST.fullmatch(host):
        return CloudRegistry("google", ("gcloud", "gcr"), name=match["location"] or "")
    if match := _AZURE_HOST.fullmatch(host):
        return CloudRegistry("azure", ("acr-env", "acr-linux"), name=match["name"])
    return None


def explain_cloud_denial(host: str, *, has_login: bool) -> str:
    """Return what to do if a registry of a cloud denies access; empty for other registries."""
    cloud = find_cloud(host)
    if cloud is None:
        return ""
    if not has_login:
        ways = {
            "google": f"`gcloud auth login`, then `gcloud auth configure-docker {host}`",
            "azure": f"`az acr login --name {cloud.name}`, or install docker-credential-acr-env",
        }
        default = (
            "log in to AWS (`aws configure`, `aws sso login`), and install boto3 or"
            " docker-credential-ecr-login"
        )
        return ways.get(cloud.kind, default)
    rights = {
        "google": "roles/artifactregistry.reader to pull, roles/artifactregistry.writer to push",
        "azure": "the role AcrPull to pull, AcrPush to push",
        "ecr-public": "AmazonElasticContainerRegistryPublicPowerUser to push",
        "ecr": "AmazonEC2ContainerRegistryPullOnly to pull, AmazonEC2ContainerRegistryPowerUser"
        " to push, and a policy of the repository if it belongs to another account; or log in again"
        " if the login expired (`aws sso login`)",
    }
    return f"check the name, and the rights of your account: {rights[cloud.kind]}"


def explain_missing_repository(host: str, path: str) -> str:
    """Return how to create the repository ``path``; empty if a push to ``host`` creates it."""
    cloud = find_cloud(host)
    if cloud is None:
        return ""
    if cloud.is_aws:
        return (
            "`danlu image push --create-repository` creates it; always: create_repository = true in"
            f' [registries."{host}"] of config.toml'
        )
    if cloud.kind == "google":
        project, repository, location = "PROJECT", host, "LOCATION"
        if cloud.name:
            project, repository = (*path.split("/"), "REPOSITORY")[:2]
            location = cloud.name
        return (
            f"`gcloud artifacts repositories create {repository} --repository-format docker"
            f" --location {location} --project {project}`"
        )
    return f"`az acr show --name {cloud.name}` shows whether the registry exists"


def explain_unknown_host(host: str) -> str:
    """Return what to do if the name of a registry does not exist; empty for most registries."""
    cloud = find_cloud(host)
    if cloud is None or cloud.kind != "azure":
        return ""
    return f"check the name; `az acr create --name {cloud.name} --resource-group GROUP --sku Basic`"


def explain_cloud_path(host: str, path: str) -> str:
    """Return how the names of images on ``host`` must be, if ``path`` is not such a name."""
    cloud = find_cloud(host)
    if cloud is None or cloud.kind != "google" or not cloud.name:
        return ""
    if len(path.split("/")) >= _GOOGLE_PARTS:
        return ""
    return f"images of Artifact Registry are named {host}/PROJECT/REPOSITORY/IMAGE"
