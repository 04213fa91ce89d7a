"""Put byte code into the wheel; everything else is in pyproject.toml.

uv installs without compiling, and with ``PYTHONDONTWRITEBYTECODE`` (common in containers) Python
would compile every module at every start, which takes twice as long. The byte code is for the
Python that builds the wheel, others ignore it. It is of the unchecked kind, because installers set
the times of files as they like.
"""

import compileall
from py_compile import PycInvalidationMode

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithByteCode(build_py):
    """Build as setuptools does, then compile what was built."""

    def run(self) -> None:
        """Copy the modules, and compile them unless the installation is editable."""
        super().run()
        if not self.editable_mode and not compileall.compile_dir(
            self.build_lib,
            quiet=1,
            stripdir=self.build_lib,
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        ):
            raise SystemExit("cannot compile every module")


setup(cmdclass={"build_py": BuildWithByteCode})
