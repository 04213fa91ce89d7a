"""Orders for a cluster: with a job goes what its replicas need and nodes do not have."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from danlu.commands import shipping
from danlu.commands.places import Cluster, cluster_of, is_away
from danlu.commands.settings import Settings
from danlu.commands.shipping import Call
from danlu.commands.train import TrainOrder, plan, submission
from danlu.commands.traincall import call_order
from danlu.errors import UsageError
from danlu.graph import Platform
from danlu.jobs.kubernetes.documents import prepared
from danlu.jobs.kubernetes.objects import PodObject
from danlu.jobs.kubernetes.results import result_of
from danlu.jobs.types import Image, JobView, Result, Submission
from danlu.sources import image as images
from danlu.store import Store
from danlu.testing.registry import FakeRegistry
from danlu.training.manifest import read_job
from danlu.training.registry import framework_of
from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.types import JobStatus, ReplicaId, ReplicaType
from danlu.util.config import Configuration, Kubernetes
from danlu.util.paths import Paths
from tests.jobs.kubernetes.doing import Done, do
from tests.oci.layers import Trees, image_of

WORKER = ReplicaId(ReplicaType("Worker"), 0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}), Configuration())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def ordered(order: TrainOrder, settings: Settings) -> Submission:
    return submission(
        plan(order, settings=settings), order, settings=settings, progress=lambda event: None
    )


def pod_of(sent: Submission) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first worker's pod, and the ConfigMaps there are."""
    ready = prepared(sent, namespace="default")
    framework = framework_of(sent.job.kind)
    job = read_job(ready.job, framework)
    pod = render_pod(job, framework, WORKER, ServiceTopology(job))
    return pod, {} if ready.code is None else {ready.code["metadata"]["name"]: ready.code}


def test_nothing_is_said_of_a_python_that_a_cluster_has_not(
    project: Path, settings: Settings
) -> None:
    (project / "train.py").write_text("import torch\n")
    place = plan(
        TrainOrder(directory=project, script="train.py", on="kubernetes"), settings=settings
    ).place
    assert place is not None
    assert place.words == ""


def done(sent: Submission, root: Path) -> Done:
    pod, maps = pod_of(sent)
    return do(pod, maps, root)


def result(sent: Submission, ended: Done) -> Result:
    """What is read back from the container's last word."""
    terminated = {"exitCode": ended.code, "message": ended.message}
    statuses = [{"name": "pytorch", "state": {"terminated": terminated}}]
    document = {"metadata": {}, "status": {"containerStatuses": statuses}}
    pod = msgspec.json.decode(msgspec.json.encode(document), type=PodObject)
    view = JobView("job", "PyTorchJob", "pytorch", "Succeeded", JobStatus(), labels=sent.labels)
    return result_of(view, WORKER, pods={WORKER: pod}, report=None)


