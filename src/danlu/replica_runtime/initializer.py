"""Load a dataset or a model before a TrainJob: ``python initializer.py dataset|model DIRECTORY``.

This is the program of Kubeflow Trainer's initializers (``pkg/initializers``, 2.3), for a Python
that replaces their images: the same variables, addresses and files. danlu adds ``file://``, whose
directory is a further argument in a container, and checks names and links.
"""

import fnmatch
import importlib
import os
import re
import shutil
import sys
import tempfile
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote, urlparse

KINDS = ("dataset", "model")
#: The variables of ``pkg/initializers/types/types.py``; an empty one means nothing.
STORAGE_URI = "STORAGE_URI"
VARIABLES = (
    *("IGNORE_PATTERNS", "ACCESS_TOKEN", "ENDPOINT", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY"),
    *("REGION", "ROLE_ARN"),
)
#: Files of a model on the Hub (``pkg/initializers/model/huggingface.py``).
MODEL_PATTERNS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.gguf")

#: A file of this name in the directory is not complete.
_PART = ".danlu-part"
_CHUNK_SIZE = 1 << 20
_TIMEOUT = 30
_MAX_REASON = 600
#: The variables with the address of another server.
_ENDPOINTS = {"hf": "HF_ENDPOINT", "s3": "ENDPOINT"}
#: What OpenDAL's messages contain of a response.
_HTTP_RESPONSE = re.compile(r",? response: Parts \{[^{}]*(\{[^{}]*\}[^{}]*)*\}")
_HINTS = {
    "cache": "Kubeflow's data cache runs on a cluster only: use hf://, s3:// or file://",
    "": "write hf://OWNER/NAME, s3://BUCKET/PATH or file:///DIRECTORY",
}


class InitializerError(Exception):
    """What is wrong, and what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def main(arguments: "list[str]") -> int:
    """Load the data and return the exit code: 1 if that failed."""
    kind, directory = arguments[:2]
    uri = os.environ.get(STORAGE_URI, "")
    try:
        check_address(kind, uri)
        print(f"loading the {kind} {uri}", flush=True)
        with _explain_errors(uri):
            os.makedirs(directory, exist_ok=True)
            _check_links(directory)
            _LOADERS[urlparse(uri).scheme](kind, uri, directory, *arguments[2:])
    except InitializerError as error:
        print(f"{kind}-initializer: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1
    print(f"the {kind} is complete", flush=True)
    return 0


def check_address(kind: str, uri: str) -> None:
    """Raise :class:`InitializerError` for an address that cannot be loaded."""
    address = urlparse(uri)
    scheme = address.scheme
    if not uri:
        raise InitializerError(f"{STORAGE_URI} is not set: the {kind} has no address")
    if scheme not in _LOADERS:
        message = f"cannot load {uri}: unsupported scheme '{scheme}'"
        raise InitializerError(message, _HINTS.get(scheme, _HINTS[""]))
    if scheme == "hf" and kind == "dataset" and not address.path.strip("/"):
        raise InitializerError(f"invalid address {uri}: no dataset", "hf://OWNER/NAME")
    if scheme == "file" and (address.netloc not in ("", "localhost") or address.path in ("", "/")):
        raise InitializerError(f"invalid address {uri}: no directory", "file:///DIRECTORY")
    if scheme != "file" and not address.netloc:
        raise InitializerError(f"invalid address {uri}", _HINTS[""])


def find_source(uri: str) -> str:
    """Return the path of an address ``file://``; empty for others."""
    address = urlparse(uri)
    return unquote(address.path) if address.scheme == "file" else ""


@contextmanager
def _explain_errors(uri: str) -> Any:
    try:
        yield
    except InitializerError:
        raise
    except Exception as error:
        # Messages of libraries have several lines, and links to their documentation.
        reason = " ".join(str(error).split())
        kind = "" if isinstance(error, OSError) and error.errno else type(error).__name__ + ": "
        reason = _HTTP_RESPONSE.sub("", reason if reason.startswith(kind[:-2]) else kind + reason)
        place = os.environ.get(_ENDPOINTS.get(urlparse(uri).scheme, ""))
        source = f"{uri} from {place}" if place else uri
        raise InitializerError(f"cannot load {source}: {reason[:_MAX_REASON]}") from error


# -- sources --------------------------------------------------------------------------------------


def _load_from_hub(kind: str, uri: str, directory: str) -> None:
    address, token = urlparse(uri), os.environ.get("ACCESS_TOKEN")
    with tempfile.TemporaryDirectory() as private:
        if token:
            # The token is this job's: it replaces none of the user's.
            os.environ["HF_TOKEN_PATH"] = os.path.join(private, "token")
            for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
                os.environ.pop(name, None)
        hub = _import_package("huggingface_hub")
        options = {"repo_id": address.netloc + address.path}  # type: dict[str, Any]
        patterns = {"ignore_patterns": _ignore_patterns()}  # type: dict[str, Any]
        if kind == "dataset":
            owner, name = address.netloc, address.path.split("/")[1]
            options = {"repo_id": f"{owner}/{name}", "repo_type": "dataset"}
        else:
            patterns["allow_patterns"] = list(MODEL_PATTERNS)
        if token:
            hub.login(token)
        api, timeout = hub.HfApi(), hub.constants.HF_HUB_ETAG_TIMEOUT
        # snapshot_download takes what a directory already has if it cannot reach the Hub.
        options["revision"] = api.repo_info(timeout=timeout, **options).sha
        names = list(hub.utils.filter_repo_objects(api.list_repo_files(**options), **patterns))
        for name in names:
            _check_name(name)
        hub.snapshot_download(local_dir=directory, **options, **patterns)
    missing = [name for name in names if not os.path.isfile(os.path.join(directory, name))]
    if missing:
        raise InitializerError(f"cannot load {uri}: {missing[0]} is missing")


def _load_from_s3(kind: str, uri: str, directory: str) -> None:
    address = urlparse(uri)
    prefix, ignored = address.path.lstrip("/"), _ignore_patterns() or ()
    names = ("ENDPOINT", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION", "ROLE_ARN")
    given = {name.lower(): os.environ[name] for name in names if os.environ.get(name)}
    opendal = _import_package("opendal")
    config = {"root": "/", "bucket": address.netloc, "region": "auto"}
    config.update(given)
    operator = opendal.Operator("s3", **config)
    if hasattr(opendal.layers, "TimeoutLayer"):  # older versions wait without a limit
        operator = operator.layer(opendal.layers.TimeoutLayer(_TIMEOUT, _TIMEOUT))
    operator = operator.layer(opendal.layers.RetryLayer(max_times=3, factor=2.0, jitter=True))
    number = 0
    for entry in operator.list(prefix, recursive=True):
        key = entry.path
        if entry.metadata.is_dir or any(fnmatch.fnmatch(key, pattern) for pattern in ignored):
            continue
        name = key[len(prefix) :].lstrip("/") or os.path.basename(key)
        print(f"{key} -> {name}", flush=True)
        with operator.open(key, "rb") as source:
            _write_file(directory, name, source)
        number += 1
    if not number:
        print(f"warning: no object of {uri} was loaded", file=sys.stderr)


def _copy_from_host(kind: str, uri: str, directory: str, place: str = "") -> None:
    source, ignored = place or find_source(uri), _ignore_patterns() or ()
    target = os.path.join(os.path.realpath(directory), "")
    if target.startswith(os.path.join(os.path.realpath(source), "")):
        raise InitializerError(f"cannot copy {uri} into itself: {directory}")
    for path, name in _list_files(source):
        if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored):
            with open(path, "rb") as file:
                _write_file(directory, name, file)


_LOADERS = {"hf": _load_from_hub, "s3": _load_from_s3, "file": _copy_from_host}


def _ignore_patterns() -> "list[str] | None":
    text = os.environ.get("IGNORE_PATTERNS")
    return [item.strip() for item in text.split(",") if item.strip()] if text else None


def _import_package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        message = f"{name} cannot be imported by {sys.executable}: {error}"
        install = f"{sys.executable} -m pip install {name}"
        hint = f"`{install}`, or add it to the build file"
        raise InitializerError(message, hint) from error


def _list_files(source: str) -> Any:
    """Yield the path of each file below ``source`` and its name there; links are followed."""
    if not os.path.isdir(source):
        yield source, os.path.basename(source)
        return

    def raise_error(error: OSError) -> None:
        raise error

    visited = {os.path.realpath(source)}
    for parent, directories, names in os.walk(source, onerror=raise_error, followlinks=True):
        real = {name: os.path.realpath(os.path.join(parent, name)) for name in directories}
        # A link may lead to a directory around it.
        directories[:] = sorted(name for name in directories if real[name] not in visited)
        visited.update(real.values())
        for name in sorted(names):
            path = os.path.join(parent, name)
            yield path, os.path.relpath(path, source)


# -- files of the directory -----------------------------------------------------------------------


def _check_name(name: str) -> None:
    """Raise :class:`InitializerError` for the name of a file outside of the directory."""
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise InitializerError(f"invalid name {name!r}: it leads out of the directory")


def _check_links(directory: str) -> None:
    """Raise :class:`InitializerError` for a link out of the volume, which would be followed."""
    volume = os.path.join(os.path.realpath(os.path.dirname(directory)), "")
    found = [directory]
    for parent, directories, names in os.walk(directory):
        found += [os.path.join(parent, name) for name in directories + names]
    for path in found:
        if os.path.islink(path) and not os.path.realpath(path).startswith(volume):
            raise InitializerError(f"{path} is a link out of the volume", "remove it")


def _write_file(directory: str, name: str, source: Any) -> None:
    """Write a file that has its name only once it is complete."""
    _check_name(name)
    path, part = os.path.join(directory, name), os.path.join(directory, _PART)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with suppress(FileNotFoundError):
            os.unlink(part)
        with open(part, "xb") as file:
            shutil.copyfileobj(source, file, _CHUNK_SIZE)
        os.replace(part, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
