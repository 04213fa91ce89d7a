"""The base image of the other builders, created once from the same Debian as danlu's."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from functools import cached_property
from pathlib import Path

from benchmarks.machine import CERTIFICATES, configuration

PYTHON_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BaseImage:
    """A minimal Debian with this machine's mirrors, certificates and pip configuration, and uv.

    These would otherwise be sent with every build context; here they cost the peers nothing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @cached_property
    def archive(self) -> Path:
        """The root as a tar file."""
        machine = configuration()
        root, tar = self.directory / "root", self.directory / "base.tar"
        sources, options = self.directory / "sources.list", self.directory / "apt.conf"
        self.directory.mkdir(parents=True, exist_ok=True)
        sources.write_text("\n".join(machine.apt_sources) + "\n")
        options.write_text(machine.apt_options)
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--format=directory"]
        command += [f"--aptopt={options}", "--include=ca-certificates", "", str(root), str(sources)]
        subprocess.run(command, check=True)
        shutil.copy(os.environ.get("SSL_CERT_FILE", CERTIFICATES), f"{root}{CERTIFICATES}")
        (root / "etc/pip.conf").write_text(machine.pip_conf)
        for directory in machine.directories:
            shutil.copytree(directory, f"{root}{directory}", symlinks=False)
        uv = Path(sys.executable).with_name("uv")
        shutil.copy(uv, root / "usr/local/bin/uv")
        subprocess.run(["tar", "--numeric-owner", "-C", root, "-cf", tar, "."], check=True)
        shutil.rmtree(root)
        return tar

    @cached_property
    def layout(self) -> tuple[Path, str]:
        """The root as an OCI layout of one layer, and its manifest's digest."""
        layout = self.directory / "layout"
        blobs = layout / "blobs/sha256"
        blobs.mkdir(parents=True, exist_ok=True)

        def put(data: bytes, media_type: str) -> dict[str, object]:
            digest = hashlib.sha256(data).hexdigest()
            (blobs / digest).write_bytes(data)
            return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

        tar = self.archive.read_bytes()
        diff_id = f"sha256:{hashlib.sha256(tar).hexdigest()}"
        kind = "application/vnd.oci.image"
        layer = put(gzip.compress(tar, 1, mtime=0), f"{kind}.layer.v1.tar+gzip")
        config = {
            "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
            "os": "linux",
            "config": {"Env": [f"PATH={PYTHON_PATH}"]},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            "history": [{"created_by": "mmdebstrap"}],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": put(json.dumps(config).encode(), f"{kind}.config.v1+json"),
            "layers": [layer],
        }
        entry = put(json.dumps(manifest).encode(), f"{kind}.manifest.v1+json")
        names = {"org.opencontainers.image.ref.name": "base"}
        index = {"schemaVersion": 2, "manifests": [{**entry, "annotations": names}]}
        (layout / "index.json").write_text(json.dumps(index))
        (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        return layout, str(entry["digest"])
