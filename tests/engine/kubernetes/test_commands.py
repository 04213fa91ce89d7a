"""What commands do for an environment in a cluster: its image, pod and volume."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from danlu.engine.engine_commands import EngineHost
from danlu.engine.environment_directory import EnvironmentDirectory, EnvironmentSpec
from danlu.engine.kubernetes.settings import read_settings
from danlu.engine.registry import find_engine
from danlu.errors import UsageError
from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS, Resource
from danlu.kube.types import Manifest
from danlu.util.config import Configuration, KubernetesConfig
from tests.fakes.kubernetes import FakeKubelet, FakeKubernetes
from tests.jobs.containers.engine_rig import image, paths_of

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox"), pytest.mark.timeout(60)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an API server that the kubeconfig names, and that starts every pod."""
    kubeconfig = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(FakeKubernetes()) as server,
        portal.wrap_async_context_manager(FakeKubelet(ClusterConfig(server=server.url))),
    ):
        kubeconfig.write_text(
            "current-context: c\n"
            "contexts: [{name: c, context: {cluster: k, namespace: default}}]\n"
            f"clusters: [{{name: k, cluster: {{server: '{server.url}'}}}}]\n"
        )
        yield server.url


def list_names(address: str, resource: Resource[Manifest]) -> list[str]:
    async def run() -> list[str]:
        async with Client(ClusterConfig(server=address)) as client:
            return [item["metadata"]["name"] for item in (await client.list(resource)).items]

    return anyio.run(run)


def create_environment(home: Path, project: Path) -> EnvironmentDirectory:
    environment = EnvironmentDirectory(paths_of(home).environments / "digits")
    environment.directory.mkdir(parents=True)
    spec = EnvironmentSpec(
        "digits", image(home, User="7:8"), datetime.now(UTC), str(project), engine="kubernetes"
    )
    environment.write_spec(spec)
    return environment


def create_host(home: Path) -> EngineHost:
    config = Configuration(kubernetes=KubernetesConfig(storage_class="fast"))
    return EngineHost(
        paths_of(home), config, lambda event: None, lambda digest, name: f"registry/{name}@{digest}"
    )


def test_a_pod_is_prepared_and_removed_with_its_volume(cluster: str, tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    environment = create_environment(home, project)
    commands = find_engine("kubernetes").load_commands()
    commands.prepare_container(environment, create_host(home))
    settings = read_settings(environment)
    assert settings.image == f"registry/digits@{environment.read_spec().image}"
    assert (settings.user.uid, settings.user.gid, settings.namespace) == (7, 8, "default")
    assert list_names(cluster, PODS) == [settings.name]
    assert list_names(cluster, PERSISTENT_VOLUME_CLAIMS) == [settings.name]
    commands.remove_container(environment)
    assert list_names(cluster, PODS) == list_names(cluster, PERSISTENT_VOLUME_CLAIMS) == []


def test_a_home_directory_is_not_copied_to_a_cluster(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "project"))
    environment = create_environment(tmp_path / "home", tmp_path / "project")
    with pytest.raises(UsageError, match="is not a project"):
        find_engine("kubernetes").load_commands().prepare_container(
            environment, create_host(tmp_path / "home")
        )
    assert list_names(cluster, PODS) == []
