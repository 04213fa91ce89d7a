"""Repositories: a ref to a commit, a commit to a directory; never running what they contain.

The user's own git configuration counts (``insteadOf``, credential helpers, ssh), hooks never do.
Blocking; call it in a thread from asynchronous code.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from danlu.errors import MachineError, OutsideError, TemporaryError, UsageError
from danlu.lang.types import Included
from danlu.util.files import remove_tree
from danlu.util.locks import file_lock

__all__ = ["checkout", "read_repository", "resolve", "tree_digest"]

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ABBREVIATED = re.compile(r"[0-9a-f]{7,39}")

#: Seconds that one command of git's may take.
_LIMIT = 1800

_TEMPORARY = (
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


def resolve(url: str, ref: str, *, cache: Path, offline: bool = False) -> str:
    """The full commit that ``ref`` of ``url`` means now: a branch, a tag, a commit, empty: HEAD.

    As in pip and uv a branch wins over a tag of its name. A full commit is taken as it is.
    Raises :class:`UsageError` where there is no such ref, :class:`OutsideError` where the
    repository cannot be reached.
    """
    _check(url, ref)
    if _COMMIT.fullmatch(ref):
        return ref
    if offline:
        raise OutsideError(f"{_shown(url)} has to be asked for {ref or 'HEAD'}, and we are offline")
    names = [f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", ref]
    names = names if ref else ["HEAD"]
    wanted = [name.removesuffix("^{}") for name in names]
    output = _git(["ls-remote", "--", url, *dict.fromkeys([*wanted, *(n + "^{}" for n in wanted)])])
    found = {}
    for line in output.decode(errors="replace").splitlines():
        commit, _, name = line.partition("\t")
        found[name] = commit
    for name in names:
        meant = found.get(f"{name}^{{}}") or found.get(name)
        if meant:
            return meant
    if _ABBREVIATED.fullmatch(ref):
        return _abbreviated(url, ref, cache)
    raise UsageError(f"the repository {_shown(url)} has no branch, tag or commit {ref or 'HEAD'!r}")


def checkout(url: str, commit: str, *, cache: Path, offline: bool = False) -> Path:
    """A directory with ``commit`` of ``url``, submodules too, and its history for tools that ask.

    It is kept in ``cache`` and must not be changed.
    """
    _check(url, commit)
    if not _COMMIT.fullmatch(commit):
        raise UsageError(f"{commit!r} is not a full commit")
    place = cache / "trees" / f"{_key(url)}-{commit}"
    if place.is_dir():
        return place
    with _database(url, cache) as database:
        if place.is_dir():
            return place
        _fetch_all(database, url, commit, offline=offline)
        place.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
        try:
            _fill(database, url, commit, staged / "tree", offline=offline)
            os.rename(staged / "tree", place)
        finally:
            remove_tree(staged)
    return place


def read_repository(
    url: str, ref: str, *, commit: str, cache: Path, offline: bool = False
) -> Included:
    """The build files (``*.envd``) of a repository at ``commit``, or at ``ref`` where it is empty.

    Only that commit is fetched, without history; nothing is checked out. A repository that lies
    on this machine, also by git's ``insteadOf``, is read ``offline`` too.
    """
    offline = offline and not _on_this_machine(url)
    commit = commit or resolve(url, ref, cache=cache, offline=offline)
    with _database(url, cache) as database:
        if not _has(database, commit):
            _fetch_one(database, url, commit, offline=offline)
        return Included(commit, _build_files(database, commit))


def tree_digest(directory: Path) -> str:
    """sha256 (hexadecimal) of what a directory holds, its ``.git`` left out."""
    digest = hashlib.sha256()
    for root, directories, files in os.walk(directory):
        directories[:] = sorted(name for name in directories if name != ".git")
        for name in sorted({*files, *(d for d in directories if os.path.islink(f"{root}/{d}"))}):
            path = Path(root) / name
            if name == ".git":
                continue
            relative = path.relative_to(directory).as_posix()
            if path.is_symlink():
                kind, content = "link", os.readlink(path).encode()
            elif path.is_file():
                kind = "program" if path.stat().st_mode & 0o100 else "file"
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            else:
                continue
            digest.update(f"{kind}\0{relative}\0".encode("utf-8", "surrogateescape"))
            digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()


def _check(url: str, ref: str) -> None:
    # Either would be read as an option, or as a command to run (gitremote-helpers(7)).
    if url.startswith("-") or re.match(r"\w+::", url) or ref.startswith("-") or "\n" in url + ref:
        raise UsageError(f"not a repository: {url!r} {ref!r}")


def _key(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:24]


def _shown(url: str) -> str:
    return re.sub(r"^(\w+://)[^/@]*@", r"\1", url)


@contextmanager
def _database(url: str, cache: Path) -> Iterator[Path]:
    """The bare repository of everything fetched from ``url``, ours alone while the block runs."""
    database = cache / "db" / _key(url)
    with file_lock(cache / "db" / f"{_key(url)}.lock"):
        if not (database / "HEAD").exists():
            remove_tree(database)
            database.parent.mkdir(parents=True, exist_ok=True)
            _git(["init", "--quiet", "--bare", "--template=", str(database)])
        yield database


def _has(database: Path, commit: str) -> bool:
    try:
        _git(["cat-file", "-e", f"{commit}^{{commit}}"], database=database)
    except OutsideError:
        return False
    return True


def _on_this_machine(url: str) -> bool:
    """Whether git, with the user's ``insteadOf``, reads ``url`` without a network."""
    meant = _git(["ls-remote", "--get-url", "--", url]).decode(errors="replace").strip()
    return meant.startswith(("file://", "/"))


