"""MPI over ssh between the pods of a cluster: keys in a Secret, names from a headless Service.

Volumes and variables are those of the MPI operator 0.8.2 (``pkg/controller``) and of Kubeflow
Trainer (``plugins/mpi``). Each implementation's variables are followed by those that Open MPI 5 and
PRRTE read instead: without them all ranks run in the launcher, and the job succeeds
(kubeflow/mpi-operator#842).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from danlu.training.framework import EnvVar
from danlu.training.names import SSH_AUTH_TYPE, SSH_PRIVATE_KEY, SSH_PUBLIC_KEY

OPEN_MPI, INTEL, MPICH = IMPLEMENTATIONS = ("OpenMPI", "Intel", "MPICH")
ROOT_DIRECTORY = "/root/.ssh"
# A host whose server does not listen yet is tried again every second.
ARGUMENTS = "-o ConnectionAttempts=10"

# The directory of a Secret's volume can be written by all, which the server would refuse.
SERVER = ("/usr/sbin/sshd", "-De", "-oStrictModes=no")


def list_variables(implementation: str, *, hosts: str, slots: str) -> list[EnvVar]:
    """Return where an implementation finds the file of its ``hosts``, and how it calls ssh."""
    variables: Mapping[str, list[EnvVar]] = {
        OPEN_MPI: [
            ("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
            ("OMPI_MCA_orte_default_hostfile", hosts),
            ("OMPI_MCA_plm_rsh_args", ARGUMENTS),
            ("OMPI_MCA_orte_set_default_slots", slots),
        ],
        INTEL: [
            ("I_MPI_HYDRA_HOST_FILE", hosts),
            ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", ARGUMENTS),
            ("I_MPI_PERHOST", slots),
        ],
        MPICH: [("HYDRA_HOST_FILE", hosts), ("HYDRA_LAUNCH_EXTRA_ARGS", ARGUMENTS)],
    }
    return variables[implementation]


def list_prrte_variables(*, hosts: str, slots: str) -> list[EnvVar]:
    """Return the variables of Open MPI 5.

    PRTE must not compare full names: it knows the launcher by its short one, and would take that in
    the file of hosts for another host (kubeflow/trainer#4029).
    """
    return [
        ("PRTE_MCA_prte_keep_fqdn_hostnames", "false"),
        ("PRTE_MCA_prte_default_hostfile", hosts),
        ("PRTE_MCA_plm_ssh_args", ARGUMENTS),
        ("PRTE_MCA_prte_set_default_slots", slots),
    ]


def describe_secret(metadata: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the Secret of a job's keys, which the operator generates when it creates it."""
    kind = {"apiVersion": "v1", "kind": "Secret", "type": SSH_AUTH_TYPE}
    return {**kind, "metadata": metadata, **fields}


def key_volume(
    name: str, secret: str, *, mode: int | None = None, modes: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Return the volume of a job's keys; ``modes`` are those of the private and the public key."""
    files = {"id_rsa": SSH_PRIVATE_KEY, "id_rsa.pub": SSH_PUBLIC_KEY}
    items: list[dict[str, Any]] = [
        {"key": key, "path": path}
        for path, key in {**files, "authorized_keys": SSH_PUBLIC_KEY}.items()
    ]
    if modes is not None:
        private, public = modes
        items = [
            {**item, "mode": private if item["key"] == SSH_PRIVATE_KEY else public}
            for item in items
        ]
    source: dict[str, Any] = {"secretName": secret, "items": items}
    return {"name": name, "secret": source if mode is None else {**source, "defaultMode": mode}}
