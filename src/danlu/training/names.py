"""Names of annotations and objects that the operator and its client agree on.

The two never import each other. Kubeflow's pod labels are in :mod:`danlu.training.rendering`.
"""

from __future__ import annotations

from danlu.training.types import API_VERSION

KUBEFLOW_GROUP, _, KUBEFLOW_VERSION = API_VERSION.partition("/")
"""The API group and version of all kinds: ``kubeflow.org``, ``v1``."""

ANNOTATION_PREFIX = "danlu.dev"

REPORTS_ANNOTATION = f"{ANNOTATION_PREFIX}/reports"
"""Annotation of a job whose replicas report ``progress``, or ``progress,values``.

The operator then sets the variables of the training-progress protocol in every replica, and stores
the reports in the ConfigMap :func:`reports_config_map_name`.
"""

MAX_RESULT_BYTES = 700 << 10
"""The size limit of all values of a job together: a ConfigMap holds 1 MiB, in base64."""

MAX_TERMINATION_MESSAGE_BYTES = 3000
"""The size limit of a value in a termination message (4096 bytes, kubelet), in base64."""

SUBMITTER_LEASE_ANNOTATION = f"{ANNOTATION_PREFIX}/tied"
"""Annotation of a job: the name of a Lease that its submitter renews, in the same namespace.

The operator stops the job if it sees no renewal within the Lease's duration. It measures with its
own clock from the last change it saw, because the two clocks may differ.
"""

STOPPED_ANNOTATION = f"{ANNOTATION_PREFIX}/stopped"
"""Annotation of a job that was stopped, and by whom: its user, or the end of its submitter.

To stop a job, set this and ``spec.runPolicy.suspend`` in one patch, so that Kubeflow's own operator
ends its pods as well.
"""

FINISH_TIMEOUT_ANNOTATION = f"{ANNOTATION_PREFIX}/finish-timeout"
"""Annotation of a job: how long other replicas may go on after it succeeded (``90s``, ``1h``).

Without it Kubeflow's rule applies: the job ends at once.
"""

RESTART_POLICY_ANNOTATION = f"{ANNOTATION_PREFIX}/restart-policy"
"""Annotation of a job: ``Job`` recreates all replicas together if one fails.

At most ``spec.runPolicy.backoffLimit`` times. Kubeflow's own operator ignores it, and restarts
replicas by their own policies.
"""

WHOLE_JOB = "Job"
"""The value of that annotation, and of the option ``--restart``."""

KUEUE_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of a job: the LocalQueue of Kueue that it waits in, suspended, for quota."""

STATUS_FIELD = "danlu"
"""The field of a TrainJob's status with the state of the operator: Trainer's has no room for it."""

SNAPSHOT_KEY = "runtime"
"""The key of the runtime in the ConfigMap :func:`runtime_snapshot_name`, as YAML."""

SSH_AUTH_TYPE = "kubernetes.io/ssh-auth"
"""The type of a Secret with keys of ssh. The operator generates them when it creates one."""

SSH_PRIVATE_KEY, SSH_PUBLIC_KEY = "ssh-privatekey", "ssh-publickey"
"""The fields of that Secret; the first name is Kubernetes', the second the MPI operator's."""

LABELS_ANNOTATION = f"{ANNOTATION_PREFIX}/labels"
"""Annotation of a job: its submission's labels as JSON (Kubernetes' labels allow less)."""


def runtime_snapshot_name(job: str) -> str:
    """Return the name of the ConfigMap with the runtime of a TrainJob (Kubeflow Trainer's name)."""
    return f"{job}-runtime-snapshot"


def code_config_map_name(job: str) -> str:
    """Return the name of the ConfigMap with the code that was sent with the job."""
    return f"{job}-code"


def reports_config_map_name(job: str) -> str:
    """Return the name of the ConfigMap with what replicas reported: progress, values, errors."""
    return f"{job}-reports"


def submitter_lease_name(job: str) -> str:
    """Return the name of the Lease that its submitter renews."""
    return f"{job}-submitter"
