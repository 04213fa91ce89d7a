"""What a pickle needs of the Python that reads it: modules, and versions of libraries.

Both sides load it: the notebook, and the replica (see ``cell.py``), whose Python may be old.
"""

import io
import pickle
import re
import sys

#: What every Python reads alike: a pickle that mentions no more needs no versions compared.
PLAIN = frozenset(
    ("builtins", "_codecs", "collections", "copyreg", "datetime", "decimal", "fractions", "uuid")
)

# -- what a pickle mentions -----------------------------------------------------------------------


class _Anything(type):
    """Calls, attributes and items of the class :class:`_Any` all do nothing and give it again."""

    def __call__(cls, *args: object, **kwargs: object) -> object:
        return cls

    def __setitem__(cls, key: object, value: object) -> None:
        pass

    def __setstate__(cls, state: object) -> None:
        pass

    def append(cls, item: object) -> None:
        pass

    extend = add = append


class _Any(metaclass=_Anything):
    def __new__(cls, *args: object, **kwargs: object) -> "type[_Any]":  # type: ignore[misc]
        return cls


class _Reader(pickle.Unpickler):
    """Goes through a pickle at the speed of C, and imports and makes nothing of it."""

    def __init__(self, file: "object") -> None:
        super().__init__(file)  # type: ignore[arg-type]
        self.modules: set[str] = set()

    def find_class(self, module: str, name: str) -> object:
        self.modules.add(module)
        if (module.partition(".")[0], name) in (
            ("cloudpickle", "subimport"),
            ("importlib", "import_module"),
        ):
            return self._imported
        return _Any

    def _imported(self, name: str, *rest: object) -> object:
        self.modules.add(name)
        return _Any


def mentioned(data: bytes) -> "list[str]":
    """The modules that reading a pickle would import, sorted; none of them is imported now."""
    reader = _Reader(io.BytesIO(data))
    reader.load()
    return sorted(reader.modules)


# -- what there is --------------------------------------------------------------------------------


def python() -> str:
    """The version of this Python: ``3.11.7``."""
    return ".".join(map(str, sys.version_info[:3]))


def libraries(modules: "list[str]") -> "dict[str, list[str]]":
    """Of each library among the modules its distribution and version, by top-level name."""
    found = {}
    for name in sorted({one.partition(".")[0] for one in modules}):
        if name == "__main__" or name in getattr(sys, "stdlib_module_names", PLAIN):
            continue
        known = _distribution(name)
        if known is not None:
            found[name] = known
    return found


def _distribution(module: str) -> "list[str] | None":
    """The distribution that a top-level module comes from, and its version."""
    try:
        from importlib import metadata
    except ImportError:
        return _told(module)
    try:
        return [module, metadata.version(module)]
    except metadata.PackageNotFoundError:
        pass
    for one in metadata.distributions():
        if module in _tops(one):
            return [str(one.metadata["Name"]), str(one.version)]
    return _told(module)


def _tops(distribution: "object") -> "set[str]":
    read = distribution.read_text  # type: ignore[attr-defined]
    listed = read("top_level.txt") or ""
    if listed.strip():
        return set(listed.split())
    return {line.partition("/")[0] for line in (read("RECORD") or "").splitlines() if "/" in line}


def _told(module: str) -> "list[str] | None":
    """What a module that is already imported says of itself."""
    version = getattr(sys.modules.get(module), "__version__", None)
    return [module, version] if isinstance(version, str) else None


def differences(
    wrote: str, modules: "list[str]", versions: "dict[str, list[str]]"
) -> "list[tuple[str, str, str]]":
    """What keeps this Python from reading a pickle: ``(what, there, here)``, or nothing.

    ``wrote`` is the Python that wrote it, ``modules`` what it mentions, ``versions`` its libraries.
    Of a Python and of a library the first two numbers count. A pickle that mentions none but plain
    classes is read by every Python since 3.8.
    """
    found = []
    plain = set(modules) <= PLAIN and sys.version_info >= (3, 8)
    if not plain and not _alike(wrote, python()):
        found.append(("Python", wrote, python()))
    for module, (distribution, version) in sorted(versions.items()):
        here = _version_here(module, distribution)
        if here != version and not (here and _alike(version, here)):
            found.append((distribution, version, here or "not there"))
    return found


def _version_here(module: str, distribution: str) -> str:
    """The version of a library, empty where it is not installed."""
    try:
        from importlib import metadata

        return str(metadata.version(distribution))
    except ImportError:  # PackageNotFoundError is one
        pass
    known = _distribution(module)
    if known is None:
        try:
            __import__(module)
        except Exception:
            return ""
        known = _told(module) or [module, "unknown"]
    return known[1]


def _alike(one: str, other: str) -> bool:
    numbers = [re.findall(r"\d+", text.partition("+")[0])[:2] for text in (one, other)]
    return numbers[0] == numbers[1] if numbers[0] else one == other
