"""A fake Kubernetes API server over real HTTP, a simulated kubelet, and a virtual clock.

The server has no kubelet: tests set the status of pods themselves, or let a :class:`FakeKubelet`
simulate it, on this server or a real one. The conformance suite in tests/kube/conformance compares
its semantics with those of a real server.
"""

from tests.fakes.kubernetes.clock import VirtualClock
from tests.fakes.kubernetes.cluster import FakeCluster
from tests.fakes.kubernetes.faults import ApiFault, LoggedRequest
from tests.fakes.kubernetes.kubelet import FakeKubelet
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
    "FakeKubelet",
    "FakeKubernetes",
    "LoggedRequest",
    "PodBehaviour",
    "PodScript",
    "SimulatedPod",
    "VirtualClock",
    "complete_after",
    "run_forever",
]
