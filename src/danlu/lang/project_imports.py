"""Let a ``build.py`` import the Python files beside it, read through the loader."""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from danlu.lang.recorder import Recorder
from danlu.lang.sources import clean

__all__ = ["project_imports"]


class _ProjectFinder(MetaPathFinder, Loader):
    """Finds modules among the project's files; the standard library and danlu come first."""

    def __init__(self, recorder: Recorder, directory: str) -> None:
        self._recorder = recorder
        self._directory = directory
        self._texts: dict[str, str] = {}
        self.found: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top in sys.stdlib_module_names or top == "danlu":
            return None
        if "." in fullname and top not in self.found:
            return None
        base = posixpath.join(self._directory, *fullname.split("."))
        for file, package in ((f"{base}.py", False), (f"{base}/__init__.py", True)):
            text = self._recorder.desk.read(file)
            if text is not None:
                self._texts[fullname] = file
                self.found.append(fullname)
                self._recorder.files.add(file)
                return ModuleSpec(fullname, self, origin=file, is_package=package)
        return None

    def exec_module(self, module: ModuleType) -> None:
        file = self._texts[module.__name__]
        module.__file__ = file
        text = self._recorder.sources.text(file)
        exec(compile(clean(text), file, "exec", dont_inherit=True), module.__dict__)


@contextmanager
def project_imports(recorder: Recorder, file: str) -> Iterator[None]:
    """Make the project's files importable, and forget afterwards what was imported of them."""
    finder = _ProjectFinder(recorder, posixpath.dirname(file))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.found:
            sys.modules.pop(name, None)
