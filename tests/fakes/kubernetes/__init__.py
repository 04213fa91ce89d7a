"""A published fake of a Kubernetes API server over real HTTP, a simulated kubelet, and a clock.

The server has no kubelet of its own: tests say what becomes of pods, or have a :class:`Kubelet`
play it, on this server or a real one. Its semantics are held to those of a real server by one
conformance suite, tests/kube/conformance.
"""

from tests.fakes.kubernetes.clock import VirtualClock
from tests.fakes.kubernetes.cluster import FakeCluster
from tests.fakes.kubernetes.faults import ApiFault, LoggedRequest
from tests.fakes.kubernetes.kubelet import Kubelet
from tests.fakes.kubernetes.pod_script import (
    PodBehaviour,
    PodScript,
    SimulatedPod,
    complete_after,
    run_forever,
)
from tests.fakes.kubernetes.server import FakeKubernetes

__all__ = [
    "ApiFault",
    "FakeCluster",
    "FakeKubernetes",
    "Kubelet",
    "LoggedRequest",
    "PodBehaviour",
    "PodScript",
    "SimulatedPod",
    "VirtualClock",
    "complete_after",
    "run_forever",
]
