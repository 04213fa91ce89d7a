"""The commands of the guide for registries of clouds, with Debian's registry in their place."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.oci.registry import push_image
from tests.fakes.aws import serve_aws
from tests.fakes.cloud_registry import (
    CloudProxy,
    make_cloud_certificate,
    serve_clouds,
    write_helper,
)
from tests.oci.layers import TreeLayerSource, image_of
from tests.oci.registries import client, debian_registry

pytestmark = [pytest.mark.real, pytest.mark.needs("docker-registry", "openssl")]

ECR = "123456789012.dkr.ecr.eu-north-1.amazonaws.com"
AZURE = "danluteam.azurecr.io"
PASSWORD = "password-of-the-cloud"


@pytest.fixture
def clouds(tmp_path: Path) -> Iterator[CloudProxy]:
    """The clouds, and in the registry behind them an image."""
    source = TreeLayerSource(tmp_path / "trees")
    image = image_of(source, [{"etc/one": "1\n"}])

    async def push(host: str) -> None:
        async with client(host) as registry:
            await push_image(
                registry, "digits", image, source, scratch=tmp_path, tags=["1"], kind="gzip"
            )

    with debian_registry() as host:
        anyio.run(push, host)
        certificate = make_cloud_certificate(tmp_path, ECR, AZURE)
        with serve_clouds(host, *certificate) as proxy:
            yield proxy


def danlu(*arguments: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "danlu", *arguments],
        env={**environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def make_environ(home: Path, clouds: CloudProxy) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AWS_") and name not in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE")
    }
    account = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
    return kept | account | clouds.environ()


def test_image_goes_to_a_new_repository_of_ecr(
    home: Path, tmp_path: Path, clouds: CloudProxy
) -> None:
    clouds.passwords, clouds.repositories = {PASSWORD}, set()

    def create(request: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        assert clouds.repositories is not None
        clouds.repositories.add(request["repositoryName"])
        return 200, {"repository": {}}

    token = base64.b64encode(f"AWS:{PASSWORD}".encode()).decode()
    data = {"authorizationToken": token, "proxyEndpoint": f"https://{ECR}", "expiresAt": 1.9e9}
    operations = {
        "GetAuthorizationToken": lambda _: (200, {"authorizationData": [data]}),
        "CreateRepository": create,
    }
    with serve_aws(operations) as aws:
        environ = make_environ(tmp_path, clouds) | aws.environ(tmp_path)
        # Without the helper of AWS, which does not know the variable with this address.
        write_helper(tmp_path, "ecr-login", "echo credentials not found; exit 1")
        environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
        login = danlu("login", ECR, environ=environ)
        assert (login.returncode, login.stderr) == (
            0,
            f"{ECR} accepts the login of its cloud; nothing needs to be stored\n",
        )
        source = f"{clouds.registry}/digits:1"
        assert danlu("image", "pull", source, environ=environ).returncode == 0
        push = ("image", "push", source, f"{ECR}/team/digits:1")
        missing = danlu(*push, environ=environ)
        assert missing.returncode == 3
        assert "The repository with name 'team/digits' does not exist" in missing.stderr
        assert "--create-repository" in missing.stderr
        before = len(aws.requests)
        done = danlu(*push, "--create-repository", environ=environ)
        assert done.returncode == 0, done.stderr
        operations_of_push = [operation for operation, _, _ in aws.requests[before:]]
        assert operations_of_push == ["GetAuthorizationToken", "CreateRepository"]
        pulled = danlu("image", "pull", f"{ECR}/team/digits:1", environ=environ)
        assert pulled.returncode == 0, pulled.stderr
        logout = danlu("logout", ECR, environ=environ)
        assert logout.stderr == f"not logged in to {ECR}\n"
        outputs = [login, missing, done, pulled]
        report = tmp_path / "report.tar.gz"
        assert danlu("report", "-o", str(report), environ=environ).returncode == 0
    with tarfile.open(report) as archive:
        archive.extractall(home / "report")
    hidden = (PASSWORD, token, "aws-secret")
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any("report" in path.parts for path in files)
    texts = [*(done.stdout + done.stderr for done in outputs), *map(_read_text, files)]
    assert not [text for text in texts for secret in hidden if secret in text]


def _read_text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def test_login_of_azure_that_is_refused_names_its_command(
    home: Path, tmp_path: Path, clouds: CloudProxy
) -> None:
    clouds.refresh_tokens = {"current"}
    environ = make_environ(tmp_path, clouds)
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    anonymous = danlu("login", AZURE, environ=environ)
    assert anonymous.returncode == 3
    assert "az acr login --name danluteam" in anonymous.stderr
    write_helper(tmp_path, "acr-env", """echo '{"Username":"<token>","Secret":"stale"}'""")
    stale = danlu("login", AZURE, environ=environ)
    assert stale.returncode == 3
    assert "stale" not in stale.stderr
    write_helper(tmp_path, "acr-env", """echo '{"Username":"<token>","Secret":"current"}'""")
    assert danlu("login", AZURE, environ=environ).returncode == 0
