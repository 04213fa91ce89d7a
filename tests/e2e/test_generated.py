"""System packages whose scripts generate keys and databases: one digest, and no key in an image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Danlu

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1800)]

PACKAGES = ("mariadb-server", "postgresql", "ssl-cert")

START = """
set -e
if grep -rl 'PRIVATE KEY-----' /etc /var/lib; then exit 9; fi
make-ssl-cert generate-default-snakeoil 2>/dev/null
test -s /etc/ssl/private/ssl-cert-snakeoil.key
mariadb-install-db --user=mysql >/dev/null
test -e /var/lib/mysql/ibdata1
pg_createcluster 15 main >/dev/null
test -e /var/lib/postgresql/15/main/PG_VERSION
test -d /run/lock -a -k /run/lock
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    names = ", ".join(f'"{name}"' for name in PACKAGES)
    text = f'def build():\n    base(os="debian12")\n    install.apt_packages(name=[{names}])\n'
    (tmp_path / "build.envd").write_text(text)
    return tmp_path


def test_generated_keys_and_databases_are_created_at_start_and_not_in_the_image(
    danlu: Danlu, project: Path
) -> None:
    first = danlu("build", "--format", "json", cwd=project, timeout=900)
    again = danlu("build", "--no-cache", "--format", "json", cwd=project, timeout=900)
    assert json.loads(first.stdout)["image"] == json.loads(again.stdout)["image"]
    for command in ("make-ssl-cert", "mariadb-install-db", "pg_createcluster"):
        assert command in again.stderr
    assert danlu("run", "--", "sh", "-c", START, cwd=project).returncode == 0
