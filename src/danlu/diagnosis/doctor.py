"""Check that this machine can build and run environments."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from danlu.diagnosis.doctor_probes import list_probes, run_probes
from danlu.engine.contexts import Context, apply_context
from danlu.engine.gpu.provider import describe_gpu_access
from danlu.engine.gpu.usage import GpuMeter
from danlu.engine.settings import Settings, load_settings
from danlu.environment.cuda_releases import find_supported_cuda
from danlu.errors import DanluError, MachineError, UsageError
from danlu.jobs.services import JobTarget
from danlu.project import driver_check
from danlu.sandbox import doctor
from danlu.sandbox.amd_driver import find_sys_root, list_amd_gpus
from danlu.sandbox.emulation import host_platform
from danlu.sandbox.nvidia_driver import find_proc_root, read_driver
from danlu.sources.apt.archive import FAMILIES, debian_architecture, find_archive, find_release
from danlu.sources.apt.host_config import read_host_apt
from danlu.store import Store
from danlu.util.config import Configuration, load_configuration

if TYPE_CHECKING:
    from danlu.util.paths import Paths

#: A first environment with PyTorch needs about this much.
_MIN_FREE_BYTES = 5 << 30


class DoctorCheck(msgspec.Struct, frozen=True):
    """The result of a check; ``fix`` says what to do if it failed.

    What is ``optional`` is needed by some commands only: nothing else fails without it.
    """

    name: str
    ok: bool
    detail: str = ""
    fix: str = ""
    optional: bool = False


def run_checks(paths: Paths, context: Context) -> tuple[DoctorCheck, ...]:
    """Run all checks, without changing anything; an error in a check fails it.

    What the context needs is not optional.

    Optional ones connect to the servers that are configured, and end within seconds.
    """
    checks: dict[str, Callable[[Paths], Iterator[DoctorCheck]]] = {
        "configuration": _check_configuration,
        "directories": _check_directories,
        "uv": _check_uv,
        "sandbox": _check_sandbox,
        "apt mirrors": _check_mirrors,
        "NVIDIA driver": _check_driver,
        "store": _check_store,
    }
    found: list[DoctorCheck] = []
    for name, check in checks.items():
        try:
            found += check(paths)
        except DanluError as error:
            found.append(DoctorCheck(name, False, error.message, error.hint))
        except Exception as error:
            found.append(DoctorCheck(name, False, f"{type(error).__name__}: {error}"))
    # Last: the sandbox's checks fork, which a process with threads must not.
    return (*found, *_run_probes(paths, context))


def _run_probes(paths: Paths, context: Context) -> Iterator[DoctorCheck]:
    try:
        settings = load_settings(paths)
    except UsageError:
        settings = Settings(paths, Configuration())  # the first check has reported it
    settings = apply_context(settings, context)
    if context.account is not None:
        target = JobTarget("", context, is_remote=True)
        results = run_probes(target.service.list_probes(target))
        for name, (ok, detail, fix) in results.items():
            yield DoctorCheck(name, ok, detail, "" if ok else fix)
    for name, (ok, detail, fix) in run_probes(list_probes(settings.config, os.environ)).items():
        is_optional = name.lower() != settings.engine
        yield DoctorCheck(name, ok, detail, "" if ok else fix, optional=is_optional)


def _check_configuration(paths: Paths) -> Iterator[DoctorCheck]:
    load_configuration(paths.config_file)
    detail = (
        str(paths.config_file) if paths.config_file.exists() else "no config file, using defaults"
    )
    yield DoctorCheck("configuration", True, detail)


def _check_directories(paths: Paths) -> Iterator[DoctorCheck]:
    for name, path in (("data", paths.data), ("state", paths.state)):
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
        fix = "" if writable else f"make {existing} writable, or set DANLU_HOME"
        yield DoctorCheck(f"{name} directory", writable, str(path), fix)
        if name == "data":
            yield _check_disk_space(existing)


def _check_disk_space(path: Path) -> DoctorCheck:
    free = shutil.disk_usage(path).free
    detail = f"{free / 1e9:.1f} GB free at {path}"
    fix = (
        ""
        if free >= _MIN_FREE_BYTES
        else "free space with `danlu image prune`, or move the store with DANLU_HOME"
    )
    return DoctorCheck("disk space", free >= _MIN_FREE_BYTES, detail, fix)


def _check_mirrors(paths: Paths) -> Iterator[DoctorCheck]:
    """Say which distributions can be a base: those that this machine knows a mirror of."""
    config = load_configuration(paths.config_file)
    host = anyio.run(read_host_apt)
    architecture = debian_architecture(host_platform())
    missing: dict[str, str] = {}
    for family, releases in FAMILIES.items():
        release = find_release(f"{family}{max(releases)}")
        try:
            find_archive(release, architecture, host=host, config=config)
        except MachineError as error:
            missing[family] = "; ".join((*error.details, error.hint))
    known = [family.capitalize() for family in FAMILIES if family not in missing]
    detail = f"{' and '.join(known) or 'none'} can be a base"
    if missing and known:
        detail += "".join(f'; base(os="{name}…") needs [mirrors.{name}]' for name in missing)
    fix = "" if known else next(iter(missing.values()))
    yield DoctorCheck("apt mirrors", bool(known), detail, fix, optional=True)


def _check_uv(paths: Paths) -> Iterator[DoctorCheck]:
    try:
        yield DoctorCheck("uv", True, version("uv"))
    except PackageNotFoundError:
        yield DoctorCheck("uv", False, "not installed in danlu's environment", "reinstall danlu")


def _check_sandbox(paths: Paths) -> Iterator[DoctorCheck]:
    for name, ok, detail, fix in doctor.run_checks(paths):
        yield DoctorCheck(name, ok, detail, fix)


def _check_driver(paths: Paths) -> Iterator[DoctorCheck]:
    name = "NVIDIA driver"
    config = load_configuration(paths.config_file)
    driver = read_driver(find_proc_root(Path(config.gpu_driver_root)))
    amd = list_amd_gpus(find_sys_root(Path(config.gpu_driver_root)))
    if driver is None and amd:
        models = ", ".join(f"{gpu.index}: {gpu.model}" for gpu in amd)
        yield DoctorCheck("AMD GPUs", True, models)
        yield _check_gpus(config)
        return
    if driver is None:
        yield DoctorCheck(name, True, "none: environments run on the CPU")
        return
    cuda = find_supported_cuda(driver.version)
    supported = f", supports CUDA {cuda[0]}.{cuda[1]}" if cuda else ""
    devices = f"; {', '.join(driver.devices)}" if driver.devices else "; no devices"
    conflict = driver_check.find_conflict(Path("danlu.lock"), "", config=config)
    yield DoctorCheck(name, True, f"{driver.version}{supported}{devices}")
    if conflict is not None:
        yield DoctorCheck("CUDA of danlu.lock", False, conflict.message, conflict.hint)
    if driver.devices:
        yield _check_gpus(config)
    if GpuMeter().has_persistence() is False:
        yield DoctorCheck(
            "GPU persistence mode",
            False,
            "off: the first program on an idle GPU waits for the driver",
            "sudo nvidia-smi -pm 1, or enable the service nvidia-persistenced",
            optional=True,
        )


def _check_gpus(config: Configuration) -> DoctorCheck:
    name = "GPUs in environments"
    try:
        return DoctorCheck(name, True, describe_gpu_access(config))
    except DanluError as error:
        return DoctorCheck(name, False, error.message, error.hint)


def _check_store(paths: Paths) -> Iterator[DoctorCheck]:
    if not paths.store.is_dir():
        yield DoctorCheck("store", True, "not created yet")
        return
    with Store.open(paths.store) as store:
        total = store.usage().total
        yield DoctorCheck("store", True, f"{len(store.images())} images, {total / 1e9:.1f} GB")
