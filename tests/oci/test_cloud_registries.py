"""Pushes to registries of clouds: Debian's registry behind their logins, names and refusals."""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from danlu.errors import DanluError, OutsideError, UsageError
from danlu.graph.ops import Platform
from danlu.oci.image import Image
from danlu.oci.registry import credentials
from danlu.oci.registry.clouds import find_cloud
from danlu.oci.registry.ecr import create_ecr_repository, request_ecr_password
from danlu.oci.registry.errors import (
    RegistryAccessDenied,
    RegistryNotFound,
    RegistryTagImmutable,
)
from danlu.sources.image import push, resolve_reference
from danlu.util.aws import AwsError
from danlu.util.config import Configuration, RegistryConfig
from tests.fakes.aws import AwsEndpoint, Operation, refuse_request, serve_aws
from tests.fakes.cloud_registry import (
    CloudProxy,
    make_cloud_certificate,
    serve_clouds,
    write_helper,
)
from tests.oci.layers import TreeLayerSource, image_of
from tests.oci.registries import debian_registry, wait_for_port
from tests.ports import free_port
from tests.programs import SYSTEM_PATH
from tests.serving.servers import install_packages

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.needs("docker-registry", "openssl")]

ECR = "123456789012.dkr.ecr.eu-north-1.amazonaws.com"
DUALSTACK = "123456789012.dkr-ecr.eu-north-1.on.aws"
PUBLIC = "public.ecr.aws"
GOOGLE = "europe-west1-docker.pkg.dev"
AZURE = "danluteam.azurecr.io"
EVIL = "registry.evil.example"
API = "api.ecr.eu-north-1.amazonaws.com"
LINUX = Platform("linux", "amd64")
#: The server of AWS's APIs that simulates ECR, with what it needs for that.
MOTO = ("moto==5.2.5", "flask==3.1.3", "flask-cors==6.0.5")
NO_SETTINGS = Configuration()
UseAws = Callable[[AwsEndpoint], None]
#: Fields of an answer of a helper, which asks for a new one with each call.
COUNTING = 'cat >/dev/null; echo call >>"$CALLS"; n=$(wc -l <"$CALLS")'


@pytest.fixture(scope="module")
def registry_host() -> Iterator[str]:
    with debian_registry() as host:
        yield host


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An account without logins, whose helpers are in ``bin``."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    values = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "CALLS": str(home / "calls")}
    # Without the directories of the system, where helpers may be installed.
    values["PATH"] = str(home / "bin")
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(credentials, "_answers", {})
    return home


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    hosts = (ECR, DUALSTACK, PUBLIC, GOOGLE, AZURE, EVIL, API)
    return make_cloud_certificate(tmp_path_factory.mktemp("certificate"), *hosts)


@pytest.fixture
def clouds(
    registry_host: str,
    certificate: tuple[ssl.SSLContext, Path],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CloudProxy]:
    with serve_clouds(registry_host, *certificate) as proxy:
        for name, value in proxy.environ().items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def source(tmp_path: Path) -> TreeLayerSource:
    return TreeLayerSource(tmp_path / "trees")


def make_image(source: TreeLayerSource, tmp_path: Path, *, large: bool = False) -> Image:
    # Random, so that no test finds the layers of another.
    layers: list[dict[str, str | bytes]] = [{f"file{n}": os.urandom(2000)} for n in range(9)]
    if large:
        layers.append({"large": os.urandom(3 << 20)})
    return image_of(source, layers)


async def send(
    name: str,
    source: TreeLayerSource,
    tmp_path: Path,
    *,
    image: Image | None = None,
    config: Configuration = NO_SETTINGS,
    create: bool = False,
) -> str:
    return await push(
        name,
        image or make_image(source, tmp_path),
        source,
        config=config,
        scratch=tmp_path / "scratch",
        create_repository=create,
    )


