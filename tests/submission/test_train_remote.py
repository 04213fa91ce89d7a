"""Jobs for a cluster are sent with the files that their replicas need."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from danlu.engine.contexts import ClusterAddress, Context, SageMakerAccount, create_context
from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.graph.ops import Platform
from danlu.jobs.backends import find_target, is_remote
from danlu.jobs.kubernetes.manifests import prepare_job
from danlu.jobs.kubernetes.objects import PodObject
from danlu.jobs.kubernetes.results import collect_result
from danlu.jobs.sagemaker.request import render_request
from danlu.jobs.types import ContainerImage, JobResult, JobView, Submission
from danlu.sources import image as images
from danlu.store import Store
from danlu.submission import function_transport
from danlu.submission.call import build_call_options
from danlu.submission.function_transport import RemoteCall
from danlu.submission.options import TrainOptions
from danlu.submission.plan import RunTarget, plan_job
from danlu.submission.submission import build_submission
from danlu.training.manifest import read_job
from danlu.training.registry import find_framework
from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.types import JobStatus, ReplicaId, ReplicaType
from danlu.util.config import Configuration, KubernetesConfig
from danlu.util.paths import Paths
from tests.fakes.registry import FakeRegistry
from tests.fakes.sagemaker import BUCKET, ROLE
from tests.jobs.kubernetes.pod_runner import PodRun, run_pod
from tests.oci.layers import TreeLayerSource, image_of

WORKER = ReplicaId(ReplicaType("Worker"), 0)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def prepare_submission(order: TrainOptions, settings: Settings) -> Submission:
    return build_submission(
        plan_job(order, settings=settings), order, settings=settings, progress=lambda event: None
    )


def render_worker_pod(sent: Submission) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pod of worker-0 and the ConfigMaps by name."""
    ready = prepare_job(sent, namespace="default")
    framework = find_framework(sent.job.kind)
    job = read_job(ready.job, framework)
    pod = render_pod(job, framework, WORKER, ServiceTopology(job, framework))
    return pod, {} if ready.code is None else {ready.code["metadata"]["name"]: ready.code}


def test_cluster_target_does_not_describe_a_local_python(project: Path, settings: Settings) -> None:
    (project / "train.py").write_text("import torch\n")
    path = plan_job(
        TrainOptions(directory=project, script="train.py", on="kubernetes"), settings=settings
    ).target
    assert path is not None
    assert path.description == ""


def run_submission(sent: Submission, root: Path) -> PodRun:
    pod, maps = render_worker_pod(sent)
    return run_pod(pod, maps, root)


def read_result(sent: Submission, ended: PodRun) -> JobResult:
    """Return the result that is read from the termination message."""
    terminated = {"exitCode": ended.code, "message": ended.message}
    statuses = [{"name": "pytorch", "state": {"terminated": terminated}}]
    document = {"metadata": {}, "status": {"containerStatuses": statuses}}
    pod = msgspec.json.decode(msgspec.json.encode(document), type=PodObject)
    view = JobView("job", "PyTorchJob", "pytorch", "Succeeded", JobStatus(), labels=sent.labels)
    return collect_result(view, WORKER, pods={WORKER: pod}, report=None)


