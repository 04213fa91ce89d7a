"""What hosts of a SageMaker job get is what a framework's nodes get under danlu's other drivers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from danlu.replica_runtime import sagemaker
from danlu.training.framework import Framework
from danlu.training.registry import BUILT_IN_FRAMEWORKS
from scripts.reference.node_templates import NodeTopology, build_job, list_nodes

TEMPLATES = Path(str(sagemaker.__file__)).with_name("node_templates.json")
KNOWN: dict[str, Any] = json.loads(TEMPLATES.read_text(encoding="utf-8"))
FRAMEWORKS = [framework for framework in BUILT_IN_FRAMEWORKS if framework.name in KNOWN]
INTERFACE = "lo"
#: Variables of libraries that connect hosts, whatever the framework.
ADDED = re.compile(
    "_SOCKET_IFNAME|_HOSTID|_HOSTNAME|_MCA_.*(_if_include|_binding_policy|_do_not_resolve)"
)


def describe_host(rank: int, hosts: list[str], **more: Any) -> dict[str, Any]:
    """Return the properties of a host that the program reads."""
    return {
        "additional_framework_parameters": {},
        "current_host": hosts[rank],
        "current_instance_type": "ml.m5.large",
        "distribution_hosts": [],
        "hosts": hosts,
        "network_interface_name": INTERFACE,
        "num_gpus": 8,
        "num_neurons": 0,
        **more,
    }


def read_variables(
    framework: Framework, size: int, directory: Path, *, slots: int = 8
) -> list[dict[str, str]]:
    """Return the variables of every node of a framework's job, in the order of their ranks."""
    job = build_job(framework, size, slots=slots)
    topology = NodeTopology(job, framework, str(directory))
    return [
        {name: str(value) for name, value in framework.build_env(job, node, topology)}
        for node in list_nodes(job)
    ]


def list_hosts(framework: Framework, size: int) -> list[str]:
    job = build_job(framework, size)
    return [NodeTopology(job, framework).host(node) for node in list_nodes(job)]


def test_templates_exist_for_the_frameworks_that_a_user_chooses() -> None:
    assert list(KNOWN) == ["pytorch", "tensorflow", "mpi", "xgboost", "jax"]


@pytest.mark.parametrize("size", [1, 2, 3, 12])
@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_variables_are_those_of_the_framework(
    framework: Framework, size: int, tmp_path: Path
) -> None:
    hosts = list_hosts(framework, size)
    expected = read_variables(framework, size, tmp_path)
    for rank, host in enumerate(hosts):
        properties = describe_host(rank, hosts)
        found = sagemaker.build_rendezvous(properties, framework.name, str(tmp_path))
        assert {name: found[name] for name in expected[rank]} == expected[rank]
        assert {name for name in found.keys() - expected[rank] if not ADDED.search(name)} == set()
        assert (found["NCCL_HOSTID"], found["GLOO_SOCKET_IFNAME"]) == (host, INTERFACE)


@pytest.mark.parametrize("size", [1, 3])
def test_files_and_command_of_mpi_are_those_of_the_framework(size: int, tmp_path: Path) -> None:
    framework = next(framework for framework in FRAMEWORKS if framework.name == "mpi")
    job, hosts = build_job(framework, size, slots=4), list_hosts(framework, size)
    topology = NodeTopology(job, framework, str(tmp_path))
    options = {"sagemaker_mpi_num_of_processes_per_host": 4}
    properties = describe_host(0, hosts, additional_framework_parameters=options)
    sagemaker.build_rendezvous(properties, "mpi", str(tmp_path))
    files = framework.files(job, topology, list_nodes(job))
    assert (tmp_path / "hostfile").read_text() == files["hostfile"].text
    command = sagemaker.build_mpi_command(["pi"], properties, str(tmp_path))
    wrapped = framework.wrap_command(job, list_nodes(job)[0].type, ["pi"])
    assert command[-len(wrapped) :] == list(wrapped)


def test_variables_of_all_frameworks_do_not_contradict_one_another(tmp_path: Path) -> None:
    chosen = [framework for framework in FRAMEWORKS if not framework.starts_processes]
    for size in (1, 2, 3):
        hosts = [f"algo-{number}" for number in range(1, size + 1)]
        for rank in range(size):
            properties = describe_host(rank, hosts)
            every = [
                set(sagemaker.build_rendezvous(properties, framework.name, str(tmp_path)).items())
                for framework in chosen
            ]
            united = set().union(*every)
            assert len(dict(united)) == len(united)
            assert sagemaker.build_rendezvous(properties, "", str(tmp_path)) == dict(united)


