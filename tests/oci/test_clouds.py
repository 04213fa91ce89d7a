"""Registries of clouds by their host names, and which helpers are asked for their logins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.oci.registry import RegistryCredentials, find_docker_credentials
from danlu.oci.registry.clouds import (
    explain_cloud_path,
    explain_missing_repository,
    explain_unknown_host,
    find_cloud,
)
from danlu.oci.registry.credentials import CredentialHelperError
from danlu.oci.registry.ecr import create_ecr_client
from tests.fakes.cloud_registry import write_helper

ECR = "123456789012.dkr.ecr.eu-north-1.amazonaws.com"


@pytest.mark.parametrize(
    ("host", "region", "is_fips", "is_dualstack"),
    [
        (ECR, "eu-north-1", False, False),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", "cn-north-1", False, False),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1", True, False),
        ("123456789012.dkr-ecr.eu-north-1.on.aws", "eu-north-1", False, True),
        ("123456789012.dkr-ecr-fips.us-east-1.on.aws", "us-east-1", True, True),
        (
            "123456789012.dkr-ecr.cn-north-1.on.amazonwebservices.com.cn",
            "cn-north-1",
            False,
            True,
        ),
    ],
)
def test_account_and_region_are_those_of_the_host(
    host: str, region: str, is_fips: bool, is_dualstack: bool
) -> None:
    cloud = find_cloud(host)
    assert cloud is not None
    assert (cloud.kind, cloud.account, cloud.region) == ("ecr", "123456789012", region)
    assert (cloud.is_fips, cloud.is_dualstack) == (is_fips, is_dualstack)


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        (ECR, "api.ecr.eu-north-1.amazonaws.com"),
        (
            "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn",
            "api.ecr.cn-north-1.amazonaws.com.cn",
        ),
        (
            "123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com",
            "ecr-fips.us-gov-west-1.amazonaws.com",
        ),
        ("123456789012.dkr-ecr.eu-north-1.on.aws", "ecr.eu-north-1.api.aws"),
        ("public.ecr.aws", "api.ecr-public.us-east-1.amazonaws.com"),
    ],
)
def test_passwords_come_from_the_api_of_the_host(
    host: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    cloud = find_cloud(host)
    assert cloud is not None
    assert create_ecr_client(cloud).meta.endpoint_url == f"https://{endpoint}"


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("public.ecr.aws", "ecr-public"),
        ("europe-west1-docker.pkg.dev", "google"),
        ("eu.gcr.io", "google"),
        ("gcr.io", "google"),
        ("danluteam.azurecr.io", "azure"),
        ("danluteam-a1b2.azurecr.cn", "azure"),
    ],
)
def test_other_clouds_are_known_by_their_hosts(host: str, kind: str) -> None:
    cloud = find_cloud(host)
    assert cloud is not None
    assert cloud.kind == kind


@pytest.mark.parametrize(
    "host",
    [
        f"{ECR}.evil.example",
        f"evil.{ECR}",
        f"{ECR}:443",
        f"{ECR}\n",
        "12345678901.dkr.ecr.eu-north-1.amazonaws.com",
        "123456789012.dkr.ecr.eu-north-1.amazonaws.com.evil.cn",
        "123456789012.dkr.ecr.evil.example/.amazonaws.com",
        "123456789012.dkr.ecr.eu_north.amazonaws.com",
        "١٢٣٤٥٦٧٨٩٠١٢.dkr.ecr.eu-north-1.amazonaws.com",
        "public.ecr.aws.evil.example",
        "x-docker.pkg.dev.evil.example",
        "docker.pkg.dev",
        "evil-gcr.io",
        "danluteam.azurecr.io.evil.example",
        "evil.danluteam.azurecr.io",
        "localhost:5000",
        "docker.io",
    ],
)
def test_hosts_that_look_like_those_of_clouds_are_not(host: str) -> None:
    assert find_cloud(host) is None


def test_hints_name_the_commands_of_the_cloud() -> None:
    google = "europe-west1-docker.pkg.dev"
    assert explain_cloud_path(google, "project/digits") != ""
    assert explain_cloud_path(google, "project/team/digits") == ""
    assert explain_cloud_path("gcr.io", "project/digits") == ""
    assert "create team --repository-format docker --location europe-west1 --project project" in (
        explain_missing_repository(google, "project/team/digits")
    )
    assert "create gcr.io " in explain_missing_repository("gcr.io", "project/digits")
    assert "--create-repository" in explain_missing_repository(ECR, "team/digits")
    assert explain_missing_repository("registry.example.com", "digits") == ""
    assert "az acr create --name danluteam " in explain_unknown_host("danluteam.azurecr.io")


def make_account(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    return {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin"), "XDG_RUNTIME_DIR": str(tmp_path)}


COUNT = """cat >/dev/null; echo call >>"$HOME/calls"; n=$(wc -l <"$HOME/calls")
echo "{\\"Username\\":\\"AWS\\",\\"Secret\\":\\"p$n\\"}\""""


@pytest.mark.anyio
async def test_answer_is_used_until_the_registry_rejects_it(tmp_path: Path) -> None:
    environ = make_account(tmp_path)
    write_helper(tmp_path / "bin", "ecr-login", COUNT)
    first = await find_docker_credentials(ECR, environ=environ)
    assert first == RegistryCredentials("AWS", "p1")
    assert await find_docker_credentials(ECR, environ=environ, repository="team/a") == first
    second = await find_docker_credentials(ECR, [first], environ=environ)
    assert second == RegistryCredentials("AWS", "p2")
    assert await find_docker_credentials(ECR, [first], environ=environ) == second
    assert await find_docker_credentials(ECR, environ=environ, ask_cloud=False) is None


@pytest.mark.anyio
async def test_helper_is_asked_only_for_hosts_of_its_cloud(tmp_path: Path) -> None:
    environ = make_account(tmp_path)
    write_helper(tmp_path / "bin", "ecr-login", COUNT)
    assert await find_docker_credentials(f"{ECR}.evil.example", environ=environ) is None
    assert await find_docker_credentials("europe-west1-docker.pkg.dev", environ=environ) is None
    assert await find_docker_credentials("public.ecr.aws", environ=environ) is None
    assert await find_docker_credentials("public.ecr.aws", environ=environ, push=True) is not None


@pytest.mark.anyio
@pytest.mark.parametrize("path", [".:bin", "", ":", "./bin"])
async def test_helper_in_the_project_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    environ = make_account(tmp_path) | {"PATH": path}
    write_helper(tmp_path, "gcloud", COUNT)
    write_helper(tmp_path / "bin", "gcloud", COUNT)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text('{"credsStore": "gcloud"}')
    # The PATH of this process has no helpers of the project either.
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")
    with pytest.raises(CredentialHelperError, match="docker-credential-gcloud is not on PATH"):
        await find_docker_credentials("gcr.io", environ=environ)
    assert not (tmp_path / "calls").exists()
