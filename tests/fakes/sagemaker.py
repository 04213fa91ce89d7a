"""An account of AWS over HTTP whose training jobs run: see ``sagemaker_server.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.aws import aws_variables

PACKAGES = ("moto[ecr,iam,logs,s3,sagemaker,server,sts]==5.2.5",)

ROLE = "arn:aws:iam::123456789012:role/service-role/Train"
REGISTRY = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
BUCKET, DISTANT_BUCKET = "team-ml", "team-far"


@dataclass(frozen=True)
class RunningAccount:
    """The address of an account, and the directory in which its jobs run."""

    url: str
    root: Path

    def environ(self, home: Path) -> dict[str, str]:
        """Return variables with which a program finds this account and its credentials."""
        return aws_variables(self.url, home)


@contextmanager
def serve_account(packages: Path) -> Iterator[RunningAccount]:
    """Serve an account with two buckets within the block; moto is in ``packages``."""
    server = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("sagemaker_server.py")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(packages)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps({BUCKET: "us-east-1", DISTANT_BUCKET: "eu-west-1"}) + "\n")
        server.stdin.flush()
        lines = iter(server.stdout.readline, "")
        found = next(json.loads(line) for line in lines if line.startswith('{"url"'))
        yield RunningAccount(found["url"], Path(found["root"]))
        server.stdin.close()
