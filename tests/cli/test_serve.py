"""``danlu serve`` as users type it, on a fake cluster in a thread with a fake registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from anyio.from_thread import start_blocking_portal

from danlu.kube.config import ClusterConfig
from danlu.sandbox.emulation import host_platform
from danlu.serving import layout
from tests.fakes.kubernetes import FakeKubelet, FakeKubernetes, PodScript
from tests.fakes.registry import FakeRegistry
from tests.serving.deployment_controller import run_deployments

from .conftest import Cli

ON = ("--on", "kubernetes")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture
def cluster(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeKubernetes]:
    """A cluster whose pods become ready, and a kubeconfig for it."""
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        fake = stack.enter_context(portal.wrap_async_context_manager(FakeKubernetes()))
        access = ClusterConfig(server=fake.url)
        script = PodScript(log="listening\n")
        kubelet = FakeKubelet(access, behaviour=lambda pod: script, logs=fake.cluster.logs)
        stack.enter_context(portal.wrap_async_context_manager(kubelet))
        stack.enter_context(portal.wrap_async_context_manager(run_deployments(access)))
        kubeconfig = {
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": fake.url}}],
            "users": [{"name": "fake", "user": {"token": "none"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield fake


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(FakeRegistry()) as registry,
    ):
        yield registry


def publish(registry: FakeRegistry, name: str, **labels: str) -> str:
    """Put a packed image without layers in the registry; gives its digest."""
    labels = {layout.LABEL: layout.LAYOUT_VERSION, **labels}
    repository, _, tag = name.partition(":")
    platform = host_platform()
    config = {
        "os": platform.os,
        "architecture": platform.architecture,
        "config": {"Labels": {"version": tag, **labels}},
        "rootfs": {"type": "layers", "diff_ids": []},
    }
    data = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": registry.put_blob(repository, data),
            "size": len(data),
        },
        "layers": [],
    }
    return registry.put_manifest(repository, json.dumps(manifest).encode(), tag=tag)


def test_a_model_is_served_listed_updated_and_removed(
    cli: Cli, cluster: FakeKubernetes, registry: FakeRegistry
) -> None:
    digest = publish(registry, "team/digits:1")
    image = f"{registry.host}/team/digits"
    result = cli("serve", f"{image}:1", *ON, "--replicas", "2")
    assert (result.code, result.out) == (0, "http://digits.default.svc\n"), result.err
    assert f"starting digits: {image}@{digest}" in result.err
    assert "digits is ready: 2 of 2 replicas" in result.err
    (row,) = json.loads(cli("serve", "ls", "--format", "json", *ON).out)
    assert (row["image"], row["state"], row["ready"]) == (f"{image}:1", "Ready", 2)
    assert "Ready" in cli("serve", "ls", *ON).out

    other = publish(registry, "team/digits:2")
    assert other != digest
    result = cli("serve", f"{image}:2", *ON)
    assert f"updating digits: {image}@{other}" in result.err
    status = cli("serve", "status", "digits", *ON).out
    assert f"{image}:2" in status
    assert status.count("latest") == 1
    lines = cli("serve", "logs", "digits", "--tail", "5", *ON).out
    assert lines.endswith("│ listening\n")

    assert cli("serve", "rm", "digits", *ON).code == 0
    assert cli("serve", "ls", "-q", *ON).out == ""
    assert "no served model digits" in cli("serve", "status", "digits", *ON).err


def test_an_image_that_the_registry_lacks_is_one_message(
    cli: Cli, cluster: FakeKubernetes, registry: FakeRegistry
) -> None:
    result = cli("serve", f"{registry.host}/team/digits:9", *ON)
    assert result.code == 3
    assert result.err.startswith(f"error: cannot serve {registry.host}/team/digits:9: ")
    assert result.err.count("error:") == 1
    result = cli("serve", "digits:1", *ON)
    assert (result.code, "not found in the local store" in result.err) == (2, True)
    assert cli("serve", "ls", "-q", *ON).out == ""


def test_probes_are_those_of_the_server_of_the_image(
    cli: Cli, cluster: FakeKubernetes, registry: FakeRegistry
) -> None:
    publish(registry, "team/digits:1", **{layout.SERVER_LABEL: "bentoml"})
    image = f"{registry.host}/team/digits:1"
    deployment, _ = yaml.safe_load_all(cli("serve", image, "--dry-run", *ON).out)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_manifests_are_printed_and_nothing_is_created(
    cli: Cli, cluster: FakeKubernetes, registry: FakeRegistry, form: str
) -> None:
    publish(registry, "team/digits:1")
    image = f"{registry.host}/team/digits:1"
    arguments = ("serve", image, "--dry-run", "-o", form, "--replicas", "1-3", *ON)
    output = cli(*arguments).out
    documents = list(yaml.safe_load_all(output)) if form == "yaml" else json.loads(output)["items"]
    assert [document["kind"] for document in documents] == [
        *("Deployment", "Service", "HorizontalPodAutoscaler")
    ]
    (container,) = documents[0]["spec"]["template"]["spec"]["containers"]
    # The autoscaler compares with what is requested.
    assert container["resources"]["requests"] == {"cpu": "1000m"}
    assert cli("serve", "ls", "-q", *ON).out == ""
    kserve = cli(*arguments, "--kserve").out
    assert "InferenceService" in kserve


def test_options_that_do_not_apply_are_refused(cli: Cli, cluster: FakeKubernetes) -> None:
    for arguments, message in (
        (("digits:1", "--replicas", "2"), "--replicas needs --on kubernetes"),
        (("digits:1", "--port", "1", *ON), "--port cannot be used with --on kubernetes"),
        (("digits:1", "-o", "json"), "-o requires --dry-run"),
        (("digits:1", "--replicas", "3-2", *ON), "invalid number of replicas '3-2'"),
        (("digits:1", "--name", "Digits", *ON), "invalid name 'Digits'"),
        (("digits:1", "--gpus", "all", *ON), "the cluster chooses the GPUs"),
        (("digits:1", "--memory", "big", *ON), "--memory: "),
        (("digits:1", "ls"), "unexpected extra argument (ls)"),
        (("rm",), "missing argument"),
    ):
        result = cli("serve", *arguments)
        assert (result.code, message in result.err) == (2, True), (arguments, result.err)


def test_subcommands_are_in_the_help_of_the_command(cli: Cli) -> None:
    text = cli("serve", "--help").out
    assert "danlu serve [OPTIONS] REF" in text
    assert "ls " in text
    assert cli("serve", "ls", "--help").out.startswith("Usage: danlu serve ls [OPTIONS]\n")
