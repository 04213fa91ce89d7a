"""Pod templates on this machine: variables, references, commands, limits."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.errors import UsageError
from danlu.jobs.local.pod import PodContext, ReplicaContainer, build_pod, requested_gpus
from danlu.jobs.types import ContainerImage
from danlu.sandbox.types import ResourceLimits
from danlu.training.pod_template import escape_references, expand_references
from danlu.util.quantity import parse_quantity
from tests.jobs.local.support import spec, submission, worker

DIRECTORY = Path("/project")
AROUND = PodContext(
    worker(0), 0, mark="m", main="pytorch", host="job-worker-0", address="127.64.0.9", hosts={}
)
OBJECTS: Mapping[str, Mapping[str, Any]] = {
    "ConfigMap/settings": {"data": {"rate": "0.1"}, "binaryData": {"b": "eA=="}},
    "Secret/keys": {
        "data": {"token": base64.b64encode(b"hidden").decode()},
        "stringData": {"plain": "text"},
    },
}


def build_main_container(
    container: Mapping[str, Any], around: PodContext = AROUND, **fields: Any
) -> ReplicaContainer:
    """The main container of a pod of one."""
    pod = {
        "metadata": {"name": "job-worker-0", "namespace": "team", "labels": {"a/b": "label"}},
        "spec": {"containers": [{"name": "pytorch", "image": "i", **container}]},
    }
    return build_pod(pod, submission(DIRECTORY, spec(""), objects=OBJECTS, **fields), around).main


def variable(**source: Any) -> str | None:
    entry = {"name": "X", "valueFrom": source}
    return build_main_container({"command": ["true"], "env": [entry]}).environment.get("X")


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("a$$b", "a$b"),
    ],
)
def test_references_are_expanded_like_in_kubernetes(text: str, result: str) -> None:
    assert expand_references(text, {"A": "1", "B": "2"}.get) == result


@pytest.mark.parametrize(
    "text", ["a$$b", "$$", "$(A)", "$$(A)", "$", "$$$(A)", "$A ${A}", "$(A", "a$", "$$$", "x$(", ""]
)
def test_escaped_text_is_expanded_to_itself(text: str) -> None:
    escaped = escape_references(text)
    assert expand_references(escaped, {"A": "1"}.get) == text
    if "$$" not in text and "$(" not in text:
        assert escaped == text  # readable in a manifest


def test_a_variable_may_refer_to_earlier_ones_and_a_command_to_all() -> None:
    env = [
        {"name": "EARLY", "value": "$(LATE)"},
        {"name": "LATE", "value": "1"},
        {"name": "LAST", "value": "$(LATE)2"},
    ]
    main_container = build_main_container(
        {"command": ["run", "$(LAST)"], "args": ["$(EARLY)"], "env": env}
    )
    assert dict(main_container.environment) == {"EARLY": "$(LATE)", "LATE": "1", "LAST": "12"}
    assert main_container.args == ("run", "12", "$(LATE)")


def test_fields_of_the_pod_can_be_variables() -> None:
    assert variable(fieldRef={"fieldPath": "status.podIP"}) == "127.64.0.9"
    assert variable(fieldRef={"fieldPath": "metadata.name"}) == "job-worker-0"
    assert variable(fieldRef={"fieldPath": "metadata.namespace"}) == "team"
    assert variable(fieldRef={"fieldPath": "metadata.labels['a/b']"}) == "label"
    with pytest.raises(UsageError, match=r"unknown field 'status\.pod'"):
        variable(fieldRef={"fieldPath": "status.pod"})


def test_config_maps_and_secrets_of_the_same_file_can_be_variables() -> None:
    assert variable(configMapKeyRef={"name": "settings", "key": "rate"}) == "0.1"
    assert variable(secretKeyRef={"name": "keys", "key": "token"}) == "hidden"
    assert variable(secretKeyRef={"name": "none", "key": "a", "optional": True}) is None
    assert variable(configMapKeyRef={"name": "settings", "key": "a", "optional": True}) is None
    with pytest.raises(UsageError, match="ConfigMap 'none' not found"):
        variable(configMapKeyRef={"name": "none", "key": "a"})
    with pytest.raises(UsageError, match="has no key 'a'"):
        variable(configMapKeyRef={"name": "settings", "key": "a"})


def test_resource_field_without_a_limit_is_what_this_machine_has() -> None:
    assert float(variable(resourceFieldRef={"resource": "limits.cpu"}) or 0) >= 1
    memory = variable(resourceFieldRef={"resource": "limits.memory", "divisor": "1Mi"})
    assert int(memory or 0) > 16
    assert variable(resourceFieldRef={"resource": "requests.cpu"}) == "0"


def test_resource_field_may_be_of_another_container() -> None:
    reference = {"containerName": "other", "resource": "limits.cpu"}
    env = [{"name": "X", "valueFrom": {"resourceFieldRef": reference}}]
    own = {"name": "pytorch", "image": "i", "command": ["true"], "env": env}
    other = {"name": "other", "image": "i", "resources": {"limits": {"cpu": 3}}}
    given = submission(DIRECTORY, spec(""))
    pod = {"spec": {"containers": [own, other]}}
    assert build_pod(pod, given, AROUND).main.environment["X"] == "3"
    with pytest.raises(UsageError, match="container 'other' not found"):
        build_pod({"spec": {"containers": [own]}}, given, AROUND)


def test_sub_path_is_expanded_and_created(tmp_path: Path) -> None:
    mount = {"name": "v", "mountPath": "/m", "subPathExpr": "$(A)/x"}
    container = {"command": ["true"], "env": [{"name": "A", "value": "1"}], "volumeMounts": [mount]}
    tmp_path.chmod(0o777)
    around = msgspec.structs.replace(AROUND, volumes={"v": tmp_path})
    (volume,) = build_main_container(container, around).volumes
    assert volume.source == tmp_path / "1/x"
    assert [path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")] == [0o777, 0o777]
    with pytest.raises(UsageError, match="invalid path"):
        build_main_container({**container, "env": []}, around)


def test_a_link_out_of_a_volume_is_no_part_of_it(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "real").mkdir(parents=True)
    (volume / "out").symlink_to(tmp_path)
    (volume / "link").symlink_to("real")
    around = msgspec.structs.replace(AROUND, volumes={"v": volume})
    for path in ("out", "out/private"):
        mount = {"name": "v", "mountPath": "/m", "subPath": path}
        with pytest.raises(UsageError, match=f"{path} is a link out of the volume"):
            build_main_container({"command": ["true"], "volumeMounts": [mount]}, around)
    assert [path.name for path in tmp_path.iterdir()] == ["volume"]
    mount = {"name": "v", "mountPath": "/m", "subPath": "link/below"}
    (found,) = build_main_container({"command": ["true"], "volumeMounts": [mount]}, around).volumes
    assert found.source == volume / "real/below"


def test_explicit_variables_win_over_env_from() -> None:
    container = {
        "command": ["true"],
        "envFrom": [
            {"configMapRef": {"name": "settings"}, "prefix": "C_"},
            {"secretRef": {"name": "keys"}},
            {"secretRef": {"name": "none", "optional": True}},
        ],
        "env": [{"name": "plain", "value": "mine"}],
    }
    assert dict(build_main_container(container).environment) == {
        "C_rate": "0.1",
        "token": "hidden",
        "plain": "mine",
    }


def test_a_limit_can_be_a_variable() -> None:
    container = {
        "command": ["true"],
        "resources": {"limits": {"memory": "1Gi", "cpu": "1500m"}},
        "env": [
            {
                "name": "M",
                "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
            },
            {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ],
    }
    main_container = build_main_container(container)
    assert (main_container.environment["M"], main_container.environment["C"]) == ("1024", "2")
    assert main_container.limits == ResourceLimits(1.5, 1 << 30)


def test_a_process_uses_the_given_python_and_project() -> None:
    main_container = build_main_container(
        {"command": ["python3", "train.py"]}, python="/env/bin/python"
    )
    assert main_container.args == ("/env/bin/python", "train.py")
    assert main_container.environment["PATH"].startswith("/env/bin:")
    assert main_container.directory == "/project"
    assert (
        build_main_container({"command": ["x"], "workingDir": "/workspace/a"}).directory
        == "/project/a"
    )
    assert (
        build_main_container({"command": ["x"], "workingDir": "/elsewhere"}).directory
        == "/elsewhere"
    )


def test_a_container_with_an_image_is_not_adapted_to_the_host() -> None:
    images = {"i": ContainerImage("sha256:1", "i")}
    main_container = build_main_container(
        {"args": ["train.py"]}, images=images, python="/env/bin/python"
    )
    assert (main_container.image, main_container.args, main_container.directory) == (
        "sha256:1",
        ("train.py",),
        "",
    )
    assert main_container.arguments
    assert "PATH" not in main_container.environment
    assert [(mount.target, mount.source) for mount in main_container.volumes] == [
        ("/workspace", DIRECTORY)
    ]


def test_volumes_are_mounted_where_the_container_says(tmp_path: Path) -> None:
    around = msgspec.structs.replace(AROUND, volumes={"data": tmp_path})
    mounts = [
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "data", "mountPath": "/part", "subPath": "a/b"},
        {"name": "unknown", "mountPath": "/gone"},
    ]
    main_container = build_main_container({"command": ["x"], "volumeMounts": mounts}, around)
    assert [
        (mount.target, str(mount.source), mount.readonly) for mount in main_container.volumes
    ] == [
        ("/data", str(tmp_path), True),
        ("/part", str(tmp_path / "a/b"), False),
    ]


MOUNTED = {"volumeMounts": [{"name": "data", "mountPath": "/workspace"}]}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("/workspace", "/made/data"),
        ("--data=/workspace/dataset/data", "--data=/made/data/dataset/data"),
        ("cat '/workspace/a' /workspace", "cat '/made/data/a' /made/data"),
        ("/a:/workspace/b", "/a:/made/data/b"),
        ("/workspace/../x", "/made/data/../x"),
        ("/workspaces/x /workspace-2 /workspace.txt", None),
        ("/home/workspace ./workspace http://host/workspace s3://workspace/x", None),
    ],
)
def test_a_process_finds_a_volume_by_the_path_of_its_mount(text: str, result: str | None) -> None:
    around = msgspec.structs.replace(AROUND, volumes={"data": Path("/made/data")})
    env = [{"name": "DATA", "value": text}]
    process = build_main_container({"command": [text], "env": env, **MOUNTED}, around)
    expected = text if result is None else result
    assert (process.args, process.environment["DATA"]) == ((expected,), expected)


@pytest.mark.parametrize(
    ("word", "result"),
    [
        ("/workspace/project/train.py", None),
        ("/workspace/env/bin/python", None),
        ("/workspace/home/data/x", None),
        ("/workspace/projects/x", "/workspace/home/data/projects/x"),
        ("/workspace/dataset", "/workspace/home/data/dataset"),
    ],
)
def test_paths_of_this_machine_below_a_mount_stay(word: str, result: str | None) -> None:
    source = Path("/workspace/home/data")
    around = msgspec.structs.replace(AROUND, volumes={"data": source})
    pod = {"spec": {"containers": [{"name": "pytorch", "command": ["ls", word], **MOUNTED}]}}
    project, python = Path("/workspace/project"), "/workspace/env/bin/python"
    process = build_pod(pod, submission(project, spec(""), python=python), around).main
    assert process.args[1] == (word if result is None else result)


def test_a_volume_wins_over_a_project_at_its_path() -> None:
    around = msgspec.structs.replace(AROUND, volumes={"data": Path("/made/data")})
    pod = {
        "spec": {"containers": [{"name": "pytorch", "command": ["ls", "/workspace/x"], **MOUNTED}]}
    }
    process = build_pod(pod, submission(Path("/workspace"), spec("")), around).main
    assert process.args[1] == "/made/data/x"


def test_the_memory_of_a_process_stays_that_of_the_host() -> None:
    around = msgspec.structs.replace(AROUND, volumes={"data": Path("/made/data")})
    mount = {"volumeMounts": [{"name": "data", "mountPath": "/dev/shm"}]}
    assert build_main_container({"command": ["ls", "/dev/shm"], **mount}, around).args == (
        "ls",
        "/dev/shm",
    )


def test_a_process_starts_in_a_volume_at_its_working_directory() -> None:
    around = msgspec.structs.replace(AROUND, volumes={"data": Path("/made/data")})
    process = build_main_container(
        {"command": ["x"], "workingDir": "/workspace/a", **MOUNTED}, around
    )
    assert process.directory == "/made/data/a"


def test_the_project_does_not_hide_a_volume_at_its_path() -> None:
    around = msgspec.structs.replace(AROUND, volumes={"data": Path("/made/data")})
    images = {"i": ContainerImage("sha256:1", "i")}
    contained = build_main_container(
        {"command": ["/workspace/x"], **MOUNTED}, around, images=images
    )
    assert contained.args == ("/workspace/x",)
    assert [(mount.target, mount.source) for mount in contained.volumes] == [
        ("/workspace", Path("/made/data")),
        ("/run/danlu-project", DIRECTORY),
    ]


def test_gpus_are_assigned_to_containers_in_order() -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": 2}}}
    around = msgspec.structs.replace(AROUND, gpus=(3, 5))
    assert requested_gpus({"spec": {"containers": [limits, {}]}}) == 2
    assert build_main_container({"command": ["x"], **limits}, around).limits.gpus == (3, 5)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("500m", 0.5), ("1.5Gi", 1.5 * (1 << 30)), ("2e3", 2000), ("100M", 1e8), (4, 4)],
)
def test_quantities_are_parsed(text: object, number: float) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["", "x", "1Q", "1 2", "--1"])
def test_an_invalid_quantity_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="invalid quantity"):
        parse_quantity(text)