def count_calls(home: Path) -> int:
    path = home / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def issue_passwords(*passwords: str) -> Operation:
    """Return an operation that gives one password after the other."""
    given = iter(passwords)

    def answer(_: dict[str, object]) -> tuple[int, dict[str, object]]:
        token = base64.b64encode(f"AWS:{next(given)}".encode()).decode()
        data = {"authorizationToken": token, "expiresAt": 1.9e9, "proxyEndpoint": f"https://{ECR}"}
        return 200, {"authorizationData": [data]}

    return answer


@pytest.fixture
def use_aws(home: Path, monkeypatch: pytest.MonkeyPatch) -> UseAws:
    def use(endpoint: AwsEndpoint) -> None:
        for name, value in endpoint.environ(home).items():
            monkeypatch.setenv(name, value)

    return use


# -- logins


async def test_one_answer_of_a_helper_serves_push_and_pull(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path
) -> None:
    clouds.passwords = {"first"}
    write_helper(
        home / "bin",
        "ecr-login",
        f"""{COUNTING}
echo '{{"Username":"AWS","Secret":"first"}}'""",
    )
    digest = await send(f"{ECR}/team/digits:1", source, tmp_path)
    found = await resolve_reference(f"{ECR}/team/digits:1", LINUX, config=NO_SETTINGS)
    assert found == digest
    assert count_calls(home) == 1
    assert len(clouds.requests("PATCH")) + len(clouds.requests("PUT")) >= 10


async def test_without_a_helper_aws_gives_the_password(
    clouds: CloudProxy, source: TreeLayerSource, tmp_path: Path, use_aws: UseAws
) -> None:
    clouds.passwords = {"first"}
    with serve_aws({"GetAuthorizationToken": issue_passwords("first")}) as aws:
        use_aws(aws)
        await send(f"{ECR}/team/digits:1", source, tmp_path)
        await resolve_reference(f"{ECR}/team/digits:1", LINUX, config=NO_SETTINGS)
    expected = {"registryIds": ["123456789012"]}
    assert aws.requests == [("GetAuthorizationToken", "eu-north-1", expected)]


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("method", ["HEAD", "POST", "PATCH", "PUT"])
async def test_password_that_expires_in_a_push_is_renewed_once(
    clouds: CloudProxy,
    home: Path,
    source: TreeLayerSource,
    tmp_path: Path,
    method: str,
    status: int,
) -> None:
    clouds.passwords, clouds.renewed, clouds.expired_status = {"p1"}, {"p2"}, status
    clouds.expire_before = [method]
    write_helper(
        home / "bin",
        "ecr-login",
        f"""{COUNTING}
echo "{{\\"Username\\":\\"AWS\\",\\"Secret\\":\\"p$n\\"}}\"""",
    )
    image = make_image(source, tmp_path, large=True)
    digest = await send(f"{ECR}/team/renewed:1", source, tmp_path, image=image)
    assert count_calls(home) == 2
    found = await resolve_reference(f"{ECR}/team/renewed:1", LINUX, config=NO_SETTINGS)
    assert found == digest
    assert not [request for request in clouds.log if "first" in request.path]


async def test_stale_login_of_docker_gives_way_to_aws(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path, use_aws: UseAws
) -> None:
    clouds.passwords = {"fresh"}
    stale = base64.b64encode(b"AWS:of yesterday").decode()
    (home / ".docker").mkdir()
    (home / ".docker/config.json").write_text(json.dumps({"auths": {ECR: {"auth": stale}}}))
    with serve_aws({"GetAuthorizationToken": issue_passwords("fresh")}) as aws:
        use_aws(aws)
        await send(f"{ECR}/team/digits:1", source, tmp_path)
    assert len(aws.requests) == 1


