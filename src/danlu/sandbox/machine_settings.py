"""What each setting of pip and uv on this machine may do to an environment: the table of decisions.

A setting can be an option in pip's configuration files or a ``PIP_*`` variable, a setting in uv's
configuration files or a ``UV_*`` variable. Whatever the table does not list reaches neither uv nor
a step: a lock gives the same image on every machine.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

#: When a setting applies.
#:
#: * ``resolving``: when a lock is made; it restricts which files are locked.
#: * ``building``: when a lock is made; it restricts what source distributions are built with.
#: * ``fetching``: whenever something is fetched, for a lock or for a locked installation.
#: * ``nowhere``: never.
Decision = Literal["resolving", "building", "fetching", "nowhere"]

#: What is mounted or passed into a sandbox: for the commands of ``run()``, and for the resolution
#: of packages that must be built to know their requirements.
Sandbox = Literal["steps", "resolution"]


class MachineSetting(msgspec.Struct, frozen=True):
    """A setting: its decision and the reason in a few words, and its names.

    ``pip`` are options of ``pip install``, ``uv`` names in uv's files (also below ``[pip]``),
    ``variables`` those that uv reads, the preferred one first; they may be patterns. Names of one
    setting override each other: variables, then uv's files, then pip's.

    ``sandboxes`` also get the setting. ``separator`` is not empty if the value is a list of
    addresses: it separates them in uv's variable. ``files`` is uv's option if the value is a list
    of requirements files, ``formats`` pip's option if it says which packages may be wheels.
    """

    decision: Decision
    reason: str
    pip: tuple[str, ...] = ()
    uv: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    sandboxes: tuple[Sandbox, ...] = ()
    separator: str = ""
    files: str = ""
    formats: str = ""

    @property
    def name(self) -> str:
        """The name that users know it by."""
        if self.pip or self.uv:
            return (*self.pip, *self.uv)[0]
        return self.variables[0].removeprefix("UV_").lower().replace("_", "-")


_BOTH: tuple[Sandbox, ...] = ("steps", "resolution")

MACHINE_SETTINGS: tuple[MachineSetting, ...] = (
    # Which files are locked.
    MachineSetting(
        "resolving",
        "restricts versions",
        pip=("constraint",),
        variables=("UV_CONSTRAINT",),
        files="--constraints",
    ),
    MachineSetting(
        "resolving",
        "restricts versions",
        uv=("constraint-dependencies",),
        sandboxes=("resolution",),
    ),
    MachineSetting(
        "resolving", "replaces requirements", variables=("UV_OVERRIDE",), files="--overrides"
    ),
    MachineSetting(
        "resolving",
        "replaces requirements",
        uv=("override-dependencies",),
        sandboxes=("resolution",),
    ),
    MachineSetting(
        "resolving", "leaves packages out", variables=("UV_EXCLUDE",), files="--excludes"
    ),
    MachineSetting(
        "resolving", "leaves packages out", uv=("exclude-dependencies",), sandboxes=("resolution",)
    ),
    MachineSetting(
        "resolving",
        "ignores newer files",
        pip=("uploaded-prior-to",),
        uv=("exclude-newer",),
        variables=("UV_EXCLUDE_NEWER",),
        sandboxes=("resolution",),
    ),
    MachineSetting(
        "resolving",
        "ignores newer files",
        uv=("exclude-newer-package",),
        variables=("UV_EXCLUDE_NEWER_PACKAGE",),
        sandboxes=("resolution",),
    ),
    MachineSetting(
        "resolving",
        "allows pre-releases",
        pip=("pre",),
        uv=("prerelease",),
        variables=("UV_PRERELEASE",),
        sandboxes=("resolution",),
    ),
    MachineSetting(
        "resolving", "allows pre-releases", uv=("prerelease-package",), sandboxes=("resolution",)
    ),
    MachineSetting(
        "resolving",
        "chooses the highest or the lowest versions",
        uv=("resolution",),
        variables=("UV_RESOLUTION",),
        sandboxes=("resolution",),
    ),
    MachineSetting(
        "resolving", "corrects metadata", uv=("dependency-metadata",), sandboxes=("resolution",)
    ),
    MachineSetting(
        "resolving",
        "locks source distributions, built in the sandbox",
        pip=("no-binary",),
        uv=("no-binary", "no-binary-package"),
        formats="--no-binary",
    ),
    MachineSetting(
        "resolving",
        "locks wheels only",
        pip=("only-binary",),
        uv=("only-binary", "no-build", "no-build-package"),
        formats="--only-binary",
    ),
    # What locked source distributions are built with.
    MachineSetting(
        "building",
        "restricts build requirements",
        pip=("build-constraint",),
        variables=("UV_BUILD_CONSTRAINT",),
        files="--constraints",
    ),
    MachineSetting(
        "building",
        "restricts build requirements",
        uv=("build-constraint-dependencies",),
        sandboxes=("resolution",),
    ),
    MachineSetting(
        "building",
        "adds build requirements to packages",
        uv=("extra-build-dependencies",),
        sandboxes=("resolution",),
    ),
    # Where files come from, and how to reach it.
    MachineSetting(
        "fetching",
        "the default index",
        pip=("index-url",),
        uv=("index-url",),
        variables=("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
        sandboxes=_BOTH,
        separator=" ",
    ),
    MachineSetting(
        "fetching",
        "more indexes",
        pip=("extra-index-url",),
        uv=("extra-index-url",),
        variables=("UV_INDEX", "UV_EXTRA_INDEX_URL"),
        sandboxes=_BOTH,
        separator=" ",
    ),
    MachineSetting("fetching", "named indexes", uv=("index",), sandboxes=_BOTH),
    MachineSetting(
        "fetching",
        "pages and directories with files",
        pip=("find-links",),
        uv=("find-links",),
        variables=("UV_FIND_LINKS",),
        sandboxes=_BOTH,
        separator=",",
    ),
    MachineSetting(
        "fetching",
        "only pages and directories",
        pip=("no-index",),
        uv=("no-index",),
        variables=("UV_NO_INDEX",),
        sandboxes=_BOTH,
    ),
    MachineSetting(
        "fetching",
        "which index is asked",
        uv=("index-strategy",),
        variables=("UV_INDEX_STRATEGY",),
        sandboxes=_BOTH,
    ),
    MachineSetting(
        "fetching",
        "hosts without verified certificates",
        pip=("trusted-host",),
        uv=("allow-insecure-host",),
        variables=("UV_INSECURE_HOST",),
        sandboxes=_BOTH,
    ),
    MachineSetting(
        "fetching",
        "certificates of servers",
        pip=("cert",),
        variables=("SSL_CERT_FILE", "SSL_CERT_DIR"),
    ),
    MachineSetting(
        "fetching",
        "certificates of the system",
        uv=("system-certs", "native-tls"),
        variables=("UV_SYSTEM_CERTS", "UV_NATIVE_TLS"),
        sandboxes=("steps",),
    ),
    MachineSetting(
        "fetching",
        "the certificate of this machine",
        pip=("client-cert",),
        variables=("SSL_CLIENT_CERT",),
    ),
    MachineSetting(
        "fetching",
        "the proxy",
        pip=("proxy",),
        uv=("http-proxy",),
        variables=("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"),
        sandboxes=("steps",),
    ),
    MachineSetting(
        "fetching",
        "the proxy",
        pip=("proxy",),
        uv=("https-proxy",),
        variables=("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"),
        sandboxes=("steps",),
    ),
    MachineSetting(
        "fetching", "hosts without a proxy", uv=("no-proxy",), variables=("NO_PROXY", "no_proxy")
    ),
    MachineSetting(
        "fetching",
        "how long to wait",
        pip=("timeout",),
        variables=("UV_HTTP_TIMEOUT", "UV_REQUEST_TIMEOUT", "HTTP_TIMEOUT"),
        sandboxes=_BOTH,
    ),
    MachineSetting(
        "fetching",
        "how long to wait",
        variables=("UV_HTTP_CONNECT_TIMEOUT", "UV_LOCK_TIMEOUT"),
    ),
    MachineSetting(
        "fetching",
        "how often to try",
        pip=("retries",),
        variables=("UV_HTTP_RETRIES",),
        sandboxes=_BOTH,
    ),
    MachineSetting(
        "fetching",
        "where passwords are",
        pip=("keyring-provider",),
        uv=("keyring-provider",),
        variables=("UV_KEYRING_PROVIDER",),
    ),
    MachineSetting(
        "fetching",
        "passwords and tokens",
        variables=(
            *("UV_INDEX_*_USERNAME", "UV_INDEX_*_PASSWORD"),
            *("UV_API_KEY", "UV_AUTH_TOKEN", "UV_CREDENTIALS_DIR"),
        ),
    ),
    MachineSetting(
        "fetching",
        "object stores",
        variables=("UV_S3_ENDPOINT_URL", "UV_GCS_ENDPOINT_URL", "UV_AZURE_ENDPOINT_URL"),
    ),
    MachineSetting("fetching", "uses downloads only", uv=("offline",), variables=("UV_OFFLINE",)),
    MachineSetting(
        "fetching",
        "the load of this machine",
        uv=("concurrent-downloads", "concurrent-installs"),
        variables=("UV_CONCURRENT_*",),
    ),
    MachineSetting(
        "fetching",
        "which configuration files are read",
        variables=("UV_CONFIG_FILE", "UV_NO_CONFIG", "UV_NO_SYSTEM_CONFIG"),
    ),
    MachineSetting(
        "fetching",
        "prefers wheels, as danlu does itself",
        pip=("prefer-binary",),
        sandboxes=("steps",),
    ),
    MachineSetting(
        "fetching",
        "saves a request",
        pip=("disable-pip-version-check",),
        variables=("PIP_DISABLE_PIP_VERSION_CHECK",),
        sandboxes=("steps",),
    ),
    # Nowhere: a layer has one place, and its content depends on the lock alone.
    MachineSetting(
        "nowhere",
        "packages are installed into layers",
        pip=(
            *("target", "user", "prefix", "root", "home", "src", "build", "python"),
            *("require-virtualenv", "break-system-packages", "ignore-installed"),
            *("force-reinstall", "exists-action", "root-user-action"),
        ),
        uv=(
            *("target", "prefix", "python", "system", "break-system-packages"),
            *("reinstall", "reinstall-package", "strict"),
        ),
        variables=(
            *("UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_BREAK_SYSTEM_PACKAGES"),
            *("UV_PROJECT", "UV_PROJECT_ENVIRONMENT", "UV_WORKING_DIR", "UV_WORKING_DIRECTORY"),
            *("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH"),
        ),
    ),
    MachineSetting(
        "nowhere",
        "the environment has a Python and a platform",
        pip=("python-version", "platform", "abi", "implementation", "ignore-requires-python"),
        uv=(
            *("python-version", "python-platform", "universal", "environments"),
            *("required-environments", "minimum-libc-version", "fork-strategy"),
            *("python-preference", "python-downloads"),
        ),
        variables=(
            *("UV_FORK_STRATEGY", "UV_PYTHON_PREFERENCE", "UV_PYTHON_DOWNLOADS"),
            *("UV_MANAGED_PYTHON", "UV_NO_MANAGED_PYTHON"),
        ),
    ),
    MachineSetting(
        "nowhere",
        "a lock is complete",
        pip=(
            *("no-deps", "requirement", "editable", "dry-run", "report"),
            *("group", "only-deps", "requirements-from-script"),
        ),
        uv=(
            *("no-deps", "extra", "all-extras", "no-extra", "group", "allow-empty-requirements"),
            *("no-emit-package", "output-file"),
        ),
        variables=("UV_NO_EDITABLE", "UV_NO_EDITABLE_PACKAGE"),
    ),
    MachineSetting(
        "nowhere",
        "every locked file has a hash, which is always verified",
        pip=("require-hashes", "no-require-hashes"),
        uv=("require-hashes", "verify-hashes", "generate-hashes", "require-build-hashes"),
        variables=(
            *("UV_REQUIRE_HASHES", "UV_NO_VERIFY_HASHES", "UV_REQUIRE_BUILD_HASHES"),
            *("UV_INSECURE_NO_ZIP_VALIDATION", "UV_SKIP_WHEEL_FILENAME_CHECK"),
        ),
    ),
    MachineSetting(
        "nowhere",
        "`danlu lock --upgrade` upgrades",
        pip=("upgrade", "upgrade-strategy"),
        uv=("upgrade", "upgrade-package"),
    ),
    MachineSetting(
        "nowhere",
        "a build depends on the lock only",
        pip=(
            *("no-build-isolation", "config-settings", "global-option", "build-option"),
            "install-option",  # before pip 23.1
            *("use-pep517", "no-use-pep517", "check-build-dependencies", "no-clean"),
        ),
        uv=(
            *("no-build-isolation", "no-build-isolation-package", "config-settings"),
            *("config-settings-package", "extra-build-variables"),
            "concurrent-builds",
        ),
        variables=("UV_NO_BUILD_ISOLATION",),
    ),
    MachineSetting(
        "nowhere",
        "`install.python_packages(pyproject=)` reads them for the packages of that project",
        uv=("sources", "workspace", "package"),
    ),
    MachineSetting(
        "nowhere",
        "only uv's commands for projects use it",
        uv=(
            *("no-sources", "no-sources-package", "managed"),
            *("default-groups", "dependency-groups", "dev-dependencies", "build-backend"),
            *("conflicts", "cache-keys", "add-bounds", "audit"),
            *("publish-url", "trusted-publishing", "check-url"),
        ),
        variables=(
            *("UV_NO_SOURCES", "UV_NO_SOURCES_PACKAGE", "UV_NO_BINARY", "UV_NO_BINARY_PACKAGE"),
            *("UV_NO_BUILD", "UV_NO_BUILD_PACKAGE", "UV_FROZEN", "UV_LOCKED", "UV_ENV_FILE"),
        ),
    ),
    MachineSetting(
        "nowhere",
        "depends on the GPU; the build file names PyTorch's index",
        uv=("torch-backend",),
        variables=("UV_TORCH_BACKEND",),
    ),
    MachineSetting(
        "nowhere",
        "danlu has its own cache, links and bytecode",
        pip=("cache-dir", "no-cache-dir", "refresh-package", "compile", "no-compile"),
        uv=("cache-dir", "no-cache", "link-mode", "compile-bytecode"),
        variables=("UV_CACHE_DIR", "UV_NO_CACHE", "UV_LINK_MODE", "UV_COMPILE_BYTECODE"),
    ),
    MachineSetting(
        "nowhere",
        "uv resumes downloads itself, and reads the proxies of the environment",
        pip=("resume-retries", "no-proxy-env"),
    ),
    MachineSetting(
        "nowhere",
        "uv allows the pre-releases of a package if a requirement names one",
        pip=("all-releases", "only-final"),
    ),
    MachineSetting(
        "nowhere",
        "danlu comes with its uv",
        uv=("required-version", "preview", "preview-features"),
        variables=("UV_PREVIEW", "UV_PREVIEW_FEATURES", "UV_NO_INSTALLER_METADATA"),
    ),
    MachineSetting(
        "nowhere",
        "`[mirrors.python]` and UV_PYTHON_INSTALL_MIRROR are read by danlu itself",
        uv=(
            *("python-install-mirror", "pypy-install-mirror", "graalpy-install-mirror"),
            *("pyodide-install-mirror", "python-downloads-json-url"),
        ),
    ),
    MachineSetting(
        "nowhere",
        "danlu reads and prints the output itself",
        pip=(
            *("quiet", "verbose", "log", "progress-bar", "no-color", "no-input", "debug"),
            *("no-warn-script-location", "no-warn-conflicts", "no-python-version-warning"),
            *("use-feature", "use-deprecated", "isolated"),
        ),
        uv=(
            *("no-strip-extras", "no-strip-markers", "no-annotate", "no-header"),
            *("custom-compile-command", "emit-index-url", "emit-find-links"),
            *("emit-build-options", "emit-marker-expression", "emit-index-annotation"),
            "annotation-style",
        ),
        variables=("UV_CUSTOM_COMPILE_COMMAND", "UV_NO_PROGRESS"),
    ),
)

#: The decisions that apply to a locked installation, and to making a lock.
WHEN_LOCKED: frozenset[Decision] = frozenset({"fetching"})
WHEN_LOCKING: frozenset[Decision] = frozenset({"fetching", "resolving"})
WHEN_BUILDING: frozenset[Decision] = frozenset({"fetching", "resolving", "building"})

#: uv's settings that say whether wheels are used: in a file for uv they would make it build.
FORMAT_SETTINGS = frozenset(
    name for setting in MACHINE_SETTINGS if setting.formats for name in setting.uv
)


def iter_settings(
    decisions: Collection[Decision] = (), *, sandbox: Sandbox | None = None
) -> Iterator[MachineSetting]:
    """Yield the settings with one of ``decisions`` (all, if empty) that ``sandbox`` gets."""
    for setting in MACHINE_SETTINGS:
        if decisions and setting.decision not in decisions:
            continue
        if sandbox is None or sandbox in setting.sandboxes:
            yield setting


def keeps_variable(name: str, decisions: Collection[Decision]) -> bool:
    """Return whether a variable of the environment may reach uv.

    Variables of pip and uv must be listed with one of ``decisions``; others must not be listed with
    the decision ``nowhere``.
    """
    is_programs = name.startswith(("PIP_", "UV_"))
    if is_programs and name in _KNOWN_VARIABLES:
        return _KNOWN_VARIABLES[name] in decisions
    if is_programs:
        return any(
            setting.decision in decisions
            for setting in MACHINE_SETTINGS
            for variable in setting.variables
            if "*" in variable and fnmatch.fnmatchcase(name, variable)
        )
    return _KNOWN_VARIABLES.get(name) != "nowhere"


_KNOWN_VARIABLES: dict[str, Decision] = {
    variable: setting.decision
    for setting in MACHINE_SETTINGS
    for variable in setting.variables
    if "*" not in variable
}
