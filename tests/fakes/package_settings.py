"""Every setting of pip and uv in the table of decisions, with a value that could harm a build.

The values are about packages named ``limited``, ``built`` (a source distribution) and
``build-helper`` (what it is built with), and one that is ``absent``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from danlu.sandbox.machine_settings import MACHINE_SETTINGS, MachineSetting
from danlu.sandbox.pip_indexes import render_uv_toml

#: Values other than "1" and true. ``{files}`` is a directory with the files that they name.
_TEXTS = {
    "abi": "cp27",
    "build-constraint": "{files}/build-constraints.txt",
    "cache-dir": "{files}/cache",
    "cert": "/etc/ssl/certs/ca-certificates.crt",
    "client-cert": "{files}/client.pem",
    "config-settings": "--x=y",
    "constraint": "{files}/constraints.txt",
    "editable": "{files}",
    "exclude": "{files}/excludes.txt",
    "exclude-newer": "2100-01-01",
    "uploaded-prior-to": "2100-01-01",
    "exists-action": "w",
    "extra-index-url": "file://{files}/more/simple",
    "find-links": "file://{files}/more",
    "implementation": "pp",
    "index-url": "file://{files}/simple",
    "index-strategy": "unsafe-best-match",
    "keyring-provider": "disabled",
    "link-mode": "symlink",
    "log": "{files}/pip.log",
    "no-binary": "built",
    "only-binary": "limited",
    "override": "{files}/overrides.txt",
    "platform": "win32",
    "prerelease": "allow",
    "progress-bar": "off",
    "proxy": "",
    "python": "/nowhere/python",
    "python-version": "2.7",
    "report": "{files}/report.json",
    "requirement": "{files}/constraints.txt",
    "resolution": "highest",
    "retries": "2",
    "timeout": "30",
    "torch-backend": "cpu",
    "trusted-host": "one.test",
}
_VARIABLES = {
    "HTTP_TIMEOUT": "30",
    "NO_PROXY": "one.test",
    "no_proxy": "one.test",
    "UV_CONFIG_FILE": "{files}/empty.toml",
    "UV_DEFAULT_INDEX": "file://{files}/simple",
    "UV_EXCLUDE_NEWER_PACKAGE": "limited=2100-01-01",
    "UV_EXTRA_INDEX_URL": "file://{files}/more/simple",
    "UV_FORK_STRATEGY": "fewest",
    "UV_INDEX": "file://{files}/more/simple",
    "UV_INDEX_URL": "file://{files}/simple",
    "UV_INSECURE_HOST": "one.test",
    "UV_LINK_MODE": "symlink",
    "UV_PRERELEASE": "allow",
    "UV_PROJECT": "/nowhere",
    "UV_PYTHON": "2.7",
    "UV_PYTHON_DOWNLOADS": "automatic",
    "UV_PYTHON_PREFERENCE": "only-managed",
    "UV_WORKING_DIR": "/nowhere",
    "UV_WORKING_DIRECTORY": "/nowhere",
    "SSL_CERT_DIR": "/etc/ssl/certs",
    "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
    "SSL_CLIENT_CERT": "",
}
#: Settings of uv's files; these are not texts.
_UV_VALUES: dict[str, object] = {
    "allow-insecure-host": ["one.test"],
    "build-constraint-dependencies": ["build-helper<1000"],
    "config-settings": {"x": "y"},
    "config-settings-package": {"absent": {"x": "y"}},
    "concurrent-builds": 1,
    "concurrent-downloads": 1,
    "concurrent-installs": 1,
    "constraint-dependencies": ["limited<2"],
    "dependency-metadata": [{"name": "limited", "version": "2.0", "requires-dist": []}],
    "exclude-dependencies": ["limited"],
    "exclude-newer-package": {"limited": "2100-01-01"},
    "extra-build-dependencies": {"built": ["build-helper<1000"]},
    "extra-build-variables": {"absent": {"X": "y"}},
    "extra-index-url": ["file://{files}/more/simple"],
    "find-links": ["file://{files}/more"],
    "http-proxy": "http://127.0.0.1:9",
    "https-proxy": "http://127.0.0.1:9",
    "no-proxy": ["one.test"],
    "index": [{"name": "more", "url": "file://{files}/more/simple"}],
    "override-dependencies": ["limited<2"],
    "prerelease-package": {"limited": "allow"},
    "python-downloads": "never",
    "python-preference": "only-managed",
    "required-version": ">=0.1",
    "no-index": False,
    "offline": False,
}
_UV_VALUES |= {"no-binary": ["built"], "no-binary-package": ["built"]}
_UV_VALUES |= {"only-binary": ["limited"], "no-build-package": ["limited"]}
for _name in (
    "no-emit-package",
    *("no-build-isolation-package", "no-sources-package", "reinstall-package", "upgrade-package"),
    *("extra", "no-extra", "group", "environments", "required-environments", "default-groups"),
):
    _UV_VALUES[_name] = [] if "environments" in _name else ["absent"]
_UV_VALUES |= {
    "add-bounds": "lower",
    "annotation-style": "line",
    "audit": {},
    "cache-keys": [],
    "custom-compile-command": "x",
    "fork-strategy": "fewest",
    "output-file": "{files}/locked.txt",
    "prefix": "{files}/prefix",
    "python-platform": "linux",
    "target": "{files}/target",
    "trusted-publishing": "never",
}
for _name in (
    *("check-url", "publish-url", "graalpy-install-mirror", "pyodide-install-mirror"),
    *("pypy-install-mirror", "python-install-mirror", "python-downloads-json-url"),
):
    _UV_VALUES[_name] = "https://one.test/"
#: What uv reads in the table ``[pip]`` only.
_BELOW_PIP = (
    "all-extras",
    "allow-empty-requirements",
    "annotation-style",
    "break-system-packages",
    "custom-compile-command",
    "emit-build-options",
    "emit-find-links",
    "emit-index-annotation",
    "emit-index-url",
    "emit-marker-expression",
    "extra",
    "generate-hashes",
    "group",
    "no-annotate",
    "no-binary",
    "no-deps",
    "no-emit-package",
    "no-extra",
    "no-header",
    "no-strip-extras",
    "no-strip-markers",
    "only-binary",
    "output-file",
    "prefix",
    "python",
    "python-platform",
    "python-version",
    "require-hashes",
    "strict",
    "system",
    "target",
    "universal",
    "verify-hashes",
)
#: What uv refuses in its own file, because it belongs to a project, or next to ``preview``.
_NOT_IN_UV_TOML = (
    "build-backend",
    "conflicts",
    "default-groups",
    "dependency-groups",
    "dev-dependencies",
    "environments",
    "managed",
    "minimum-libc-version",
    "package",
    "preview-features",
    "required-environments",
    "sources",
    "workspace",
)


class SettingCase(msgspec.Struct, frozen=True):
    """One spelling of a setting: the variables or the text of a file that set it."""

    setting: MachineSetting
    name: str
    variables: tuple[tuple[str, str], ...] = ()
    pip_conf: str = ""
    uv_toml: str = ""

    @property
    def id(self) -> str:
        """The name of the test."""
        kind = "pip.conf" if self.pip_conf else "uv.toml" if self.uv_toml else "variable"
        return f"{kind} {self.variables[0][0] if self.variables else self.name}"

    def fill(self, files: Path) -> SettingCase:
        """Return the case with ``files`` as the directory of the files that it names."""

        def put(text: str) -> str:
            return text.replace("{files}", str(files))

        return SettingCase(
            self.setting,
            self.name,
            tuple((name, put(value)) for name, value in self.variables),
            put(self.pip_conf),
            put(self.uv_toml),
        )


def write_setting_files(files: Path) -> None:
    """Write the files that the values name into ``files``."""
    (files / "simple").mkdir(parents=True)
    (files / "more/simple").mkdir(parents=True)
    texts = {
        "constraints.txt": "limited<2\nabsent<3\n",
        "build-constraints.txt": "build-helper<1000\n",
        "overrides.txt": "limited<2\n",
        "excludes.txt": "limited\n",
        "empty.toml": "",
        "client.pem": "",
    }
    for name, text in texts.items():
        (files / name).write_text(text)


def list_cases() -> list[SettingCase]:
    """Return a case for each name of each setting, in a file and as a variable."""
    return list({case.id: case for setting in MACHINE_SETTINGS for case in _iter(setting)}.values())


def _iter(setting: MachineSetting) -> Iterator[SettingCase]:
    for name in setting.pip:
        value = _TEXTS.get(name, "1")
        variable = f"PIP_{name.upper().replace('-', '_')}"
        yield SettingCase(setting, name, variables=((variable, value),))
        yield SettingCase(setting, name, pip_conf=f"[install]\n{name} = {value}\n")
    for name in setting.uv:
        if name in _NOT_IN_UV_TOML:
            continue
        text = "[pip]\n" if name in _BELOW_PIP else ""
        text += render_uv_toml({name: _UV_VALUES.get(name, _TEXTS.get(name, True))})
        yield SettingCase(setting, name, uv_toml=text)
    for name in setting.variables:
        variable = name.replace("*", "DOWNLOADS" if "CONCURRENT" in name else "MORE")
        if not variable.startswith("PIP_"):
            value = _VARIABLES.get(variable, _TEXTS.get(setting.name, "1"))
            yield SettingCase(setting, name, variables=((variable, value),))