@pytest.mark.parametrize("user", ["oauth2accesstoken", "_json_key"])
async def test_google_exchanges_its_logins(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path, user: str
) -> None:
    clouds.passwords, clouds.renewed, clouds.expire_before = {"p1"}, {"p2"}, ["PATCH"]
    write_helper(
        home / "bin",
        "gcloud",
        f"""{COUNTING}
echo "{{\\"Username\\":\\"{user}\\",\\"Secret\\":\\"p$n\\"}}\"""",
    )
    image = make_image(source, tmp_path, large=True)
    await send(f"{GOOGLE}/project/team/digits:1", source, tmp_path, image=image)
    assert count_calls(home) == 2
    assert {r.authorization.partition(" ")[0] for r in clouds.requests(path="/blobs/")} == {
        "Bearer"
    }


async def test_azure_exchanges_refresh_tokens(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path
) -> None:
    clouds.refresh_tokens, clouds.renewed, clouds.expire_before = {"p1"}, {"p2"}, ["PATCH"]
    write_helper(
        home / "bin",
        "acr-env",
        f"""{COUNTING}
echo "{{\\"Username\\":\\"<token>\\",\\"Secret\\":\\"p$n\\"}}\"""",
    )
    image = make_image(source, tmp_path, large=True)
    await send(f"{AZURE}/team/digits:1", source, tmp_path, image=image)
    assert count_calls(home) == 2
    exchanges = clouds.requests("POST", "/oauth2/token")
    assert [request.status for request in exchanges].count(400) == 1


async def test_public_registry_of_aws_asks_for_a_login_only_to_push(
    clouds: CloudProxy, source: TreeLayerSource, tmp_path: Path, use_aws: UseAws
) -> None:
    token = base64.b64encode(b"AWS:public").decode()
    answer = {"authorizationData": {"authorizationToken": token}}
    clouds.passwords = {"public"}
    with serve_aws({"GetAuthorizationToken": lambda _: (200, answer)}) as aws:
        use_aws(aws)
        with pytest.raises(RegistryAccessDenied):
            await resolve_reference(f"{PUBLIC}/team/digits:1", LINUX, config=NO_SETTINGS)
        assert aws.requests == []
        await send(f"{PUBLIC}/team/digits:1", source, tmp_path)
    assert aws.requests == [("GetAuthorizationToken", "us-east-1", {})]


# -- repositories


async def test_missing_repository_is_created_if_the_user_agrees(
    clouds: CloudProxy, source: TreeLayerSource, tmp_path: Path, use_aws: UseAws
) -> None:
    def create(request: dict[str, object]) -> tuple[int, dict[str, object]]:
        assert clouds.repositories is not None
        clouds.repositories.add(str(request["repositoryName"]))
        return 200, {"repository": {}}

    clouds.passwords, clouds.repositories = {"first"}, set()
    operations = {
        "GetAuthorizationToken": issue_passwords("first"),
        "CreateRepository": create,
    }
    name = f"{ECR}/team/digits:1"
    with serve_aws(operations) as aws:
        use_aws(aws)
        with pytest.raises(RegistryNotFound, match="does not exist in the registry") as caught:
            await send(name, source, tmp_path)
        assert "--create-repository" in caught.value.hint
        assert source.written == []  # nothing was compressed in vain
        await send(name, source, tmp_path, create=True)
        wanted = {"repositoryName": "team/digits", "registryId": "123456789012"}
        assert aws.requests[-1] == ("CreateRepository", "eu-north-1", wanted)
        clouds.repositories.clear()
        setting = Configuration(registries={ECR: RegistryConfig(create_repository=True)})
        await send(name, source, tmp_path, config=setting)
        assert clouds.repositories == {"team/digits"}


async def test_role_that_may_not_create_a_repository(
    clouds: CloudProxy, source: TreeLayerSource, tmp_path: Path, use_aws: UseAws
) -> None:
    clouds.passwords, clouds.repositories = {"first"}, set()
    operations = {
        "GetAuthorizationToken": issue_passwords("first"),
        "CreateRepository": refuse_request("AccessDeniedException", "User: ann may not"),
    }
    with serve_aws(operations) as aws:
        use_aws(aws)
        with pytest.raises(AwsError, match="AWS refused ecr:CreateRepository") as caught:
            await send(f"{ECR}/team/digits:1", source, tmp_path, create=True)
    assert "IAM policy" in caught.value.hint


