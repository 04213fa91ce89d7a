from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.sandbox.generated_files import remove_generated_files
from tests.sandbox.trees import write

PEM = "some text\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n"


def files(root: Path) -> list[str]:
    results = [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]
    return sorted(str(path.relative_to(root)) for path in results)


@pytest.mark.parametrize(
    ("entries", "kept", "hint"),
    [
        (
            {
                "etc/ssl/private/ssl-cert-snakeoil.key": PEM,
                "etc/ssl/certs/ssl-cert-snakeoil.pem": "random",
                "etc/ssl/certs/ce275665.0": "->ssl-cert-snakeoil.pem",
                "etc/ssl/certs/other.pem": "kept",
                "etc/ssl/certs/0123.0": "->other.pem",
            },
            ["etc/ssl/certs/0123.0", "etc/ssl/certs/other.pem"],
            "make-ssl-cert generate-default-snakeoil",
        ),
        (
            {"var/lib/mysql/mysql/db.frm": "x", "var/lib/mysql/ibdata1": "x"},
            [],
            "mariadb-install-db",
        ),
        (
            {
                "var/lib/postgresql/15/main/base/1/2": "x",
                "etc/postgresql/15/main/postgresql.conf": "x",
                "etc/postgresql-common/createcluster.conf": "kept",
            },
            ["etc/postgresql-common/createcluster.conf"],
            "pg_createcluster",
        ),
        (
            {"etc/ssh/ssh_host_rsa_key": PEM, "etc/ssh/sshd_config": "x"},
            ["etc/ssh/sshd_config"],
            "-A",
        ),
        ({"etc/bind/rndc.key": "x", "etc/bind/named.conf": "x"}, ["etc/bind/named.conf"], "rndc"),
        ({"etc/munge/munge.key": "x"}, [], "mungekey"),
        (
            {
                "var/lib/texmf/web2c/luahbtex/lualatex.fmt": "x",
                "var/lib/texmf/web2c/luatex/optex.fmt": "x",
                "var/lib/texmf/web2c/pdftex/pdflatex.fmt": "kept",
                "var/lib/texmf/web2c/tex/tex.fmt": "x",
                "var/lib/texmf/web2c/xetex/xelatex.fmt": "kept",
            },
            ["var/lib/texmf/web2c/pdftex/pdflatex.fmt", "var/lib/texmf/web2c/xetex/xelatex.fmt"],
            "fmtutil-sys --missing",
        ),
    ],
)
def test_generated_files_are_removed_and_reported(
    tmp_path: Path, entries: dict[str, object], kept: list[str], hint: str
) -> None:
    write(tmp_path, entries)
    lines = remove_generated_files(tmp_path)
    assert files(tmp_path) == kept
    assert len(lines) == 1
    assert hint in lines[0]


def test_database_directories_are_kept(tmp_path: Path) -> None:
    write(tmp_path, {"var/lib/mysql/x/y": "x"})
    remove_generated_files(tmp_path)
    assert (tmp_path / "var/lib/mysql").is_dir()


def test_private_key_is_removed_anywhere_unless_a_package_contains_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "var/lib/dpkg/info/x.list": "/.\n/usr/share/x/test.key\n/lib/x/merged.key\n",
            "usr/share/x/test.key": PEM,
            "usr/lib/x/merged.key": PEM,
            "etc/prosody/localhost.key": PEM,
            "etc/prosody/localhost.crt": "-----BEGIN CERTIFICATE-----",
        },
    )
    lines = remove_generated_files(tmp_path)
    assert "etc/prosody/localhost.key" not in files(tmp_path)
    assert len(files(tmp_path)) == 4
    assert len(lines) == 1
    assert lines[0].startswith(
        "removed from the image: the generated private key /etc/prosody/localhost.key"
    )


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = write(
        tmp_path / "outside", {"ssh_host_rsa_key": PEM, "ibdata1": "x", "x.list": "/etc/k"}
    )
    upper = write(
        tmp_path / "upper",
        {
            "etc/ssh": f"->{outside}",
            "var/lib/mysql": f"->{outside}",
            "var/lib/dpkg/info/x.list": f"->{outside}/x.list",
            "etc/k": PEM,
            "etc/link": f"->{outside}/ssh_host_rsa_key",
        },
    )
    os.mkfifo(upper / "var/lib/dpkg/info/y.list")
    os.mkfifo(upper / "etc/fifo")
    lines = remove_generated_files(upper)
    assert files(outside) == ["ibdata1", "ssh_host_rsa_key", "x.list"]
    assert not (upper / "etc/k").exists()
    assert len(lines) == 1


def test_ordinary_package_reports_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"usr/bin/x": "x", "etc/x.conf": "x", "var/lib/mysql/": "", "etc/ssh/": ""})
    assert remove_generated_files(tmp_path) == []
    assert files(tmp_path) == ["etc/x.conf", "usr/bin/x"]
