"""Popular packages whose scripts generate files: one image from every build, also of others.

A package that fails here generates something at its installation. If that is a key or a database,
it belongs into :mod:`danlu.sandbox.generated_files`; if nothing in an image reads it, into
:mod:`danlu.sandbox.finalize_upper`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Danlu

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(9000),
    pytest.mark.skipif(os.geteuid() != 0, reason="builds as root and as an ordinary user"),
]

GROUPS = {
    "java-and-text": "default-jre-headless tomcat10 ant slapd emacs-nox aspell-en wamerican "
    "docbook-xml man-db fontconfig fonts-dejavu-core",
    "servers": "nginx-light redis-server mosquitto memcached bind9 krb5-kdc snmpd chrony stunnel4 "
    "dovecot-core postfix",
    "web": "apache2 php exim4-daemon-light munge rabbitmq-server openssh-server samba cups "
    "avahi-daemon tor",
    "science": "r-base-core ruby nodejs python3-numpy python3-matplotlib gnuplot-nox graphviz "
    "imagemagick ghostscript tesseract-ocr texlive-latex-base",
    "machine": "docker.io dbus polkitd systemd rsyslog cron logrotate sudo uuid-runtime locales "
    "openvpn iptables nfs-common",
    "desktop": "libgtk-3-0 shared-mime-info adwaita-icon-theme xvfb desktop-file-utils libgl1 "
    "mariadb-server postgresql ssl-cert xfonts-base",
}

_BUILD_AS_USER = 'cp -r "$1" ~/project && cd ~/project && exec "$2" build --frozen --format json'


def test_there_are_sixty_of_them() -> None:
    names = " ".join(GROUPS.values()).split()
    assert len(names) == len(set(names)) >= 60


@pytest.mark.parametrize("group", GROUPS)
def test_packages_with_scripts_are_installed_the_same_by_everybody(
    danlu: Danlu, tmp_path: Path, group: str
) -> None:
    names = ", ".join(f'"{name}"' for name in GROUPS[group].split())
    text = f'def build():\n    base(os="debian12")\n    install.apt_packages(name=[{names}])\n'
    (tmp_path / "build.envd").write_text(text)
    first = read_image(danlu("build", "--format", "json", cwd=tmp_path, timeout=3000).stdout)
    again = danlu("build", "--no-cache", "--format", "json", cwd=tmp_path, timeout=3000)
    assert read_image(again.stdout) == first
    assert read_image(build_as_ordinary_user(tmp_path)) == first


def read_image(output: str) -> Any:
    """Return the digests of an image and of its layers in the output of a build."""
    return json.loads(output)["image"]


def build_as_ordinary_user(project: Path) -> str:
    """Build a project with a store of another user, and return what is printed."""
    program = str(Path(sys.executable).with_name("danlu"))
    variables = {name: text for name, text in os.environ.items() if name != "DANLU_HOME"}
    # pytest closes the directories above its own to other users.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        for name in ("build.envd", "danlu.lock"):
            shutil.copyfile(project / name, Path(place, name))
        subprocess.run(["chmod", "-R", "a+rX", place], check=True)
        command = [sys.executable, "-m", "tests.ordinary_user"]
        command += ["sh", "-c", _BUILD_AS_USER, "sh", place, program]
        result = subprocess.run(
            command,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    return result.stdout