def test_script_is_sent_with_the_local_modules_it_imports(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    (project / "models" / "parts").mkdir(parents=True)
    (project / "models" / "__init__.py").write_text("from models.parts import one\n")
    (project / "models" / "parts" / "__init__.py").write_text("one = 1\n")
    (project / "unused.py").write_text("raise SystemExit\n")
    (project / "train.py").write_text("import models, json\nprint(models.one)\n")
    order = TrainOptions(
        directory=project, script="train.py", framework="pytorch", image="i", on="kubernetes"
    )
    sent = prepare_submission(order, settings)
    assert set(sent.code) == {"train.py", "models/__init__.py", "models/parts/__init__.py"}
    assert run_submission(sent, tmp_path / "pod").log == "1\n"


def test_script_in_a_subdirectory_imports_modules_next_to_it(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    (project / "src").mkdir()
    (project / "src" / "train.py").write_text("import near\nprint(near.x)\n")
    (project / "src" / "near.py").write_text("x = 'near'\n")
    order = TrainOptions(
        directory=project, script="src/train.py", framework="pytorch", image="i", on="kubernetes"
    )
    assert run_submission(prepare_submission(order, settings), tmp_path / "pod").log == "near\n"


def prepare_call(call: RemoteCall, project: Path, settings: Settings, tmp_path: Path) -> Submission:
    order = TrainOptions(directory=project, image="i", on="kubernetes", framework="pytorch")
    files = tmp_path / "files"
    files.mkdir()
    return prepare_submission(
        build_call_options(call, order, files=files, every=False, settings=settings), settings
    )


def test_remote_function_returns_its_value(
    project: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "beside7.py").write_text("import below7\ndef f(x):\n    return below7.y + x\n")
    (project / "below7.py").write_text("y = 40\n")
    monkeypatch.syspath_prepend(str(project))
    import beside7  # type: ignore[import-not-found]

    sent = prepare_call(RemoteCall(beside7.f, (2,)), project, settings, tmp_path)
    assert set(sent.code) == {"beside7.py", "below7.py"}
    result = run_submission(sent, tmp_path / "pod")
    assert result.code == 0, result.log
    assert function_transport.leader_value(read_result(sent, result)) == 42


def test_remote_function_raises_its_exception(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    def fails() -> None:
        raise ValueError("x" * 100_000)

    sent = prepare_call(RemoteCall(fails), project, settings, tmp_path)
    result = run_submission(sent, tmp_path / "pod")
    assert result.code == 1
    found = function_transport.first_error(read_result(sent, result))
    assert found is not None
    assert found.text.endswith("x\n")
    assert len(result.message) <= 4096


def test_value_too_large_for_the_termination_message_is_an_error(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    sent = prepare_call(RemoteCall(lambda: bytes(5000)), project, settings, tmp_path)
    result = run_submission(sent, tmp_path / "pod")
    assert result.code == 1
    assert "termination message holds only 3000" in result.log


def test_other_replicas_return_no_value(project: Path, settings: Settings, tmp_path: Path) -> None:
    sent = prepare_call(RemoteCall(lambda: 1), project, settings, tmp_path)
    pod, maps = render_worker_pod(sent)
    pod["metadata"]["labels"]["training.kubeflow.org/replica-index"] = "1"
    result = run_pod(pod, maps, tmp_path / "pod")
    assert (result.code, result.message) == (0, "")


@pytest.mark.parametrize(
    "fields", [{"host_python": True}, {"image": "i", "volumes": ("/data:/data",)}]
)
def test_local_options_are_an_error_on_a_cluster(
    project: Path, settings: Settings, fields: dict[str, Any]
) -> None:
    (project / "train.py").write_text("import torch\n")
    order = TrainOptions(directory=project, script="train.py", on="kubernetes", **fields)
    with pytest.raises(UsageError, match="cannot be used with --on kubernetes"):
        plan_job(order, settings=settings)


def test_script_without_an_image_is_an_error_on_a_cluster(
    project: Path, settings: Settings
) -> None:
    (project / "train.py").write_text("import torch\n")
    order = TrainOptions(directory=project, script="train.py", on="kubernetes")
    with pytest.raises(UsageError, match="an image is required") as caught:
        prepare_submission(order, settings)
    assert "--image" in caught.value.hint


def test_environment_on_a_cluster_requires_a_registry(project: Path, settings: Settings) -> None:
    (project / "train.py").write_text("import torch\n")
    (project / "build.envd").write_text("def build():\n    base(dev=True)\n")
    order = TrainOptions(directory=project, script="train.py", on="kubernetes")
    with pytest.raises(UsageError, match="no registry configured") as caught:
        prepare_submission(order, settings)
    assert "[kubernetes]" in caught.value.hint


@pytest.mark.parametrize(
    ("on", "cluster"),
    [
        ("", None),
        ("local", None),
        ("kubernetes", ClusterAddress("own", "team")),
        ("kubernetes:other", ClusterAddress("other", "team")),
        ("kubernetes:other/space", ClusterAddress("other", "space")),
        ("kubernetes:/space", ClusterAddress("own", "space")),
        ("kubernetes:arn:aws:eks:1:cluster/x", ClusterAddress("arn:aws:eks:1:cluster/x", "team")),
    ],
)
def test_target_overrides_context_and_namespace_of_the_configuration(
    on: str, cluster: ClusterAddress | None, settings: Settings
) -> None:
    own = Configuration(kubernetes=KubernetesConfig(context="own", namespace="team"))
    assert find_target(on, msgspec.structs.replace(settings, config=own)).cluster == cluster


def test_unknown_target_is_an_error() -> None:
    with pytest.raises(UsageError, match="context dcoker not found"):
        is_remote("dcoker")
    with pytest.raises(UsageError, match="training jobs do not run in docker"):
        is_remote("docker")


@pytest.mark.parametrize("on", ["kubernetes", "aws"])
def test_environment_is_pushed_and_referenced_by_digest(
    on: str, project: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "train.py").write_text("import torch\n")
    (project / "build.envd").write_text("def build():\n    base(dev=True)\n")
    monkeypatch.setenv("DANLU_HOME", str(tmp_path / "danlu"))
    settings = msgspec.structs.replace(settings, paths=Paths.of())
    trees = TreeLayerSource(tmp_path / "trees")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(FakeRegistry()) as registry,
        Store.open(settings.paths.store) as store,
    ):
        config = Configuration(kubernetes=KubernetesConfig(registry=f"{registry.host}/team/"))
        settings = msgspec.structs.replace(settings, config=config)
        account = SageMakerAccount(ROLE, BUCKET, registry=f"{registry.host}/team")
        context = Context("sagemaker:us-east-1", account=account)
        create_context("aws", context, settings.paths)
        kept = portal.call(_in_store, registry, store, trees, tmp_path)

        def build_image(target: RunTarget, *_: object) -> ContainerImage:
            assert target.project is not None
            assert target.project.portable, "nodes have no project to use packages from"
            return ContainerImage(kept)

        monkeypatch.setattr("danlu.submission.submission.build_target_image", build_image)
        # A child process would be forked from a process with threads.
        monkeypatch.setattr("danlu.sandbox.userns.run_inside", lambda paths, work: work())
        order = TrainOptions(directory=project, script="train.py", on=on)
        sent = prepare_submission(order, settings)
        if on == "aws":
            request = render_request(sent, account, "us-east-1").document
            image = request["AlgorithmSpecification"]["TrainingImage"]
        else:
            pod, _ = render_worker_pod(sent)
            image = pod["spec"]["containers"][0]["image"]
        name, _, digest = image.partition("@")
        assert name == f"{registry.host}/team/project"
        tag = f"{name}:{kept.rpartition(':')[2][:12]}"
        resolve = partial(images.resolve_reference, tag, Platform("linux", "amd64"), config=config)
        assert portal.call(resolve) == digest
        manifest = json.loads(registry.manifests["team/project", digest][0])
        assert manifest["config"]["digest"] == kept, "the image is the environment's"


async def _in_store(
    registry: FakeRegistry, store: Store, trees: TreeLayerSource, scratch: Path
) -> str:
    """Add a small image to the store; return its config digest."""
    config = Configuration()
    image = image_of(trees, [{"a": "1"}])
    name = f"{registry.host}/origin:1"
    digest = await images.push(name, image, trees, config=config, scratch=scratch / "scratch")
    pulled = await images.pull(
        name, digest, store=store, config=config, transfer=lambda *moved: None
    )
    layers = [layer.diff_id for layer in pulled.layers]
    return store.put_image(pulled.config, layers, names=[], metadata={}).digest
