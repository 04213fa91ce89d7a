"""Copy the servers of VS Code that users added to the home directory of a pod."""

from __future__ import annotations

import gzip
import os
import tarfile
import tempfile
from pathlib import Path
from typing import BinaryIO

from anyio import to_thread

from danlu.engine.kubernetes.pod import EnvironmentPod
from danlu.engine.kubernetes.program import pipe_script, run_script
from danlu.engine.vscode_servers import VscodeServer, list_servers
from danlu.errors import OutsideError, TemporaryError

# Fast: it is compressed once for each start of a pod.
_GZIP_LEVEL = 1

#: Reports whether there is something at the path ``$1`` below the home directory.
_FIND_SCRIPT = '[ ! -e "$HOME/$1" ] || echo found'

#: Unpacks a server with the data folder ``$1``, the commit ``$2``, the quality ``$3`` and the
#: program of its command line ``$4``; the last two may be empty. Nothing is where editors look for
#: it before all of it is there.
_UNPACK_SCRIPT = r"""[ -n "$HOME" ] && mkdir -p "$HOME/$1/bin" && cd "$HOME/$1" || exit
new=bin/.$2.new
rm -rf "$new" && mkdir "$new" && gzip -dc | tar -xf - -C "$new" || exit
[ -z "$4" ] || mv -f "$new/cli/$4" "$4-$2" || exit
mv "$new/server" "bin/$2" && rm -rf "$new" || exit
[ -z "$3" ] || [ -e "cli/servers/$3-$2" ] || {
  mkdir -p "cli/servers/$3-$2" && ln -s "../../../bin/$2" "cli/servers/$3-$2/server"
}"""


async def copy_servers(pod: EnvironmentPod, root: Path) -> str:
    """Copy the servers in the user's directory ``root`` that the pod does not have yet.

    Returns a sentence about what prevented it, or an empty string.
    """
    for server in list_servers(root):
        try:
            await _copy_server(pod, root, server)
        except (OutsideError, TemporaryError) as error:
            return f"{server.name} {server.version} was not copied to the pod: {error.message}"
    return ""


async def _copy_server(pod: EnvironmentPod, root: Path, server: VscodeServer) -> None:
    place = f"{server.folder}/bin/{server.commit}"
    if (await run_script(pod, _FIND_SCRIPT, place)).strip() == b"found":
        return
    words = (server.folder, server.commit, server.quality_name, server.cli)
    with tempfile.TemporaryFile() as archive, open(os.devnull, "wb") as null:
        await to_thread.run_sync(_write_archive, archive, root / server.commit)
        archive.seek(0)
        await pipe_script(pod, _UNPACK_SCRIPT, *words, source=archive, target=null)


def _write_archive(file: BinaryIO, directory: Path) -> None:
    with (
        gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_GZIP_LEVEL) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        for name in ("server", "cli"):
            if (directory / name).is_dir():
                archive.add(directory / name, name, filter=_drop_owner)


def _drop_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