@pytest.mark.parametrize(
    ("gpus", "neurons", "processes"), [(8, 0, "auto"), (0, 0, "1"), (0, 2, "2")]
)
def test_torchrun_starts_a_process_per_device(
    gpus: int, neurons: int, processes: str, tmp_path: Path
) -> None:
    properties = describe_host(0, ["a"], num_gpus=gpus, num_neurons=neurons)
    found = sagemaker.build_rendezvous(properties, "pytorch", str(tmp_path))
    assert found["PET_NPROC_PER_NODE"] == processes


@pytest.mark.parametrize(
    ("kind", "switch", "added"),
    [
        ("ml.g5.48xlarge", True, {"FI_PROVIDER": "efa", "NCCL_PROTO": "simple"}),
        ("ml.g5.48xlarge", False, {}),
        ("ml.g5.xlarge", True, {}),
        (
            "ml.p5.48xlarge",
            True,
            {
                "FI_PROVIDER": "efa",
                "NCCL_PROTO": "simple",
                "FI_EFA_USE_DEVICE_RDMA": "1",
                "RDMAV_FORK_SAFE": "1",
            },
        ),
    ],
)
def test_launchers_use_the_network_of_an_instance_type(
    kind: str, switch: bool, added: dict[str, str], tmp_path: Path
) -> None:
    extra = {"sagemaker_torch_distributed_enabled": switch}
    properties = describe_host(
        0, ["a", "b"], current_instance_type=kind, additional_framework_parameters=extra
    )
    found = sagemaker.build_rendezvous(properties, "pytorch", str(tmp_path))
    names = {"FI_PROVIDER", "NCCL_PROTO", "FI_EFA_USE_DEVICE_RDMA", "RDMAV_FORK_SAFE"}
    assert {name: found[name] for name in names & found.keys()} == added


def test_network_that_the_host_does_not_have_is_not_named(tmp_path: Path) -> None:
    properties = describe_host(0, ["a", "b"], network_interface_name="ethwe")
    found = sagemaker.build_rendezvous(properties, "mpi", str(tmp_path))
    assert {name for name in found if "_if_include" in name or "_IFNAME" in name} == set()


def test_host_of_another_instance_group_has_no_rank(tmp_path: Path) -> None:
    properties = describe_host(0, ["a", "b"], distribution_hosts=["b"])
    assert "RANK" not in sagemaker.build_rendezvous(properties, "", str(tmp_path))


@pytest.mark.parametrize(
    ("switches", "variable", "framework"),
    [
        ({}, "", ""),
        ({}, "jax", "jax"),
        ({"sagemaker_mpi_enabled": True}, "jax", "mpi"),
        ({"sagemaker_mpi_enabled": False}, "jax", "jax"),
        ({"sagemaker_torch_distributed_enabled": True}, "", "pytorch"),
        ({"sagemaker_multi_worker_mirrored_strategy_enabled": True}, "", "tensorflow"),
    ],
)
def test_framework_is_the_switch_of_the_job_or_the_variable(
    switches: dict[str, bool], variable: str, framework: str
) -> None:
    properties = describe_host(
        0, ["a"], additional_framework_parameters=switches, framework_module=None
    )
    environment = {"DANLU_TRAIN_FRAMEWORK": variable}
    assert sagemaker.choose_framework(properties, environment) == framework


@pytest.mark.parametrize(
    ("switches", "variable", "message"),
    [
        ({"sagemaker_parameter_server_enabled": True}, "", "enabled is not supported"),
        (
            {"sagemaker_mpi_enabled": True, "sagemaker_torch_distributed_enabled": True},
            "",
            "cannot combine",
        ),
        ({}, "torch", "unknown framework 'torch'"),
    ],
)
def test_what_only_the_toolkit_does_is_refused(
    switches: dict[str, bool], variable: str, message: str
) -> None:
    properties = describe_host(
        0, ["a"], additional_framework_parameters=switches, framework_module=None
    )
    with pytest.raises(sagemaker.StartError, match=message):
        sagemaker.choose_framework(properties, {"DANLU_TRAIN_FRAMEWORK": variable})
