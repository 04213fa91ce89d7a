"""The MPI operator's example ``pi`` with its three manifests, of which only the image is replaced.

The operator's images are Debian with an MPI, too, and have no Python. Their ``sshd`` is not needed.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT, Danlu

pytestmark = [pytest.mark.real, pytest.mark.slow]

EXAMPLES = ROOT / "tests/training/examples/v2beta1"
BUILD = """\
def build():
    base(os="{os}")
    {install}
    io.copy("pi.cc", "/src/")
    run(["mkdir /home/mpiuser", "{compiler} /src/pi.cc -o /home/mpiuser/pi"])
"""
# Like setvars.sh in the operator's image.
INTEL = """\
install.python(version="3.13")
    install.python_packages(name=["impi-rt", "impi-devel"])
    install.apt_packages(name=["g++"])
    runtime.environ(env={"LD_LIBRARY_PATH": "/opt/venv/lib"})"""
INTEL_COMPILER = "g++ -I/opt/venv/include -L/opt/venv/lib -Wl,--no-as-needed -lmpi"


def packages(*names: str) -> str:
    return f"install.apt_packages(name={[*names, 'g++']})"


@pytest.mark.parametrize(
    ("manifest", "os", "install", "compiler"),
    [
        pytest.param(
            "pi", "debian12", packages("openmpi-bin", "libopenmpi-dev"), "mpic++", id="Open MPI 4"
        ),
        pytest.param(
            "pi", "debian13", packages("openmpi-bin", "libopenmpi-dev"), "mpic++", id="Open MPI 5"
        ),
        # With Debian 12's MPICH 4.0 over UCX, MPI_Finalize of one host in two does not return.
        pytest.param(
            "pi-mpich", "debian13", packages("mpich", "libmpich-dev"), "mpic++", id="MPICH"
        ),
        pytest.param("pi-intel", "debian13", INTEL, INTEL_COMPILER, id="Intel MPI"),
    ],
)
def test_pi_is_computed_by_the_ranks_of_two_workers(
    danlu: Danlu, tmp_path: Path, manifest: str, os: str, install: str, compiler: str
) -> None:
    shutil.copy(EXAMPLES / "pi.cc", tmp_path)
    text = (EXAMPLES / f"{manifest}.yaml").read_text()
    (tmp_path / "pi.yaml").write_text(text)
    four = text.replace('"2"', '"4"').replace("slotsPerWorker: 1", "slotsPerWorker: 2")
    (tmp_path / "four.yaml").write_text(four)
    (tmp_path / "build.envd").write_text(BUILD.format(os=os, install=install, compiler=compiler))
    danlu("build", "-t", "pi:1", cwd=tmp_path)
    for file, placed in (("pi.yaml", [0, 1]), ("four.yaml", [0, 0, 1, 1])):
        result = danlu("train", "-f", file, "--image", "pi:1", "--replace", cwd=tmp_path)
        ranks = sorted(re.findall(r"launcher-0 │ (Rank .*)", result.stdout))
        assert ranks == [
            f"Rank {rank} on host pi-worker-{worker}" for rank, worker in enumerate(placed)
        ]
        assert f"Workers: {len(placed)}\n" in result.stdout
        assert "pi is approximately 3.14" in result.stdout