async def test_image_outside_of_a_repository_of_google(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        await send(f"{GOOGLE}/project/digits:1", source, tmp_path)
    assert caught.value.hint.endswith(f"{GOOGLE}/PROJECT/REPOSITORY/IMAGE")
    assert clouds.log == []
    write_helper(home / "bin", "gcloud", """echo '{"Username":"u","Secret":"first"}'""")
    clouds.passwords, clouds.repositories = {"first"}, set()
    with pytest.raises(RegistryNotFound) as missing:
        await send(f"{GOOGLE}/project/team/digits:1", source, tmp_path)
    assert missing.value.hint == (
        "`gcloud artifacts repositories create team --repository-format docker --location"
        " europe-west1 --project project`"
    )


# -- refusals


async def test_immutable_tag_takes_only_the_image_that_it_has(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path
) -> None:
    clouds.passwords = {"first"}
    write_helper(home / "bin", "ecr-login", """echo '{"Username":"AWS","Secret":"first"}'""")
    image, name = make_image(source, tmp_path), f"{ECR}/team/fixed:1"
    digest = await send(name, source, tmp_path, image=image)
    clouds.immutable = True
    assert await send(name, source, tmp_path, image=image) == digest
    with pytest.raises(RegistryTagImmutable, match="repository is immutable") as caught:
        await send(name, source, tmp_path)
    assert caught.value.hint == "push under another tag"


async def test_media_type_that_the_registry_refuses(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path
) -> None:
    clouds.passwords, clouds.refused_type = {"first"}, "application/vnd.oci.image.manifest"
    write_helper(home / "bin", "ecr-login", """echo '{"Username":"AWS","Secret":"first"}'""")
    with pytest.raises(OutsideError, match=r"HTTP 415 .* Unsupported media type") as caught:
        await send(f"{ECR}/team/digits:1", source, tmp_path)
    assert "--compression gzip" in caught.value.hint


async def test_upload_that_cannot_be_cancelled_does_not_matter(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path
) -> None:
    clouds.passwords, clouds.fails_to_cancel = {"first"}, True
    write_helper(home / "bin", "ecr-login", """echo '{"Username":"AWS","Secret":"first"}'""")
    await send(f"{ECR}/team/digits:1", source, tmp_path)
    assert [request.status for request in clouds.requests("DELETE")] == [500]


async def test_throttling_is_waited_for(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path
) -> None:
    clouds.passwords, clouds.throttled = {"first"}, 3
    write_helper(home / "bin", "ecr-login", """echo '{"Username":"AWS","Secret":"first"}'""")
    await send(f"{ECR}/team/digits:1", source, tmp_path)
    assert [request.status for request in clouds.log].count(429) == 3


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("echo no credentials of AWS; exit 1", "ecr-login failed: no credentials of AWS"),
        ("echo hello", "ecr-login printed no JSON"),
        ("""echo '{"Username":"AWS","Secret":"hidden"}'; exit 1""", "failed: exit code 1"),
        ("exec sleep 1000", "ecr-login did not answer within 0.2 seconds"),
    ],
)
async def test_failed_helper_is_the_reason(
    clouds: CloudProxy,
    home: Path,
    source: TreeLayerSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    detail: str,
) -> None:
    if "sleep" in script:
        monkeypatch.setattr(credentials, "_HELPER_TIMEOUT", 0.2)
    monkeypatch.setitem(sys.modules, "boto3", None)
    write_helper(home / "bin", "ecr-login", script)
    with pytest.raises(RegistryAccessDenied) as caught:
        await send(f"{ECR}/team/digits:1", source, tmp_path)
    assert caught.value.message == (
        f"{ECR} denied access to repository team/digits: authentication required"
    )
    assert detail in caught.value.details[0]
    assert "docker-credential-ecr-login get" in caught.value.hint
    assert "hidden" not in str(vars(caught.value))
    assert caught.value.exit_code == 3


