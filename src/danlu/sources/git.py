"""Git repositories: resolve a ref to a commit, and a commit to a directory, without running its
code.

Uses the user's git configuration (``insteadOf``, credential helpers, ssh), but never hooks. The
functions block; call them in a thread from async code.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from danlu.errors import MachineError, OutsideError, TemporaryError, UsageError
from danlu.lang.source_files import RepositoryContent
from danlu.util.files import remove_tree
from danlu.util.locks import file_lock
from danlu.util.urls import strip_credentials

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,39}")

#: Time limit for a git command.
_TIMEOUT_SECONDS = 1800

_TEMPORARY_ERRORS = (
    "Could not resolve host",
    "Connection refused",
    "Connection reset",
    "Connection timed out",
    "Operation timed out",
    "early EOF",
    "The remote end hung up",
    "returned error: 5",
    "returned error: 429",
)


class CommitFile(msgspec.Struct, frozen=True):
    """An entry of a commit: its path, git's mode (``100644`` …), its object and size in bytes."""

    path: str
    mode: str
    object_name: str
    size: int


def resolve_commit(url: str, ref: str, *, cache: Path, offline: bool = False) -> str:
    """Return the commit that ``ref`` of ``url`` (branch, tag, commit; empty: HEAD) refers to.

    As in pip and uv, a branch takes precedence over a tag of the same name. A full commit is
    returned unchanged. Raises :class:`UsageError` if the ref does not exist, :class:`OutsideError`
    if the repository cannot be reached.
    """
    _check_address(url, ref)
    if _COMMIT.fullmatch(ref):
        return ref
    if offline:
        raise OutsideError(f"cannot resolve {ref or 'HEAD'} of {strip_credentials(url)} offline")
    # An annotated tag is a separate object; ^{} is the commit it points to (gitrevisions(7)).
    names = [f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", ref]
    names = names if ref else ["HEAD"]
    wanted = [name.removesuffix("^{}") for name in names]
    output = _run_git(
        ["ls-remote", "--", url, *dict.fromkeys([*wanted, *(n + "^{}" for n in wanted)])]
    )
    commits = {}
    for line in output.decode(errors="replace").splitlines():
        commit, _, name = line.partition("\t")
        commits[name] = commit
    for name in names:
        if target := commits.get(f"{name}^{{}}") or commits.get(name):
            return target
    if _SHORT_COMMIT.fullmatch(ref):
        return _resolve_short_commit(url, ref, cache)
    raise UsageError(
        f"branch, tag or commit {ref or 'HEAD'!r} not found in {strip_credentials(url)}"
    )


def checkout(url: str, commit: str, *, cache: Path, offline: bool = False) -> Path:
    """Return a directory with ``commit`` of ``url``, including submodules and the full history.

    The directory is in ``cache`` and must not be modified.
    """
    _check_address(url, commit)
    if not _COMMIT.fullmatch(commit):
        raise UsageError(f"{commit!r} is not a full commit")
    place = cache / "trees" / f"{_cache_key(url)}-{commit}"
    if place.is_dir():
        return place
    with _open_database(url, cache) as database:
        if place.is_dir():
            return place
        _fetch_all(database, url, commit, offline=offline)
        place.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place, so that a directory with this name is always complete.
        staged = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
        try:
            _populate_checkout(database, url, commit, staged / "tree", offline=offline)
            os.rename(staged / "tree", place)
        finally:
            remove_tree(staged)
    return place


def describe(directory: Path) -> tuple[str, str]:
    """Return the description of HEAD by the last tag with a digit, and its commit.

    Without such a tag, the description counts from ``0.0``. Raises :class:`OutsideError` if
    ``directory`` is in no repository. Only objects are read, and none is fetched: the configuration
    of the repository can name programs for that.
    """
    git = partial(_run_git, directory=directory, transport=False)
    commit = git(["rev-parse", "--verify", "HEAD^{commit}"]).decode().strip()
    options = ["--tags", "--long", "--abbrev=40", "--match", "*[0-9]*"]
    try:
        return git(["describe", *options, commit]).decode().strip(), commit
    except OutsideError:
        count = git(["rev-list", "--count", commit]).decode().strip()
        return f"0.0-{count}-g{commit}", commit


def read_repository(
    url: str, ref: str, *, commit: str, cache: Path, offline: bool = False
) -> RepositoryContent:
    """Return the build files (``*.envd``) of a repository at ``commit``, or else at ``ref``.

    Fetches only that commit, without history, and checks nothing out. A repository on this machine,
    also through git's ``insteadOf``, can be read ``offline``.
    """
    offline = offline and not _on_this_machine(url)
    commit = commit or resolve_commit(url, ref, cache=cache, offline=offline)
    with _open_commit(url, commit, cache, offline=offline) as database:
        return RepositoryContent(commit, _read_build_files(database, commit))


def list_files(url: str, commit: str, *, cache: Path) -> tuple[CommitFile, ...]:
    """Return all files, links and submodules of ``commit`` of ``url``, and check nothing out."""
    with _open_commit(url, commit, cache) as database:
        return tuple(_list_tree(database, commit))


def read_blobs(url: str, files: Iterable[CommitFile], *, cache: Path) -> list[bytes]:
    """Return the contents of files that :func:`list_files` listed."""
    wanted = [file.object_name for file in files]
    with _open_database(url, cache) as database:
        output = _run_git(
            ["cat-file", "--batch"], database=database, input="\n".join(wanted).encode()
        )
    contents = []
    start = 0
    for name in wanted:
        # "<object name> blob <size>\n<content>\n", git-cat-file(1)
        end = output.index(b"\n", start)
        size = int(output[start:end].split()[2])
        if not output.startswith(f"{name} blob ".encode(), start):
            raise OutsideError(f"git cat-file returned another object than {name}")
        contents.append(output[end + 1 : end + 1 + size])
        start = end + size + 2
    return contents


def digest_tree(directory: Path) -> str:
    """Return the SHA-256 (hexadecimal) of the content of a directory, without ``.git``."""
    digest = hashlib.sha256()
    for root, directories, files in os.walk(directory):
        directories[:] = sorted(name for name in directories if name != ".git")
        for name in sorted({*files, *(d for d in directories if os.path.islink(f"{root}/{d}"))}):
            path = Path(root) / name
            if name == ".git":
                continue
            relative = path.relative_to(directory).as_posix()
            if path.is_symlink():
                kind, content = "link", os.fsencode(os.readlink(path))
            elif path.is_file():
                kind = "program" if path.stat().st_mode & 0o100 else "file"
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            else:
                continue
            digest.update(f"{kind}\0{relative}\0".encode("utf-8", "surrogateescape"))
            digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()


def _check_address(url: str, ref: str) -> None:
    # git would take these for an option, or for a command to run (gitremote-helpers(7)).
    if url.startswith("-") or re.match(r"\w+::", url) or ref.startswith("-") or "\n" in url + ref:
        raise UsageError(f"invalid repository URL or ref: {strip_credentials(url)!r} {ref!r}")


def _cache_key(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:24]


@contextmanager
def _open_database(url: str, cache: Path) -> Iterator[Path]:
    """Lock and return the bare repository with everything fetched from ``url``."""
    database = cache / "db" / _cache_key(url)
    with file_lock(cache / "db" / f"{_cache_key(url)}.lock"):
        if not (database / "HEAD").exists():
            remove_tree(database)
            database.parent.mkdir(parents=True, exist_ok=True)
            _run_git(["init", "--quiet", "--bare", "--template=", str(database)])
        yield database


@contextmanager
def _open_commit(url: str, commit: str, cache: Path, *, offline: bool = False) -> Iterator[Path]:
    """Lock and return the bare repository with ``commit`` of ``url``, fetched without history."""
    with _open_database(url, cache) as database:
        if not _has_commit(database, commit):
            _fetch_one(database, url, commit, offline=offline)
        yield database


def _has_commit(database: Path, commit: str) -> bool:
    try:
        _run_git(["cat-file", "-e", f"{commit}^{{commit}}"], database=database)
    except OutsideError:
        return False
    return True


def _on_this_machine(url: str) -> bool:
    """Return whether git reads ``url`` without a network, given the user's ``insteadOf``."""
    meant = _run_git(["ls-remote", "--get-url", "--", url]).decode(errors="replace").strip()
    return meant.startswith(("file://", "/"))


def _require_online(url: str, commit: str, offline: bool) -> None:
    if offline:
        raise OutsideError(
            f"commit {commit[:12]} of {strip_credentials(url)} is not cached and cannot be fetched"
            " offline"
        )


_REFS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")


def _fetch_one(database: Path, url: str, commit: str, *, offline: bool) -> None:
    _require_online(url, commit, offline)
    fetch = ["fetch", "--quiet", "--no-tags"]
    try:
        _run_git([*fetch, "--depth", "1", "--", url, commit], database=database)
    except TemporaryError:
        raise
    except OutsideError:
        # Servers may refuse to send a bare commit (uploadpack.allowReachableSHA1InWant).
        _fetch_all(database, url, commit, offline=offline)


def _fetch_all(database: Path, url: str, commit: str, *, offline: bool) -> None:
    """Fetch everything with history: many packages derive their version from it."""
    # `read_repository` fetches single commits without history into the same database.
    shallow = (database / "shallow").exists()
    complete = (database / "danlu-complete").exists()
    if complete and not shallow and _has_commit(database, commit):
        return
    _require_online(url, commit, offline)
    more = ["--unshallow"] if shallow else []
    _run_git(["fetch", "--quiet", "--force", *more, "--", url, *_REFS], database=database)
    if not _has_commit(database, commit):
        _run_git(["fetch", "--quiet", "--", url, commit], database=database)
    (database / "danlu-complete").touch()


def _resolve_short_commit(url: str, ref: str, cache: Path) -> str:
    with _open_database(url, cache) as database:
        _run_git(["fetch", "--quiet", "--force", "--", url, *_REFS], database=database)
        try:
            output = _run_git(["rev-parse", "--verify", f"{ref}^{{commit}}"], database=database)
        except OutsideError as error:
            raise UsageError(f"commit {ref} not found in {strip_credentials(url)}") from error
        return output.decode().strip()


def _populate_checkout(
    database: Path, url: str, commit: str, place: Path, *, offline: bool
) -> None:
    _run_git(["clone", "--quiet", "--no-checkout", "--template=", str(database), str(place)])
    _run_git(["remote", "set-url", "origin", url], directory=place)
    _run_git(["checkout", "--quiet", "--detach", commit], directory=place)
    if (place / ".gitmodules").exists():
        _require_online(url, commit, offline)
        update = ["submodule", "--quiet", "update", "--init", "--recursive"]
        _run_git(update, directory=place)
    # Credentials in the URL must not reach the sandbox with the tree.
    _run_git(["remote", "set-url", "origin", strip_credentials(url)], directory=place)


def _read_build_files(database: Path, commit: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for file in _list_tree(database, commit):
        # Regular files only: 120000 are symbolic links, 160000 submodules.
        if file.path.endswith(".envd") and file.mode in ("100644", "100755"):
            data = _run_git(["cat-file", "blob", file.object_name], database=database)
            try:
                files[file.path] = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise OutsideError(f"{file.path} of the repository is not valid UTF-8") from error
    return files


def _list_tree(database: Path, commit: str) -> Iterator[CommitFile]:
    listing = _run_git(["ls-tree", "-r", "-l", "-z", "--full-tree", commit], database=database)
    for item in listing.decode("utf-8", "surrogateescape").split("\0"):
        details, tab, path = item.partition("\t")
        if tab:
            mode, _, name, size = details.split()
            # Submodules have no size ("-").
            yield CommitFile(path, mode, name, int(size) if size.isdigit() else 0)


def _git_environment() -> dict[str, str]:
    """Return our environment without variables of a git that runs us, and with prompts disabled."""
    kept = ("GIT_SSL", "GIT_SSH", "GIT_PROXY", "GIT_CONFIG", "GIT_HTTP", "GIT_ASKPASS", "GIT_TRACE")
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(kept)
    }
    return {**env, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def _run_git(
    args: Sequence[str],
    *,
    database: Path | None = None,
    directory: Path | None = None,
    input: bytes = b"",
    transport: bool = True,
) -> bytes:
    program = shutil.which("git")
    if program is None:
        raise MachineError("git not found", hint="install git (apt-get install git)")
    # Never run hooks, commands in URLs (ext::), or a garbage collection in the background.
    command = [program, "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false"]
    command += ["-c", "protocol.ext.allow=never", "-c", "gc.auto=0"]
    if database is not None:
        command += ["--git-dir", str(database)]
    try:
        # In a new session ssh has no controlling terminal on which to ask for a passphrase.
        done = subprocess.run(
            [*command, *args],
            cwd=directory,
            env=_git_environment() | ({} if transport else {"GIT_ALLOW_PROTOCOL": ""}),
            input=input,
            capture_output=True,
            start_new_session=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise TemporaryError(f"git {args[0]} timed out after {_TIMEOUT_SECONDS} seconds") from error
    if done.returncode:
        raise _git_error(args, done.stderr.decode(errors="replace"))
    return done.stdout


def _git_error(args: Sequence[str], message: str) -> OutsideError:
    lines = [strip_credentials(line) for line in message.strip().splitlines()]
    kind = TemporaryError if any(sign in message for sign in _TEMPORARY_ERRORS) else OutsideError
    place = next(
        (strip_credentials(word) for word in args if ":" in word or word.startswith("/")), ""
    )
    return kind(
        f"git {args[0]} failed{f' for {place}' if place else ''}",
        details=tuple(lines[-5:]),
        hint="try `git ls-remote` with the same URL: danlu uses your git configuration",
    )
