"""The workload of all builders, each configured well: Debian 12, git, Python, a science stack."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

APT = ("git",)
PACKAGES = ("torch==2.13.0", "numpy", "pandas", "scikit-learn", "matplotlib")
SMALL = (
    *("tqdm", "tabulate", "humanize", "toolz", "colorama", "sortedcontainers"),
    *("more-itertools", "wcwidth", "termcolor", "xmltodict", "inflection", "blinker"),
)
"""Small pure-Python packages to add, a new one each time so that no builder has it cached."""

PIP_CACHE = "--mount=type=cache,target=/root/.cache/pip"
UV_CACHE = "--mount=type=cache,target=/root/.cache/uv"
APT_CACHE = (
    "--mount=type=cache,sharing=locked,target=/var/cache/apt "
    "--mount=type=cache,sharing=locked,target=/var/lib/apt"
)
APT_GET = "apt-get update && apt-get install -y --no-install-recommends"


@dataclass(frozen=True)
class BuildWorkload:
    """One project: its packages, and a variable that makes it different from others."""

    packages: tuple[str, ...] = PACKAGES
    variable: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def plus(self, package: str) -> BuildWorkload:
        """Return this workload with one more package."""
        return replace(self, packages=(*self.packages, package))

    def second(self, number: int) -> BuildWorkload:
        """Return a workload with the same packages in a different order and another variable."""
        order = self.packages[::-1]
        first = number % len(order)
        return replace(self, packages=order[first:] + order[:first], variable=f"second-{number}")


def build_envd(work: BuildWorkload) -> str:
    """Return the build file for danlu."""
    environ = (
        f'    runtime.environ(env={{"PROJECT": "{work.variable}"}})\n' if work.variable else ""
    )
    return (
        "def build():\n"
        '    base(os="debian12")\n'
        '    install.python(version="3.11")\n'
        f"    install.apt_packages(name={list(APT)})\n"
        f"    install.python_packages(name={list(work.packages)})\n{environ}"
    ).replace("'", '"')


def dockerfile(work: BuildWorkload, *, base: str, installer: str, mounts: bool) -> str:
    """Return the Dockerfile; ``installer`` is pip or uv, ``mounts`` adds cache mounts."""
    apt = f"{APT_CACHE + ' ' if mounts else ''}{APT_GET} python3 python3-venv {' '.join(APT)}"
    lines = [f"FROM {base}"]
    lines += [f"ENV {name}={value}" for name, value in work.environment.items()]
    lines += [f"RUN {apt}" + ("" if mounts else " && rm -rf /var/lib/apt/lists/*")]
    lines += ["COPY requirements.txt /tmp/"]
    if installer == "uv":
        cache = f"{UV_CACHE} " if mounts else ""
        lines += ["RUN uv venv /opt/venv", "ENV UV_LINK_MODE=copy VIRTUAL_ENV=/opt/venv"]
        lines += [f"RUN {cache}uv pip install -r /tmp/requirements.txt"]
    else:
        cache = f"{PIP_CACHE} " if mounts else ""
        keep = "" if mounts else "--no-cache-dir "
        lines += ["RUN python3 -m venv /opt/venv"]
        lines += [f"RUN {cache}/opt/venv/bin/pip install {keep}-r /tmp/requirements.txt"]
    lines += [f"ENV PROJECT={work.variable}"] if work.variable else []
    return "\n".join([*lines, "ENV PATH=/opt/venv/bin:$PATH", ""])


def requirements(work: BuildWorkload) -> str:
    """Return the requirements file."""
    return "\n".join(work.packages) + "\n"
