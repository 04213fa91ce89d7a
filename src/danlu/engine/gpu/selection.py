"""Which GPUs a container gets: ``--gpus all``, ``2``, ``0,1``, ``GPU-…``, ``none``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from danlu.errors import MachineError, UsageError

#: The node of one GPU of NVIDIA or AMD.
GPU_NODE = re.compile(r"/dev/(nvidia|dri/renderD)\d+")

#: With these, batch systems tell a job its GPUs: those of NVIDIA, which AMD's HIP knows as well,
#: and of AMD.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

#: An index, a UUID or the beginning of one, the index of a MIG instance, as ``nvidia-smi -L`` and
#: the devices of CDI specs are called.
_NAME = re.compile(r"[0-9]{1,4}(?::[0-9]{1,4})?|(?:GPU|MIG)-[A-Za-z0-9/-]{1,80}")
_HINT = "use all, none, a number of GPUs, or indexes and UUIDs: 0,1 (one GPU: device=0)"
_MAX_COUNT = 1024


class GpuSelection(msgspec.Struct, frozen=True):
    """All GPUs, a number of them, or those with the given indexes or UUIDs; by default none."""

    every: bool = False
    count: int = 0
    names: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.every or bool(self.count or self.names)


class GpuChoice(msgspec.Struct, frozen=True):
    """A GPU that can be chosen: ``names`` are its index and its UUID, the first one is shown."""

    names: tuple[str, ...]


def parse_gpus(text: str) -> GpuSelection:
    """Parse the value of ``--gpus``; empty means none.

    A single number is a count, as in ``docker run --gpus 2``; ``device=0`` is the GPU with that
    index. Raises :class:`UsageError` if it is invalid.
    """
    words = text.strip().strip('"')
    if words in ("", "none"):
        return GpuSelection()
    if words == "all":
        return GpuSelection(every=True)
    if words.isascii() and words.isdecimal() and len(words) <= 4 and int(words) <= _MAX_COUNT:
        return GpuSelection(count=int(words))
    names = tuple(name.strip() for name in words.removeprefix("device=").rstrip(",").split(","))
    invalid = [name for name in names if not _NAME.fullmatch(name)]
    if invalid:
        raise UsageError(f"--gpus {text}: invalid GPU {invalid[0]!r}", hint=_HINT)
    return GpuSelection(names=tuple(dict.fromkeys(names)))


def choose_gpus(
    selection: GpuSelection, gpus: Sequence[GpuChoice], environ: Mapping[str, str]
) -> tuple[GpuChoice, ...]:
    """Return the selected ones of ``gpus``.

    All and a number choose among those of ``CUDA_VISIBLE_DEVICES`` or ``ROCR_VISIBLE_DEVICES`` in
    ``environ``. Raises :class:`MachineError` for a GPU that does not exist.
    """
    if selection.names:
        found = [_find_gpu(name, gpus) for name in selection.names]
        return tuple(dict.fromkeys(found))
    usable = limit_to_visible(gpus, environ)
    if selection.every and usable:
        return usable
    if not usable or selection.count > len(usable):
        asked = "all" if selection.every else str(selection.count)
        variables = [f"{name}={environ[name]}" for name in _VISIBLE if name in environ]
        where = variables[0] if variables else "this machine"
        raise MachineError(
            f"--gpus {asked}: {where} has {len(usable)} {'GPU' if len(usable) == 1 else 'GPUs'}",
            hint="`danlu doctor` lists them; `--gpus none` starts without",
        )
    return usable[: selection.count]


def limit_to_visible(
    gpus: Sequence[GpuChoice], environ: Mapping[str, str]
) -> tuple[GpuChoice, ...]:
    """Return those of ``gpus`` that ``CUDA_VISIBLE_DEVICES`` lists; all if it is not set.

    The same for ``ROCR_VISIBLE_DEVICES``. As in CUDA, the list ends at the first name that no GPU
    has.
    """
    visible = next((environ[name] for name in _VISIBLE if name in environ), None)
    if visible is None:
        return tuple(gpus)
    chosen: list[GpuChoice] = []
    for name in visible.split(","):
        try:
            chosen.append(_find_gpu(name.strip(), gpus))
        except MachineError:
            break
    return tuple(dict.fromkeys(chosen))


def _find_gpu(name: str, gpus: Sequence[GpuChoice]) -> GpuChoice:
    """Return the GPU with an index or UUID; a UUID may be abbreviated if that is unambiguous."""
    for gpu in gpus:
        if name and name in gpu.names:
            return gpu
    if name.startswith(("GPU-", "MIG-")):
        matching = [gpu for gpu in gpus if any(known.startswith(name) for known in gpu.names)]
        if len(matching) == 1:
            return matching[0]
    known = ", ".join(gpu.names[0] for gpu in gpus) or "none"
    raise MachineError(
        f"no GPU {name} on this machine", hint=f"its GPUs: {known}; see `danlu doctor`"
    )
