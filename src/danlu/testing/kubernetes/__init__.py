"""A published fake of a Kubernetes API server over real HTTP, a simulated kubelet, and a clock.

The server has no kubelet of its own: tests say what becomes of pods, or have a :class:`Kubelet`
play it, on this server or a real one. Its semantics are held to those of a real server by one
conformance suite, tests/kube/conformance.
"""

from danlu.testing.kubernetes.clock import VirtualClock
from danlu.testing.kubernetes.cluster import Cluster
from danlu.testing.kubernetes.courses import Behaviour, Course, Pod, completes, runs
from danlu.testing.kubernetes.faults import Fault, Logged
from danlu.testing.kubernetes.kubelet import Kubelet
from danlu.testing.kubernetes.server import FakeKubernetes

__all__ = [
    "Behaviour",
    "Cluster",
    "Course",
    "FakeKubernetes",
    "Fault",
    "Kubelet",
    "Logged",
    "Pod",
    "VirtualClock",
    "completes",
    "runs",
]
