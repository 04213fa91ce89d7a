# mypy: ignore-errors
"""A plug-in of pytest: the SDK's tests of its backend for clusters test danlu's instead."""

from kubernetes import client

from danlu.kubeflow import LocalBackend


def create_backend(config):
    """Return danlu's backend with the objects that the test patched."""
    backend = LocalBackend()
    backend.custom_api = client.CustomObjectsApi()
    backend.core_api = client.CoreV1Api()
    return backend


def pytest_collection_modifyitems(items):
    for item in items:
        item.module.KubernetesBackend = create_backend
