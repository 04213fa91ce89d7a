"""Detect the framework of a script or module from its imports. Nothing is executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from danlu.errors import UsageError
from danlu.project.local_modules import find_imports, parse_source
from danlu.training.framework import Framework
from danlu.training.registry import BUILT_IN_FRAMEWORKS, DEFAULT_FRAMEWORK, list_frameworks
from danlu.util.suggest import did_you_mean

#: Limits of the search through the local modules that a script imports.
_MAX_FILES = 50
_MAX_FILE_BYTES = 4 << 20


class DetectedFramework(msgspec.Struct, frozen=True):
    """The name of a framework, and the import that it was detected by."""

    framework: str
    module: str
    file: str


class _PythonSource(msgspec.Struct, frozen=True):
    """A Python file, and the package that its relative imports start from."""

    path: Path
    package: str = ""


def detect_framework(script: Path) -> DetectedFramework:
    """Return the framework that a script imports, itself or through modules next to it.

    Raises :class:`UsageError` if it imports none, or several that exclude each other.
    """
    return _detect_from_source(_PythonSource(script), script.parent, script.name)


def detect_module_framework(name: str, directory: Path) -> DetectedFramework:
    """Return the framework that a module in ``directory`` imports, itself or through local ones.

    A module that is not there may belong to a framework (``torch.distributed.run``). Raises as
    :func:`detect_framework` does.
    """
    file = find_module(name, directory)
    if file is not None:
        source = _PythonSource(file, relative_import_package(name, file))
        return _detect_from_source(source, directory, f"module {name}")
    top = name.partition(".")[0]
    framework = next((table[top] for table in _module_tables() if top in table), "")
    if not framework:
        raise _no_framework(f"module {name}, which is not in {directory}")
    return DetectedFramework(framework, name, "the command")


def _detect_from_source(source: _PythonSource, root: Path, shown: str) -> DetectedFramework:
    for modules in _module_tables():
        found = _first_match(source, root, modules)
        if len(found) > 1:
            names = " and ".join(sorted(detected.module for detected in found.values()))
            raise UsageError(
                f"cannot detect the training framework: {shown} imports {names}",
                hint=f"choose one, for example --framework {sorted(found)[0]}",
            )
        if found:
            return next(iter(found.values()))
    raise _no_framework(shown)


def _module_tables() -> Iterator[Mapping[str, str]]:
    """Yield tables of modules and their frameworks' names; the first that has any match wins.

    Those of installed packages come last, because they must be searched for.
    """
    yield from _tabulate_modules(BUILT_IN_FRAMEWORKS)
    yield from _tabulate_modules(list_frameworks()[len(BUILT_IN_FRAMEWORKS) :])


def _tabulate_modules(frameworks: Sequence[Framework]) -> Iterator[Mapping[str, str]]:
    for first in (True, False):
        chosen = [framework for framework in frameworks if framework.starts_processes is first]
        yield {module: framework.name for framework in chosen for module in framework.modules}


def _no_framework(shown: str) -> UsageError:
    default = DEFAULT_FRAMEWORK.name
    others = ", ".join(known.name for known in list_frameworks() if known.name != default)
    return UsageError(
        f"cannot detect a training framework in {shown}",
        hint=f"--framework {default} serves any script, which finds its rank in RANK and WORLD_SIZE"
        f" (others: {others}); to run a script once use `danlu run`",
    )


def _first_match(
    source: _PythonSource, root: Path, modules: Mapping[str, str]
) -> dict[str, DetectedFramework]:
    """Return the frameworks of the first file that imports any of ``modules``, by name."""
    for file, imports in _local_sources(source, root):
        found: dict[str, DetectedFramework] = {}
        for name in imports:
            top = name.partition(".")[0]
            if top in modules:
                shown = file.relative_to(root).as_posix()
                found.setdefault(modules[top], DetectedFramework(modules[top], top, shown))
        if found:
            return found
    return {}


def _local_sources(source: _PythonSource, root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the file and the local files it imports, breadth first, with the imports of each."""
    queue, seen = [source], {source.path}
    while queue and len(seen) <= _MAX_FILES:
        current = queue.pop(0)
        imports = _read_imports(current)
        yield current.path, imports
        for imported in (file for name in imports for file in _local_files(name, root)):
            if imported.path not in seen and imported.path.is_file():
                seen.add(imported.path)
                queue.append(imported)


def _local_files(module: str, root: Path) -> Iterator[_PythonSource]:
    """Yield the files below ``root`` that an import of ``module`` would run."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        dotted, path = ".".join(parts[:count]), root.joinpath(*parts[:count])
        yield _PythonSource(path / "__init__.py", dotted)
        yield _PythonSource(path.with_name(f"{path.name}.py"), dotted.rpartition(".")[0])


def _read_imports(source: _PythonSource) -> list[str]:
    """Return the modules that a file imports, in order; none if it is not readable Python."""
    try:
        if source.path.stat().st_size > _MAX_FILE_BYTES:
            return []
        tree = parse_source(source.path.read_bytes())
    except OSError:
        return []
    return [] if tree is None else list(dict.fromkeys(find_imports(tree, package=source.package)))


# -- modules --------------------------------------------------------------------------------------


def find_module(name: str, directory: Path) -> Path | None:
    """Return the file that ``python -m NAME`` runs in ``directory``; None if it is not local.

    A module that is not local must be installed where the job runs. Raises :class:`UsageError` for
    an invalid name, and if a local package has no such module.
    """
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts) or name.endswith(".py"):
        dotted = name.removesuffix(".py").replace("/", ".").strip(".")
        raise UsageError(
            f"invalid module name {name!r}",
            hint=f"write it as for `python -m`: {dotted or 'package.module'}",
        )
    path = directory.joinpath(*parts)
    for file in (path / "__main__.py", path.with_name(f"{parts[-1]}.py")):
        if file.is_file():
            return file
    if (path / "__init__.py").is_file():
        raise UsageError(
            f"{name} is a package and cannot be run: it has no module __main__",
            hint=f"name one of its modules, or create {'/'.join(parts)}/__main__.py",
        )
    if _is_local(parts[0], directory):
        raise UsageError(
            f"module {name} not found in {directory}", hint=_module_hint(name, directory)
        )
    return None


def relative_import_package(name: str, file: Path) -> str:
    """Return the package that relative imports in a module start from."""
    return name if file.name == "__main__.py" else name.rpartition(".")[0]


def _is_local(top: str, directory: Path) -> bool:
    """Return whether ``directory`` has a module or package of that name, which Python imports."""
    return (directory / f"{top}.py").is_file() or any((directory / top).glob("*.py"))


def _module_hint(name: str, directory: Path) -> str:
    prefix, _, last = name.rpartition(".")
    files = (
        directory.joinpath(*prefix.split(".")).glob("*.py") if prefix else directory.glob("*.py")
    )
    modules = [file.stem for file in files if not file.stem.startswith("__")]
    return did_you_mean(
        last,
        modules,
        template=f"{prefix}.{{}}" if prefix else "{}",
        otherwise="name it relative to the current directory, where it runs",
    )