def test_a_script_travels_with_the_local_modules_that_it_imports(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    (project / "models" / "parts").mkdir(parents=True)
    (project / "models" / "__init__.py").write_text("from models.parts import one\n")
    (project / "models" / "parts" / "__init__.py").write_text("one = 1\n")
    (project / "unused.py").write_text("raise SystemExit\n")
    (project / "train.py").write_text("import models, json\nprint(models.one)\n")
    order = TrainOrder(
        directory=project, script="train.py", framework="pytorch", image="i", on="kubernetes"
    )
    sent = ordered(order, settings)
    assert set(sent.code) == {"train.py", "models/__init__.py", "models/parts/__init__.py"}
    assert done(sent, tmp_path / "pod").log == "1\n"


def test_a_script_in_a_directory_of_its_own_finds_what_is_beside_it(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    (project / "src").mkdir()
    (project / "src" / "train.py").write_text("import near\nprint(near.x)\n")
    (project / "src" / "near.py").write_text("x = 'near'\n")
    order = TrainOrder(
        directory=project, script="src/train.py", framework="pytorch", image="i", on="kubernetes"
    )
    assert done(ordered(order, settings), tmp_path / "pod").log == "near\n"


def call(call: Call, project: Path, settings: Settings, tmp_path: Path) -> Submission:
    order = TrainOrder(directory=project, image="i", on="kubernetes", framework="pytorch")
    files = tmp_path / "files"
    files.mkdir()
    return ordered(call_order(call, order, files=files, every=False, settings=settings), settings)


def test_a_function_is_called_there_and_its_value_comes_back(
    project: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "beside7.py").write_text("import below7\ndef f(x):\n    return below7.y + x\n")
    (project / "below7.py").write_text("y = 40\n")
    monkeypatch.syspath_prepend(str(project))
    import beside7  # type: ignore[import-not-found]

    sent = call(Call(beside7.f, (2,)), project, settings, tmp_path)
    assert set(sent.code) == {"beside7.py", "below7.py"}
    ended = done(sent, tmp_path / "pod")
    assert ended.code == 0, ended.log
    assert shipping.value(result(sent, ended)) == 42


def test_what_a_function_raises_there_comes_back(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    def fails() -> None:
        raise ValueError("x" * 100_000)

    sent = call(Call(fails), project, settings, tmp_path)
    ended = done(sent, tmp_path / "pod")
    assert ended.code == 1
    found = shipping.raised(result(sent, ended))
    assert found is not None
    assert found.text.endswith("x\n")
    assert len(ended.message) <= 4096


def test_a_value_that_is_too_large_for_a_last_word_fails_and_says_so(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    sent = call(Call(lambda: bytes(5000)), project, settings, tmp_path)
    ended = done(sent, tmp_path / "pod")
    assert ended.code == 1
    assert "only 3000 by the last word" in ended.log


def test_a_replica_that_is_not_asked_gives_nothing(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    sent = call(Call(lambda: 1), project, settings, tmp_path)
    pod, maps = pod_of(sent)
    pod["metadata"]["labels"]["training.kubeflow.org/replica-index"] = "1"
    ended = do(pod, maps, tmp_path / "pod")
    assert (ended.code, ended.message) == (0, "")


@pytest.mark.parametrize(
    "fields", [{"host_python": True}, {"image": "i", "volumes": ("/data:/data",)}]
)
def test_what_means_this_machine_is_refused_for_a_cluster(
    project: Path, settings: Settings, fields: dict[str, Any]
) -> None:
    (project / "train.py").write_text("import torch\n")
    order = TrainOrder(directory=project, script="train.py", on="kubernetes", **fields)
    with pytest.raises(UsageError, match="this machine"):
        plan(order, settings=settings)


def test_a_script_without_an_image_is_refused_with_what_to_do(
    project: Path, settings: Settings
) -> None:
    (project / "train.py").write_text("import torch\n")
    order = TrainOrder(directory=project, script="train.py", on="kubernetes")
    with pytest.raises(UsageError, match="in which image") as caught:
        ordered(order, settings)
    assert "--image" in caught.value.hint


def test_an_environment_needs_a_registry_to_be_pushed_to(project: Path, settings: Settings) -> None:
    (project / "train.py").write_text("import torch\n")
    (project / "build.envd").write_text("def build():\n    base(dev=True)\n")
    order = TrainOrder(directory=project, script="train.py", on="kubernetes")
    with pytest.raises(UsageError, match="pushed to") as caught:
        ordered(order, settings)
    assert "[kubernetes]" in caught.value.hint


@pytest.mark.parametrize(
    ("on", "cluster"),
    [
        ("", None),
        ("local", None),
        ("kubernetes", Cluster("own", "team")),
        ("kubernetes:other", Cluster("other", "team")),
        ("kubernetes:other/space", Cluster("other", "space")),
        ("kubernetes:/space", Cluster("own", "space")),
        ("kubernetes:arn:aws:eks:1:cluster/x", Cluster("arn:aws:eks:1:cluster/x", "team")),
    ],
)
def test_a_place_says_what_the_configuration_does_not(
    on: str, cluster: Cluster | None, settings: Settings
) -> None:
    own = Configuration(kubernetes=Kubernetes(context="own", namespace="team"))
    assert cluster_of(on, msgspec.structs.replace(settings, config=own)) == cluster


def test_another_word_is_no_place() -> None:
    with pytest.raises(UsageError, match="no place docker"):
        is_away("docker")


def test_an_environment_is_pushed_and_given_by_its_digest(
    project: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "train.py").write_text("import torch\n")
    (project / "build.envd").write_text("def build():\n    base(dev=True)\n")
    trees = Trees(tmp_path / "trees")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(FakeRegistry()) as registry,
        Store.open(settings.paths.store) as store,
    ):
        config = Configuration(kubernetes=Kubernetes(registry=f"{registry.host}/team/"))
        settings = msgspec.structs.replace(settings, config=config)
        kept = portal.call(_in_store, registry, store, trees, tmp_path)
        monkeypatch.setattr("danlu.commands.trainplace.built", lambda *_: Image(kept))
        # A child process would be forked from one with threads.
        monkeypatch.setattr("danlu.commands.apart.apart", lambda work: work())
        monkeypatch.setattr("danlu.sandbox.userns.enter", lambda paths: None)
        order = TrainOrder(directory=project, script="train.py", on="kubernetes")
        pod, _ = pod_of(ordered(order, settings))
        image = pod["spec"]["containers"][0]["image"]
        name, _, digest = image.partition("@")
        assert name == f"{registry.host}/team/project"
        tag = f"{name}:{kept.rpartition(':')[2][:12]}"
        resolve = partial(images.resolve, tag, Platform("linux", "amd64"), config=config)
        assert portal.call(resolve) == digest


async def _in_store(registry: FakeRegistry, store: Store, trees: Trees, scratch: Path) -> str:
    """The config digest of a small image that the store has."""
    config = Configuration()
    image = image_of(trees, [{"a": "1"}])
    name = f"{registry.host}/origin:1"
    digest = await images.push(name, image, trees, config=config, scratch=scratch / "scratch")
    pulled = await images.pull(
        name, digest, store=store, config=config, transfer=lambda *moved: None
    )
    layers = [layer.diff_id for layer in pulled.layers]
    return store.put_image(pulled.config, layers, names=[], metadata={}).digest
