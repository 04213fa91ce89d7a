"""A standalone build of the Python that runs the tests, and a mirror with it."""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
import tarfile
from pathlib import Path

#: What a build of python-build-standalone does not have either, or what no test needs.
_LEFT_OUT = {"__pycache__", "dist-packages", "idlelib", "site-packages", "test", "tests", "tkinter"}


def add_build(mirror: Path, *, version: str = "", release: str = "20241219") -> Path:
    """Add a build of this Python to a mirror, under the name of ``version``."""
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = (
        f"cpython-{version or platform.python_version()}+{release}-{platform.machine()}"
        "-unknown-linux-gnu-install_only_stripped.tar.gz"
    )
    path = mirror / release / name
    path.parent.mkdir(parents=True, exist_ok=True)
    library = Path(sysconfig.get_path("stdlib"))
    program = Path(sys.executable).resolve()
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        add_program(tar, program, f"python/bin/python{minor}")
        tar.add(library, f"python/lib/python{minor}", filter=exclude_programs)
        headers = Path(sysconfig.get_path("include"))
        if headers.is_dir():  # Debian has them in a package of their own
            tar.add(headers, f"python/include/python{minor}")
        for shared in Path(sysconfig.get_config_var("LIBDIR")).glob(f"libpython{minor}*.so*"):
            if not str(shared).startswith("/usr/lib/"):
                tar.add(shared, f"python/lib/{shared.name}")
    return path


def exclude_programs(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what no test needs, and Debian's links to its configuration in ``/etc``."""
    is_foreign = member.issym() and member.linkname.startswith("/")
    return None if is_foreign or member.name.rpartition("/")[2] in _LEFT_OUT else member


def add_program(tar: tarfile.TarFile, program: Path, name: str) -> None:
    """Add the interpreter; a shared libpython is looked for next to it, wherever it is."""
    data = program.read_bytes()
    own = re.escape(str(program.parent.parent / "lib").encode())
    for match in re.finditer(own + rb"\0", data):
        relative = b"$ORIGIN/../lib"
        data = data[: match.start()] + relative.ljust(len(match[0]), b"\0") + data[match.end() :]
    copy = Path(tar.name).with_name("program")  # type: ignore[arg-type]
    copy.write_bytes(data)
    copy.chmod(0o755)
    tar.add(copy, name)
    copy.unlink()
