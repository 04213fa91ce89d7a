"""Dockerfiles with the answer of BuildKit, which was verified by building them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "dockerfile_cases.json").read_text()
)


def write_case(case: dict[str, Any], directory: Path, *, base: str) -> None:
    """Write the files of a case; ``base`` is the image that it starts from."""
    for name, text in case["files"].items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".tar"):
            with tarfile.open(path, "w") as tar:
                info = tarfile.TarInfo("f")
                info.size = 1
                tar.addfile(info, io.BytesIO(b"1"))
        else:
            path.write_text(text.replace("FROM BASE", f"FROM {base}"), encoding="utf-8", newline="")