def _online(url: str, commit: str, offline: bool) -> None:
    if offline:
        raise OutsideError(
            f"commit {commit[:12]} of {_shown(url)} is not in the cache, and --offline forbids to"
            " fetch it"
        )


_REFS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")


def _fetch_one(database: Path, url: str, commit: str, *, offline: bool) -> None:
    _online(url, commit, offline)
    fetch = ["fetch", "--quiet", "--no-tags"]
    try:
        _git([*fetch, "--depth", "1", "--", url, commit], database=database)
    except TemporaryError:
        raise
    except OutsideError:
        # A server may refuse a bare commit (uploadpack.allowReachableSHA1InWant).
        _fetch_all(database, url, commit, offline=offline)


def _fetch_all(database: Path, url: str, commit: str, *, offline: bool) -> None:
    """All branches and tags with their history: versions are often made from them."""
    shallow = (database / "shallow").exists()
    complete = (database / "danlu-complete").exists()
    if complete and not shallow and _has(database, commit):
        return
    _online(url, commit, offline)
    more = ["--unshallow"] if shallow else []
    _git(["fetch", "--quiet", "--force", *more, "--", url, *_REFS], database=database)
    if not _has(database, commit):
        _git(["fetch", "--quiet", "--", url, commit], database=database)
    (database / "danlu-complete").touch()


def _abbreviated(url: str, ref: str, cache: Path) -> str:
    with _database(url, cache) as database:
        _git(["fetch", "--quiet", "--force", "--", url, *_REFS], database=database)
        try:
            output = _git(["rev-parse", "--verify", f"{ref}^{{commit}}"], database=database)
        except OutsideError as error:
            raise UsageError(f"the repository {_shown(url)} has no commit {ref}") from error
        return output.decode().strip()


def _fill(database: Path, url: str, commit: str, place: Path, *, offline: bool) -> None:
    _git(["clone", "--quiet", "--no-checkout", "--template=", str(database), str(place)])
    _git(["remote", "set-url", "origin", url], directory=place)
    _git(["checkout", "--quiet", "--detach", commit], directory=place)
    if (place / ".gitmodules").exists():
        _online(url, commit, offline)
        update = ["submodule", "--quiet", "update", "--init", "--recursive"]
        _git(update, directory=place)
    # Credentials in the address must not travel with the tree into a sandbox.
    _git(["remote", "set-url", "origin", _shown(url)], directory=place)


def _build_files(database: Path, commit: str) -> dict[str, str]:
    listing = _git(["ls-tree", "-r", "-z", "--full-tree", commit], database=database)
    files: dict[str, str] = {}
    for item in listing.decode("utf-8", "surrogateescape").split("\0"):
        details, _, path = item.partition("\t")
        words = details.split()
        # 120000 are symbolic links, 160000 submodules.
        if path.endswith(".envd") and words and words[0] in ("100644", "100755"):
            data = _git(["cat-file", "blob", words[2]], database=database)
            try:
                files[path] = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise OutsideError(f"{path} of the repository is not text") from error
    return files


def _environment() -> dict[str, str]:
    """Ours, without what a git that runs us has set, and with nobody to ask for a password."""
    kept = ("GIT_SSL", "GIT_SSH", "GIT_PROXY", "GIT_CONFIG", "GIT_HTTP", "GIT_ASKPASS", "GIT_TRACE")
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(kept)
    }
    return {**env, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def _git(
    args: Sequence[str], *, database: Path | None = None, directory: Path | None = None
) -> bytes:
    program = shutil.which("git")
    if program is None:
        raise MachineError("git is missing", hint="apt-get install git")
    command = [program, "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false"]
    command += ["-c", "protocol.ext.allow=never", "-c", "gc.auto=0"]
    if database is not None:
        command += ["--git-dir", str(database)]
    try:
        # In a session of its own ssh finds no terminal to ask for a passphrase.
        done = subprocess.run(
            [*command, *args],
            cwd=directory,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,
            timeout=_LIMIT,
        )
    except subprocess.TimeoutExpired as error:
        raise TemporaryError(f"git {args[0]} took longer than {_LIMIT} seconds") from error
    if done.returncode:
        raise _refusal(args, done.stderr.decode(errors="replace"))
    return done.stdout


def _refusal(args: Sequence[str], message: str) -> OutsideError:
    lines = [_shown(line) for line in message.strip().splitlines()]
    kind = TemporaryError if any(one in message for one in _TEMPORARY) else OutsideError
    place = next((_shown(one) for one in args if ":" in one or one.startswith("/")), "")
    return kind(
        f"git {args[0]} failed{f' for {place}' if place else ''}",
        details=tuple(lines[-5:]),
        hint="try `git ls-remote` with the same address: danlu uses your git configuration",
    )
