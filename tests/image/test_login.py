"""Logging in to registries: what is verified, and what is written where."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from danlu.engine.settings import Settings, load_settings
from danlu.errors import OutsideError, UsageError
from danlu.image.login import login, parse_login_registry
from danlu.oci.registry import RegistryCredentials, find_docker_credentials
from danlu.oci.registry.credential_store import CredentialStore
from danlu.oci.registry.credentials import CredentialHelperError
from danlu.util.paths import Paths
from tests.fakes.registry import FakeRegistry
from tests.oci.registries import make_certificate

pytestmark = pytest.mark.anyio
ME = RegistryCredentials("me", "secret")
#: A helper that keeps what it stores in a file of its directory, as docker-credential-pass does.
HELPER = """#!/bin/sh
cd "$(dirname "$0")" || exit 1
case $1 in
store) cat >stored ;;
get) cat >/dev/null; cat stored 2>/dev/null && exit; echo credentials not found in x; exit 1 ;;
erase) cat >erased; rm stored ;;
esac
"""


@pytest.fixture
async def fake() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as registry:
        registry.users = {"me": "secret"}
        yield registry


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    directory = tmp_path / "docker"
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {"DOCKER_CONFIG": str(directory), "HOME": str(tmp_path), "PATH": path}


def write_config(environ: dict[str, str], text: str) -> Path:
    path = Path(environ["DOCKER_CONFIG"], "config.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def write_helper(tmp_path: Path, script: str = HELPER) -> None:
    helper = tmp_path / "docker-credential-test"
    helper.write_text(script)
    helper.chmod(0o755)


@pytest.mark.parametrize("tokens", [True, False])
async def test_verified_login_is_stored_beside_what_the_file_has(
    fake: FakeRegistry, settings: Settings, environ: dict[str, str], tokens: bool
) -> None:
    fake.tokens = tokens
    before = {
        "psFormat": "é",
        "auths": {"other": {"auth": "eDp5"}, f"https://{fake.host}/v1/": {"auth": "b2xk"}},
        "proxies": {"default": {"noProxy": "x"}},
    }
    path = write_config(environ, json.dumps(before))
    path.chmod(0o644)
    result = await login(fake.host, ME, CredentialStore(environ), settings)
    assert (result.is_verified, result.is_plain, result.place) == (True, True, str(path))
    after = json.loads(path.read_text())
    auths = {"other": {"auth": "eDp5"}, fake.host: {"auth": "bWU6c2VjcmV0"}}
    assert after == {**before, "auths": auths}
    assert list(after) == list(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert await find_docker_credentials(fake.host, environ=environ) == ME


@pytest.mark.parametrize("tokens", [True, False])
async def test_rejected_login_is_not_stored(
    fake: FakeRegistry, settings: Settings, environ: dict[str, str], tokens: bool
) -> None:
    fake.tokens = tokens
    wrong = RegistryCredentials("me", "wrong-word")
    with pytest.raises(OutsideError, match=f"{fake.host} rejected the login of me") as caught:
        await login(fake.host, wrong, CredentialStore(environ), settings)
    assert "user name and the password" in caught.value.hint
    assert "wrong-word" not in str(caught.value)
    assert not Path(environ["DOCKER_CONFIG"]).exists()


async def test_registry_without_logins_leaves_the_login_unverified(
    fake: FakeRegistry, settings: Settings, environ: dict[str, str]
) -> None:
    fake.users = {}
    result = await login(fake.host, ME, CredentialStore(environ), settings)
    assert not result.is_verified
    assert not any("Authorization" in request.headers for request in fake.log)
    assert await find_docker_credentials(fake.host, environ=environ) == ME


async def test_private_ca_of_the_configuration_is_trusted(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    tls, ca = make_certificate(tmp_path)
    async with FakeRegistry(tls=tls) as fake:
        fake.users = {"me": "secret"}
        for number, trusted in enumerate((ca, make_other_ca(tmp_path))):
            paths = Paths.of({"DANLU_HOME": str(tmp_path / f"home{number}")})
            paths.config.mkdir(parents=True)
            setting = f'[registries."{fake.host}"]\nca = "{trusted}"\n'
            (paths.config / "config.toml").write_text(setting)
            store = CredentialStore(environ)
            if trusted == ca:
                assert (await login(fake.host, ME, store, load_settings(paths))).is_verified
            else:
                with pytest.raises(OutsideError, match="cannot verify the certificate"):
                    await login(fake.host, ME, store, load_settings(paths))


def make_other_ca(tmp_path: Path) -> Path:
    place = tmp_path / "other"
    place.mkdir()
    return make_certificate(place)[1]


@pytest.mark.parametrize("text", ['{"auths": {', "[]", '{"auths": ["x"]}', "{} {}"])
def test_damaged_file_is_not_overwritten(environ: dict[str, str], text: str) -> None:
    path = write_config(environ, text)
    with pytest.raises(UsageError, match=r"config\.json is damaged: "):
        CredentialStore(environ)
    assert path.read_text() == text


async def test_linked_file_stays_a_link(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "dotfiles.json").write_text("{}")
    path = Path(environ["DOCKER_CONFIG"], "config.json")
    path.parent.mkdir()
    path.symlink_to("../dotfiles.json")
    await CredentialStore(environ).store("h", ME)
    assert path.is_symlink()
    assert json.loads((tmp_path / "dotfiles.json").read_text())["auths"]


async def test_docker_hub_has_the_key_that_docker_uses(environ: dict[str, str]) -> None:
    await CredentialStore(environ).store("docker.io", ME)
    path = Path(environ["DOCKER_CONFIG"], "config.json")
    assert list(json.loads(path.read_text())["auths"]) == ["https://index.docker.io/v1/"]
    assert await find_docker_credentials("docker.io", environ=environ) == ME
    assert await CredentialStore(environ).erase("docker.io")
    assert json.loads(path.read_text()) == {"auths": {}}


@pytest.mark.parametrize(
    "config", [{"credsStore": "test"}, {"credHelpers": {"https://index.docker.io/v1/": "test"}}]
)
async def test_helper_stores_and_erases_the_login(
    environ: dict[str, str], tmp_path: Path, config: dict[str, object]
) -> None:
    write_helper(tmp_path)
    path = write_config(environ, json.dumps(config))
    store = CredentialStore(environ)
    assert (store.describe("docker.io"), store.is_plain("docker.io")) == (
        "docker-credential-test",
        False,
    )
    await store.store("docker.io", ME)
    server = "https://index.docker.io/v1/"
    stored = json.loads((tmp_path / "stored").read_text())
    assert stored == {"ServerURL": server, "Username": "me", "Secret": "secret"}
    assert json.loads(path.read_text()) == {**config, "auths": {server: {}}}
    assert await find_docker_credentials("docker.io", environ=environ) == ME
    assert await CredentialStore(environ).erase("docker.io")
    assert (tmp_path / "erased").read_text() == server
    assert json.loads(path.read_text()) == {**config, "auths": {}}
    assert not await CredentialStore(environ).erase("docker.io")


async def test_failed_helper_stores_nothing(
    fake: FakeRegistry, settings: Settings, environ: dict[str, str], tmp_path: Path
) -> None:
    write_helper(tmp_path, "#!/bin/sh\necho the keychain is locked; exit 1\n")
    path = write_config(environ, '{"credsStore": "test"}')
    with pytest.raises(CredentialHelperError, match="the keychain is locked") as caught:
        await login(fake.host, ME, CredentialStore(environ), settings)
    assert str(path) in caught.value.hint
    assert path.read_text() == '{"credsStore": "test"}'


async def test_logout_leaves_other_logins(environ: dict[str, str]) -> None:
    auths = {"h": {}, "https://h/v2/": {"auth": "eDp5"}, "h/team": {}, "h:1": {}}
    path = write_config(environ, json.dumps({"auths": auths}))
    assert await CredentialStore(environ).erase("h")
    assert json.loads(path.read_text()) == {"auths": {"h/team": {}, "h:1": {}}}
    written = path.stat().st_mtime_ns
    assert not await CredentialStore(environ).erase("h")
    assert path.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("", "docker.io"),
        ("https://index.docker.io/v1/", "docker.io"),
        ("localhost:5000", "localhost:5000"),
        ("https://r.example.com/", "r.example.com"),
        ("[::1]:5000", "[::1]:5000"),
    ],
)
def test_registry_is_given_as_host_or_address(text: str, host: str) -> None:
    assert parse_login_registry(text) == host


@pytest.mark.parametrize("text", ["r.example.com/team", "a b", "-x", "r.example.com:x", "\x1b[2J"])
def test_invalid_registry_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_login_registry(text)
