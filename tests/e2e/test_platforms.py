"""Images for another processor, built here."""

from __future__ import annotations

import json
import struct
import tarfile
from pathlib import Path

import pytest

from danlu.sandbox import emulation
from tests.e2e.conftest import Project

pytestmark = pytest.mark.real

ARM64 = 183
CLASSIFY = """
import platform
from sklearn.datasets import load_digits
from sklearn.svm import SVC
images, labels = load_digits(return_X_y=True)
model = SVC().fit(images[:500], labels[:500])
print(platform.machine(), model.score(images[500:], labels[500:]) > 0.8)
"""
FOREIGN = pytest.mark.skipif(
    emulation.host_platform().architecture != "amd64", reason="arm64 is not foreign on this machine"
)


def read_machines(image: tarfile.TarFile) -> dict[str, int]:
    """The processor of each program and library in a tar (``e_machine``)."""
    machines = {}
    for member in image:
        if member.isfile() and member.size > 64:
            file = image.extractfile(member)
            assert file is not None
            head = file.read(20)
            if head.startswith(b"\x7fELF"):
                machines[member.name.removeprefix("./")] = struct.unpack("<H", head[18:20])[0]
    return machines


@FOREIGN
@pytest.mark.slow
def test_arm64_image_of_the_digits_example_has_only_programs_for_arm64(
    project: Project, tmp_path: Path
) -> None:
    project.write('install.python_packages(name=["scikit-learn"])')
    file = tmp_path / "image.tar"
    project("build", "--platform", "linux/arm64", "-t", "digits:arm", "-o", f"type=tar,dest={file}")
    with tarfile.open(file) as image:
        names = {member.name.removeprefix("./") for member in image}
        status = (
            image.extractfile("var/lib/dpkg/status") if "var/lib/dpkg/status" in names else None
        )
        assert status is not None
        text = status.read().decode()
    with tarfile.open(file) as image:
        machines = read_machines(image)
    assert {"usr/bin/dash", "usr/bin/python3.11"} <= set(machines)
    assert any("sklearn/" in name for name in machines)
    assert set(machines.values()) == {ARM64}
    assert not [name for name in names if "x86_64-linux-gnu/" in name or "danlu-tools" in name]
    assert "danlu-tools" not in text
    assert text.count("Status: install ok installed") == text.count("\nPackage: ") + 1
    assert "Architecture: amd64" not in text
    # What maintainer scripts do: users, alternatives.
    assert {"etc/passwd", "etc/shadow", "etc/alternatives/awk"} <= names
    # Starts under QEMU, or says how to have it.
    command = ("run", "--image", "digits:arm", "--", "python", "-c", CLASSIFY)
    result = project(*command, check=False)
    if emulation._executes_programs("arm64"):
        assert result.stdout.split() == ["aarch64", "True"], result.stderr
    else:
        assert result.returncode == 125
        assert "qemu-user-static" in result.stderr
    output = json.loads(project("image", "show", "digits:arm", "--format", "json").stdout)
    assert output["config"]["architecture"] == "arm64"
