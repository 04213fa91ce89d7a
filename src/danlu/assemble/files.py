"""Files that declarations ask for: package sources, pip's index, git's configuration."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from danlu.environment.types import Environment, GitConfig, PipIndex
from danlu.graph import FileEntry, Files, Vertex

__all__ = ["config_vertex"]


def config_vertex(environment: Environment, epoch: int) -> Vertex | None:
    """One layer of configuration files, or None where nothing asks for any."""
    entries: list[FileEntry] = []
    spans = []
    if environment.apt_source:
        text = environment.apt_source.source.rstrip("\n") + "\n"
        entries.append(FileEntry("/etc/apt/sources.list", content=text))
        spans.append(environment.apt_source.span)
    if environment.pip_index:
        entries.append(FileEntry("/etc/pip.conf", content=_pip_conf(environment.pip_index)))
        spans.append(environment.pip_index.span)
    if environment.git_config:
        entries.append(FileEntry("/etc/gitconfig", content=_git_config(environment.git_config)))
        spans.append(environment.git_config.span)
    if not entries:
        return None
    files = Files(tuple(entries), epoch)
    names = ", ".join(entry.path for entry in entries)
    return Vertex(files, name=f"write {names}", branch="config", spans=tuple(spans))


def _pip_conf(index: PipIndex) -> str:
    lines = ["[global]", f"index-url = {_public(index.url)}"]
    if index.extra_url:
        lines.append(f"extra-index-url = {_public(index.extra_url)}")
    if index.trust:
        hosts = [urlsplit(url).hostname for url in (index.url, index.extra_url) if url]
        lines.append("trusted-host = " + " ".join(sorted({host for host in hosts if host})))
    return "\n".join(lines) + "\n"


def _public(url: str) -> str:
    """``url`` without a user and a password: an image is shared, a credential is not."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))


def _git_config(config: GitConfig) -> str:
    user = [("name", config.name), ("email", config.email)]
    lines = [f"\t{key} = {_quoted(value)}" for key, value in user if value]
    text = "\n".join(["[user]", *lines]) + "\n" if lines else ""
    if config.editor:
        text += f"[core]\n\teditor = {_quoted(config.editor)}\n"
    return text


def _quoted(value: str) -> str:
    # git-config(1), "Syntax": inside double quotes, \ and " are escaped.
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