async def test_login_that_cannot_be_renewed_is_one_message(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path
) -> None:
    clouds.passwords, clouds.expire_before = {"first"}, ["PUT"]
    write_helper(home / "bin", "ecr-login", """echo '{"Username":"AWS","Secret":"first"}'""")
    # The answer to a HEAD, which may be the first, does not say that.
    with pytest.raises(RegistryAccessDenied, match="denied access") as caught:
        await send(f"{ECR}/team/digits:1", source, tmp_path)
    assert "aws sso login" in caught.value.hint
    assert len([request for request in clouds.log if request.status == 403]) <= 2 * 9


async def test_role_without_rights_is_told_which_it_needs(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path
) -> None:
    clouds.passwords, clouds.denied = {"first"}, "User: ann may not do ecr:InitiateLayerUpload"
    write_helper(
        home / "bin",
        "ecr-login",
        f"""{COUNTING}
echo '{{"Username":"AWS","Secret":"first"}}'""",
    )
    with pytest.raises(RegistryAccessDenied, match="ecr:InitiateLayerUpload") as caught:
        await send(f"{ECR}/team/digits:1", source, tmp_path)
    assert "AmazonEC2ContainerRegistryPowerUser" in caught.value.hint
    assert source.written == []
    assert count_calls(home) == 1


# -- hostile registries


async def test_password_of_a_cloud_is_sent_to_no_other_host(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path
) -> None:
    clouds.passwords, clouds.realm = {"first"}, f"https://{EVIL}/v2/token"
    write_helper(home / "bin", "gcloud", """echo '{"Username":"u","Secret":"first"}'""")
    with pytest.raises(OutsideError, match=f"asks to send the password to {EVIL}"):
        await send(f"{GOOGLE}/project/team/digits:1", source, tmp_path)
    assert [request for request in clouds.log if request.host == EVIL] == []


async def test_registry_cannot_get_the_password_of_a_cloud(
    clouds: CloudProxy, home: Path, source: TreeLayerSource, tmp_path: Path
) -> None:
    # It names the token server of Google; what is sent there is what it could get itself.
    clouds.realm = f"https://{GOOGLE}/v2/token"
    write_helper(home / "bin", "gcloud", f"{COUNTING}; exit 1")
    write_helper(home / "bin", "ecr-login", f"{COUNTING}; exit 1")
    with pytest.raises(DanluError):
        await send(f"{EVIL}/project/team/digits:1", source, tmp_path)
    assert count_calls(home) == 0


# -- the real helper of AWS


@pytest.mark.needs("docker-credential-ecr-login")
async def test_the_helper_of_aws_is_used_without_configuration(
    clouds: CloudProxy,
    home: Path,
    source: TreeLayerSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    use_aws: UseAws,
) -> None:
    program = shutil.which("docker-credential-ecr-login", path=SYSTEM_PATH)
    assert program is not None
    (home / "bin/docker-credential-ecr-login").symlink_to(program)
    clouds.passwords = {"first"}
    with serve_aws({"GetAuthorizationToken": issue_passwords("first")}) as aws:
        use_aws(aws)
        # It is too old for the variable with the address.
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        clouds.apis[API] = aws.url.removeprefix("http://")
        await send(f"{ECR}/team/digits:1", source, tmp_path)
    assert len(aws.requests) == 1
    assert clouds.requests("POST", "/")[0].host == API


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_packages(tmp_path_factory.mktemp("moto"), *MOTO)


@pytest.mark.slow
async def test_api_of_aws_is_called_as_moto_expects(
    moto: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(moto)}, stderr=subprocess.DEVNULL
    )
    try:
        wait_for_port(port)
        environ = AwsEndpoint({}, port).environ(home)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        cloud = find_cloud(ECR)
        assert cloud is not None
        assert await request_ecr_password(ECR, cloud) == ("AWS", "123456789012-auth-token")
        assert await create_ecr_repository(cloud, "team/digits")
        assert not await create_ecr_repository(cloud, "team/digits")
    finally:
        server.terminate()
        server.wait(30)
