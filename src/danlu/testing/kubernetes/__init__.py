"""A published fake of a Kubernetes API server over real HTTP, and a clock for tests.

It has no kubelet: tests say what becomes of pods. Its semantics are held to those of a real server
by one conformance suite, tests/kube/conformance.
"""

from danlu.testing.kubernetes.clock import VirtualClock
from danlu.testing.kubernetes.cluster import Cluster
from danlu.testing.kubernetes.faults import Fault, Logged
from danlu.testing.kubernetes.server import FakeKubernetes

__all__ = ["Cluster", "FakeKubernetes", "Fault", "Logged", "VirtualClock"]
