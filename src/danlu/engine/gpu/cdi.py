"""GPUs as the machine's administrator describes them: specs of the Container Device Interface.

The rules are those of the CDI specification 1.0 (cncf-tags/container-device-interface, SPEC.md).
Only specs of the kind ``nvidia.com/gpu`` are used, which ``nvidia-ctk cdi generate`` writes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from danlu.engine.gpu.selection import GPU_NODE, GpuChoice, GpuSelection, choose_gpus
from danlu.errors import MachineError
from danlu.sandbox.nvidia_driver import NvidiaGpu
from danlu.sandbox.types import ContainerEdits, DeviceNode, Mount, RuntimeHook
from danlu.util.decoding import convert_value

T = TypeVar("T")

KIND = "nvidia.com/gpu"
_REGENERATE = "write it again: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
_MAX_SIZE = 4 << 20
_MAX_DEPTH = 32
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[^=\0]+=[^\0]*")
#: Hooks that are run: NVIDIA's, which create links and update the loader's cache inside.
_HOOK_PROGRAMS = ("nvidia-cdi-hook", "nvidia-ctk")
_HOOK_NAMES = ("createRuntime", "createContainer", "startContainer", "poststart", "poststop")


class _CdiDeviceNode(msgspec.Struct, frozen=True, rename="camel"):
    path: str
    host_path: str = ""
    type: str = ""
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


class _CdiMount(msgspec.Struct, frozen=True, rename="camel"):
    host_path: str
    container_path: str
    type: str = ""
    options: tuple[str, ...] = ()


class _CdiHook(msgspec.Struct, frozen=True, rename="camel"):
    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class _CdiEdits(msgspec.Struct, frozen=True, rename="camel"):
    env: tuple[str, ...] | None = ()
    device_nodes: tuple[_CdiDeviceNode, ...] | None = ()
    mounts: tuple[_CdiMount, ...] | None = ()
    hooks: tuple[_CdiHook, ...] | None = ()
    additional_gids: tuple[int, ...] | None = msgspec.field(default=(), name="additionalGids")
    intel_rdt: Any = None
    net_devices: Any = None


class _CdiDevice(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    container_edits: _CdiEdits = _CdiEdits()


class _CdiSpec(msgspec.Struct, frozen=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: tuple[_CdiDevice, ...]
    container_edits: _CdiEdits = _CdiEdits()


class CdiDevice(msgspec.Struct, frozen=True):
    """A device and the file that describes it."""

    name: str
    file: Path
    edits: ContainerEdits
    common: ContainerEdits


def read_cdi_devices(directories: Sequence[Path]) -> dict[str, CdiDevice]:
    """Return the devices of the kind ``nvidia.com/gpu`` by name; a later directory wins.

    Raises :class:`MachineError` naming the file if it is invalid; a file that is not about NVIDIA's
    GPUs does not matter.
    """
    found: dict[str, CdiDevice] = {}
    errors: list[MachineError] = []
    for directory in directories:
        here: dict[str, CdiDevice] = {}
        for path in _list_specs(directory):
            try:
                devices = _read_spec(path)
            except MachineError as error:
                errors.append(error)
                continue
            for device in devices:
                if device.name in here:
                    raise MachineError(
                        f"{path}: {KIND}={device.name} is also in {here[device.name].file}",
                        hint="remove one of the files",
                    )
                here[device.name] = device
        found |= here
    if errors and not found:
        raise errors[0]
    return found


def select_cdi_edits(
    selection: GpuSelection,
    devices: Mapping[str, CdiDevice],
    gpus: Sequence[NvidiaGpu],
    environ: Mapping[str, str],
) -> ContainerEdits:
    """Return what the selected devices need in a container.

    ``gpus`` are those of the driver: a spec knows a GPU by its index or by its UUID, the user may
    write the other. Raises :class:`MachineError` for a device that does not exist.
    """
    if selection.every and "all" in devices and "CUDA_VISIBLE_DEVICES" not in environ:
        chosen = [devices["all"]]
        described = sum(bool(GPU_NODE.fullmatch(node.path)) for node in chosen[0].edits.devices)
        if described < len(gpus):
            raise MachineError(
                f"{chosen[0].file} describes {described} of the {len(gpus)} GPUs of this machine",
                hint=f"{_REGENERATE}, or name those that it has, such as --gpus device=0",
            )
    else:
        # A MIG instance is chosen by its name only, not by `all` or a number of GPUs.
        choices = _list_choices(devices, gpus, instances=bool(selection.names))
        picked = choose_gpus(selection, choices, environ)
        chosen = [devices[next(filter(devices.__contains__, gpu.names))] for gpu in picked]
    common = {device.file: device.common for device in chosen}
    edits = merge_edits((*common.values(), *(device.edits for device in chosen)))
    for source in (*(mount.source for mount in edits.mounts), *_list_node_sources(edits)):
        if source is not None and not source.exists():
            raise MachineError(
                f"{chosen[0].file}: {source} does not exist on this machine", hint=_REGENERATE
            )
    return edits


def count_cdi_gpus(devices: Mapping[str, CdiDevice], gpus: Sequence[NvidiaGpu]) -> list[GpuChoice]:
    """Return the whole GPUs that specs describe."""
    return _list_choices(devices, gpus, instances=False)


def merge_edits(parts: Sequence[ContainerEdits]) -> ContainerEdits:
    """Return all edits together; what occurs twice is applied once."""
    hooks: dict[str, tuple[RuntimeHook, ...]] = {}
    for part in parts:
        for moment, programs in part.hooks.items():
            hooks[moment] = tuple(dict.fromkeys((*hooks.get(moment, ()), *programs)))
    return ContainerEdits(
        devices=tuple({node.path: node for part in parts for node in part.devices}.values()),
        mounts=tuple({mount.target: mount for part in parts for mount in part.mounts}.values()),
        links={path: target for part in parts for path, target in part.links.items()},
        files={path: data for part in parts for path, data in part.files.items()},
        hooks=hooks,
        environment={name: value for part in parts for name, value in part.environment.items()},
        groups=tuple(dict.fromkeys(group for part in parts for group in part.groups)),
    )


def _list_node_sources(edits: ContainerEdits) -> list[Path]:
    return [node.source for node in edits.devices]


def _list_choices(
    devices: Mapping[str, CdiDevice], gpus: Sequence[NvidiaGpu], *, instances: bool
) -> list[GpuChoice]:
    choices: dict[frozenset[str], GpuChoice] = {}
    aliases = {
        name: (str(gpu.index), gpu.uuid) for gpu in gpus for name in (str(gpu.index), gpu.uuid)
    }
    for name in sorted(devices, key=_sort_key):
        if name == "all" or (not instances and (":" in name or name.startswith("MIG-"))):
            continue
        names = tuple(dict.fromkeys((*aliases.get(name, (name,)), name)))
        choices.setdefault(frozenset(names), GpuChoice(tuple(filter(None, names))))
    return list(choices.values())


def _sort_key(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isascii() and name.isdecimal() else (1 << 30, name)


# -- reading --------------------------------------------------------------------------------------


def _list_specs(directory: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise MachineError(f"cannot read {directory}: {error.strerror}") from error
    return [directory / name for name in names if name.endswith((".json", ".yaml", ".yml"))]


def _read_spec(path: Path) -> list[CdiDevice]:
    """Return the devices of a file; none if it is of another kind."""
    # Opening a pipe would wait for a writer.
    if path.exists() and not path.is_file():
        raise MachineError(f"{path}: not a file", hint=_REGENERATE)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_SIZE + 1)
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error
    return parse_cdi_devices(path, data)


def parse_cdi_devices(path: Path, data: bytes) -> list[CdiDevice]:
    """Return the devices of a spec; none if it is of another kind.

    ``path`` is its file, or the program that printed it as JSON. Raises :class:`MachineError`
    naming ``path`` if it is invalid.
    """
    if len(data) > _MAX_SIZE:
        raise MachineError(f"{path}: larger than {_MAX_SIZE >> 20} MiB", hint=_REGENERATE)
    try:
        document = _decode_document(path, data)
        if isinstance(document, dict) and document.get("kind") not in (KIND, None):
            return []
        spec = convert_value(document, _CdiSpec)
        if spec.kind != KIND:
            return []
        common = _convert_edits(spec.container_edits)
        return [
            CdiDevice(
                _require_valid(device.name, _DEVICE_NAME.fullmatch(device.name), "device name"),
                path,
                _convert_edits(device.container_edits),
                common,
            )
            for device in spec.devices
        ]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise MachineError(f"{path}: invalid CDI spec: {reason}", hint=_REGENERATE) from error


def _decode_document(path: Path, data: bytes) -> Any:
    if path.suffix not in (".yaml", ".yml"):
        return msgspec.json.decode(data)
    import yaml  # only where a spec is in YAML

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # Deep documents would end this process (libyaml's stack), aliases multiply what they name.
        depth = 0
        for event in yaml.parse(data, Loader=loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _MAX_DEPTH or isinstance(event, yaml.AliasEvent):
                raise ValueError("too deep, or with aliases")
        return yaml.load(data, Loader=loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _convert_edits(edits: _CdiEdits) -> ContainerEdits:
    if edits.intel_rdt or edits.net_devices:
        raise ValueError("intelRdt and netDevices are not supported")
    environment = dict(
        _require_valid(text, _VARIABLE.fullmatch(text), "variable").split("=", 1)
        for text in edits.env or ()
    )
    hooks: dict[str, tuple[RuntimeHook, ...]] = {}
    for hook in edits.hooks or ():
        hooks[hook.hook_name] = (*hooks.get(hook.hook_name, ()), _convert_hook(hook))
    return ContainerEdits(
        devices=tuple(_convert_node(node) for node in edits.device_nodes or ()),
        mounts=tuple(_convert_mount(mount) for mount in edits.mounts or ()),
        hooks=hooks,
        environment=environment,
        # The specification: 0 is ignored.
        groups=tuple(
            _require_valid(gid, 0 <= gid < 1 << 32, "group")
            for gid in edits.additional_gids or ()
            if gid
        ),
    )


def _convert_node(node: _CdiDeviceNode) -> DeviceNode:
    path = _check_path(node.path)
    _require_valid(path, path.startswith("/dev/"), "device path")
    if node.type not in ("", "c", "b", "u"):
        raise ValueError(f"invalid device type {node.type!r}")
    for number in (node.file_mode, node.uid, node.gid):
        _require_valid(number, number is None or 0 <= number < 1 << 32, "mode or owner")
    mode = None if node.file_mode is None else node.file_mode & 0o777
    source = Path(_check_path(node.host_path) if node.host_path else path)
    return DeviceNode(path, source, mode, node.uid, node.gid)


def _convert_mount(mount: _CdiMount) -> Mount:
    target = _check_path(mount.container_path)
    first = target.split("/")[1]
    _require_valid(target, first not in ("proc", "sys", "dev") and target != "/", "mount target")
    readonly = "ro" in mount.options
    if mount.type == "tmpfs":
        return Mount(target, kind="tmpfs", readonly=readonly)
    return Mount(target, Path(_check_path(mount.host_path)), readonly=readonly)


def _convert_hook(hook: _CdiHook) -> RuntimeHook:
    path = _check_path(hook.path)
    _require_valid(hook.hook_name, hook.hook_name in _HOOK_NAMES, "hook name")
    # Hooks run on this machine, outside of the container.
    if os.path.basename(path) not in _HOOK_PROGRAMS:
        raise ValueError(f"hook {path} is not run: only {' and '.join(_HOOK_PROGRAMS)} are")
    if hook.timeout is not None and hook.timeout <= 0:
        raise ValueError("the timeout of a hook must be greater than 0")
    return RuntimeHook(path, hook.args, hook.env, hook.timeout)


def _check_path(path: str) -> str:
    """Return an absolute path without ``..``; raise :class:`ValueError` otherwise."""
    is_valid = path.startswith("/") and ".." not in path.split("/") and "\0" not in path
    return os.path.normpath(_require_valid(path, is_valid, "path"))


def _require_valid(value: T, valid: object, what: str) -> T:
    """Return ``value`` if it is valid; raise :class:`ValueError` otherwise."""
    if not valid:
        raise ValueError(f"invalid {what} {value!r}")
    return value
