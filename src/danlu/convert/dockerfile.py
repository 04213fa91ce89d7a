"""Read a ``Dockerfile`` into a draft; what has no equivalent is listed with its line.

A ``RUN`` becomes declarations only if it does nothing but install packages; otherwise its
text stays. BuildKit's rules (parser, variables, here-documents) are those of
``e2b-dockerfile-utils``.
"""

from __future__ import annotations

import keyword
import posixpath
import re
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from e2b_dockerfile_utils import (
    DockerfileHeredoc,
    DockerfileInstruction,
    chomp_heredoc_content,
    parse_heredoc,
)

from danlu.convert.dockerfile_stages import (
    BASE_PATH,
    Dockerfile,
    DockerfileStage,
    UnknownVariableError,
    VariableScope,
)
from danlu.convert.draft import PLACEHOLDERS, BuildFileDraft, DraftCall, DraftName
from danlu.convert.shell_commands import (
    InstalledPackages,
    is_portable,
    read_script,
    split_list,
)
from danlu.errors import UsageError
from danlu.lang.functions import FUNCTIONS, NAMESPACES

_REASONS = {
    "CMD": "name the program: danlu run -- PROGRAM",
    "EXPOSE": "use runtime.expose()",
    "VOLUME": "use runtime.mount()",
}
_SHELL = ["/bin/sh", "-c"]
_ROOT = {"root", "0", "root:root", "0:0"}
_POSIX_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh"}

#: What may depend on where Python packages are: declared ones are in a virtual environment.
_PYTHON_PATHS = re.compile(r"venv|(site|dist)-packages|/bin/python|pip\.conf|uv\.toml|\.netrc")
_PYTHON_TOOLS = re.compile(
    r"\b(pip3?|uvx?|conda|mamba|micromamba|poetry|pdm|pipx|virtualenv|pyenv|hatch|easy_install)\b"
    r"|setup\.py|/usr/local/bin/"
)
#: Variables that configure pip or uv, but for those that do not change what is installed.
_PIP_VARIABLE = re.compile(
    r"(?!PIP_(?:NO_CACHE_DIR|DISABLE_PIP_VERSION_CHECK|ROOT_USER_ACTION|NO_INPUT|PROGRESS_BAR|RETRIES"
    r"|DEFAULT_TIMEOUT|NO_WARN_SCRIPT_LOCATION|BREAK_SYSTEM_PACKAGES)$"
    r"|UV_(?:NO_CACHE|LINK_MODE|COMPILE_BYTECODE|SYSTEM_PYTHON|CACHE_DIR)$)(?:PIP|UV)_"
)
_PATTERN_REASON = "directories that match keep their names, but Docker copies their content"
#: Directories that are links in Debian and its derivatives, to which nothing can be copied.
_MERGED_DIRECTORY = re.compile(r"^/(?:s?bin|lib(?:32|64|x32)?)(?=/|$)")


@dataclass(frozen=True)
class _KeptRun:
    """A ``RUN`` that stays a command, and what it sees; ``shell`` is empty for the exec form."""

    text: str
    environment: Mapping[str, str]
    arguments: Mapping[str, str]
    directory: str
    new_directories: list[str]
    shell: list[str]
    keywords: tuple[tuple[str, object], ...]
    needs_lists: bool


@dataclass
class _Conversion:
    """What the translators of all stages share."""

    dockerfile: Dockerfile
    main: BuildFileDraft
    project: Path
    context: str
    functions: dict[int, str] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)


def read_dockerfile(
    path: Path,
    project: Path,
    draft: BuildFileDraft,
    *,
    context: str = "",
    arguments: Mapping[str, str] = MappingProxyType({}),
    target: str = "",
) -> None:
    """Add the stage ``target`` (default: the last) of ``path``; its image becomes ``draft.image``.

    The stages that it starts from are part of it; those that it copies files from become build
    functions. ``context`` is the build context, relative to the project, and ``arguments`` are
    values of build arguments. Raises :class:`UsageError` for an invalid file.
    """
    declares_python = True
    while True:
        attempt = BuildFileDraft(must_be_complete=True)
        dockerfile = Dockerfile(path, attempt, arguments)
        last = dockerfile.find_stage(target) if target else dockerfile.stages[-1]
        if last is None:
            raise UsageError(f"{path.name} has no stage {target!r}")
        if last.image == "scratch":
            raise UsageError("FROM scratch is not supported: an environment needs a base image")
        conversion = _Conversion(dockerfile, attempt, project, context)
        if _StageTranslator(conversion, last, attempt, declares_python).translate():
            break
        declares_python = False
    others = [stage.title for stage in dockerfile.stages if stage.index not in conversion.read]
    if others and not target:
        attempt.notes.append(
            f"stage {last.title} of the Dockerfile was read, which does not need the others:"
            f" {', '.join(others)}"
        )
    ignore_file = path.with_name(f"{path.name}.dockerignore")
    if ignore_file.exists():
        attempt.untranslated.append(f"{ignore_file.name}  (only .dockerignore is read: rename it)")
    vars(draft).update({name: value for name, value in vars(attempt).items() if value})


@dataclass
class _StageTranslator:
    """Translates a stage, after those that it starts from, into a build function.

    With ``declares_python``, packages that pip installs become declarations.
    """

    conversion: _Conversion
    stage: DockerfileStage
    draft: BuildFileDraft
    declares_python: bool
    needs_pip: bool = False
    scope: VariableScope = field(default_factory=VariableScope)
    directory: str = "/"
    shell: list[str] = field(default_factory=lambda: _SHELL)
    user: str = "root"
    entrypoint: list[str] = field(default_factory=list)
    steps: list[DraftCall | _KeptRun] = field(default_factory=list)
    copied: dict[str, str] = field(default_factory=dict)
    new_directories: dict[str, DockerfileInstruction] = field(default_factory=dict)
    last: dict[str, DockerfileInstruction] = field(default_factory=dict)

    def translate(self) -> bool:
        """Fill the draft; return False if no Python package may be declared after all.

        Declared packages and those that a kept ``RUN`` installs would be in two places.
        """
        draft = self.draft
        draft.image = self.stage.image
        for part in self.stage.list_chain():
            self.stage = part
            self.conversion.read.add(part.index)
            self.scope.arguments, self.scope.unset = {}, set()
            for item in part.instructions:
                try:
                    self._translate_instruction(item)
                except UnknownVariableError as unknown:
                    self._list_untranslated(item, f"the base image may set ${unknown}")
        draft.environment = {**self.scope.environment}
        path = draft.environment.pop("PATH")
        if path != BASE_PATH:
            draft.extra_path = path.removesuffix(BASE_PATH).rstrip(":").split(":")
        if self.entrypoint:
            draft.calls.append(DraftCall("config.entrypoint", (self.entrypoint,)))
        last = self.last if draft is self.conversion.main else {}
        for item in (*self.new_directories.values(), *last.values()):
            reason = "commands start in the project, at /workspace"
            self._list_untranslated(item, "use config.owner()" if item.name == "USER" else reason)
        draft.steps = [
            self._render_run(step) if isinstance(step, _KeptRun) else step for step in self.steps
        ]
        return not (self.needs_pip and (draft.packages or draft.requirements))

    def _translate_instruction(self, item: DockerfileInstruction) -> None:
        text = item.original
        if item.name == "RUN":
            self._translate_run(item)
            return
        if _PYTHON_PATHS.search(text) or (
            item.name in ("ENTRYPOINT", "CMD") and _PYTHON_TOOLS.search(text)
        ):
            self.needs_pip = True
        if item.name in ("COPY", "ADD"):
            self._translate_copy(item)
        elif item.name == "ENV":
            self._translate_env(item)
        elif item.name == "ARG":
            self.conversion.dockerfile.declare_arguments(item, self.scope)
        elif item.name == "WORKDIR":
            self.directory = self._resolve_path(self._expand_text(item, " ".join(item.args)))
            self.new_directories[self.directory] = self.last["WORKDIR"] = item
        elif item.name == "USER":
            self.user = self._expand_text(item, " ".join(item.args))
            self.last["USER"] = item
        elif item.name == "SHELL" and item.json and item.args:
            self.shell = item.args
        elif item.name == "ENTRYPOINT":
            self.entrypoint = [*([] if item.json or not item.args else self.shell), *item.args]
        else:
            self._list_untranslated(item, _REASONS.get(item.name, "no equivalent"))

    def _list_untranslated(self, item: DockerfileInstruction, reason: str) -> None:
        self.conversion.dockerfile.skip(item, reason)

    def _expand_text(self, item: DockerfileInstruction, text: str) -> str:
        return self.conversion.dockerfile.expand(item, text, self.scope)

    def _resolve_path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.directory, path))

    def _translate_env(self, item: DockerfileInstruction) -> None:
        # All values of a line see the variables before it.
        values = {}
        for name, text, _ in zip(*[iter(item.args)] * 3, strict=True):
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                self._list_untranslated(item, f"{name or 'an empty name'} is not a variable")
                return
            values[name] = self._expand_text(item, text)
        path = values.get("PATH", BASE_PATH)
        others = "".join(value for name, value in values.items() if name != "PATH")
        if BASE_PATH in others or not re.fullmatch(rf"(?:[^:{BASE_PATH}]+:)*{BASE_PATH}", path):
            self._list_untranslated(item, "only directories before the PATH of the image are kept")
            return
        self.scope.environment.update(values)

    # -- RUN

    def _translate_run(self, item: DockerfileInstruction) -> None:
        if not item.args:
            raise self.conversion.dockerfile.make_error(item, "RUN requires at least one argument")
        text = _make_script(item)
        mounts, keywords, problem = _read_run_flags(item.flags)
        if problem:
            self._list_untranslated(item, f"{problem}: not done")
            return
        if text is None:
            self._list_untranslated(item, "a script of another program: not done")
            return
        bound = {
            self._resolve_path(target): self._locate_source(source)
            for target, source in mounts.items()
            if source
        }
        installed = self._read_installation(item, text, {**self.copied, **bound})
        if installed is not None:
            self.draft.system += installed.system
            self.draft.packages += installed.packages
            self.draft.requirements += installed.requirements
            if installed.system and installed.recommends:
                reason = "packages that are only recommended are not installed: name those you need"
                self._list_untranslated(item, reason)
            return
        if bound:
            self._list_untranslated(item, "a bind mount: not done")
            return
        if "" in mounts.values():
            self._list_untranslated(item, "a cache mount: its files stay in the image")
        if self.user not in _ROOT:
            self._list_untranslated(item, f"runs as root, not as {self.user}")
        if not item.json and posixpath.basename(self.shell[0]) not in _POSIX_SHELLS:
            self._list_untranslated(item, f"a command of {self.shell[0]}: not done")
            return
        if _PYTHON_PATHS.search(text) or _PYTHON_TOOLS.search(text):
            self.needs_pip = True
        arguments = {
            name: value
            for name, value in self.scope.arguments.items()
            if name not in self.scope.environment
        }
        self.steps.append(
            _KeptRun(
                text,
                {**self.scope.environment},
                arguments,
                self.directory,
                [path for path in self.new_directories if path != "/"],
                [] if item.json else self.shell,
                tuple(keywords),
                needs_lists=re.search(r"\bapt(-get)?\b.*\sinstall\b", text) is not None
                and "update" not in text
                and any(re.search(r"apt(-get)? update\b", script) for script in self._kept_scripts),
            )
        )
        self.new_directories = {}

    @property
    def _kept_scripts(self) -> list[str]:
        return [step.text for step in self.steps if isinstance(step, _KeptRun)]

    def _read_installation(
        self, item: DockerfileInstruction, text: str, copied: dict[str, str]
    ) -> InstalledPackages | None:
        """Return what a ``RUN`` installs, if it can be declared, and nothing else."""
        kept = self._kept_scripts
        variables = {**self.scope.arguments, **self.scope.environment}
        installed = read_script(text, variables.get)
        if (
            installed is None
            or not (installed.system or installed.packages or installed.requirements)
            or self.user not in _ROOT
            or (not item.json and posixpath.basename(self.shell[0]) not in _POSIX_SHELLS)
        ):
            return None
        if installed.system and (
            any("apt" not in command or not read_script(command) for command in kept)
            or any(re.match("/etc|/$|/usr/share/keyrings", path) for path in self.copied)
        ):
            return None  # the sources of packages may be others
        if installed.packages or installed.requirements:
            if not self.declares_python or any(map(_PIP_VARIABLE.match, variables)):
                return None
            names = []
            for path in installed.requirements:
                name = _find_source(self._resolve_path(path), copied)
                is_written = any(posixpath.basename(path) in command for command in kept)
                if not name or is_written or re.search(f"[{PLACEHOLDERS}]", name):
                    return None
                names.append(name)
            installed.requirements = names
        return installed

    def _render_run(self, run: _KeptRun) -> DraftCall:
        final = self.scope.environment
        unset = sorted(final.keys() - run.environment.keys())
        lines = [f"unset {' '.join(unset)}"] if unset else []
        changed = {**run.arguments}
        changed |= {name: run.environment[name] for name in run.environment if name != "PATH"}
        for name, value in final.items():
            if changed.get(name) == value:
                del changed[name]
        if changed:
            values = (f"{name}={shlex.quote(value)}" for name, value in sorted(changed.items()))
            lines.append(f"export {' '.join(values)}")
        later = final["PATH"].removesuffix(run.environment["PATH"])
        if later:
            lines.append(f'export PATH="${{PATH#{later}}}"')
        make = f"mkdir -p {shlex.join(run.new_directories)} && " if run.new_directories else ""
        lines.append(f"{make}cd {shlex.quote(run.directory)}")
        if run.needs_lists:
            lines.append("apt-get update")  # a layer does not contain what an earlier one fetched
        keywords = run.keywords
        parts = split_list(run.text)
        if run.shell and not (run.shell == _SHELL and is_portable(run.text)):
            parts = [*(f"{part} &&" for part in parts[:-1]), parts[-1].rstrip("\n")]
            keywords = (("shell", run.shell), *keywords)
        return DraftCall("run", keywords=(("commands", [*lines, *parts]), *keywords))

    # -- COPY and ADD

    def _translate_copy(self, item: DockerfileInstruction) -> None:
        flags = dict(flag.partition("=")[::2] for flag in item.flags)
        unknown = flags.keys() - {"--from", "--link", "--chown", "--chmod"}
        if unknown or "$" in flags.get("--from", ""):
            self._list_untranslated(item, f"{', '.join(sorted(unknown)) or '--from'}: not done")
            return
        if not item.json and any(re.search(r"\s", word) for word in item.args):
            raise self.conversion.dockerfile.make_error(
                item, "quotes are only possible in the JSON form"
            )
        words = [self._expand_text(item, word) for word in item.args]
        if len(words) < 2:
            raise self.conversion.dockerfile.make_error(
                item, f"{item.name} requires a source and a target"
            )
        *sources, target = words
        place = self._resolve_path(target)
        if not re.search(r"alpine|busybox", self.draft.image):
            place = _MERGED_DIRECTORY.sub(r"/usr\g<0>", place)
        if target.endswith("/") or posixpath.basename(target) in (".", ".."):
            place = place.rstrip("/") + "/"
        if re.match("/(dev|proc|sys)(/|$)", place):
            self._list_untranslated(item, "the directory belongs to the kernel: not done")
            return
        origin = self._find_origin(item, flags.get("--from", ""))
        if origin is None:
            return
        documents = iter(item.heredocs)
        for source, word in zip(sources, item.args, strict=False):
            if word.startswith("<<"):
                self._write_document(item, next(documents), place)
                continue
            problem = "" if origin else self._find_copy_problem(item.name, source)
            if problem or re.search(r"\*\*|[\[\\]", source):
                reason = problem or "Docker understands the pattern differently"
                self._list_untranslated(item, f"{source}: {reason}")
                continue
            name = posixpath.normpath("/" + source.lstrip("/"))
            if not origin:
                name = self._locate_source(source)
                is_directory = (self.conversion.project / name).is_dir()
                end = place if is_directory else posixpath.join(place, posixpath.basename(name))
                end = posixpath.normpath(end if place.endswith("/") else place)
                self.copied.pop(end, None)
                self.copied[end] = name
            elif re.search(r"[*?]", name):
                self._list_untranslated(item, _PATTERN_REASON)
            self.steps.append(DraftCall("io.copy", (name, place), origin))
        if flags.keys() & {"--chown", "--chmod"}:
            reason = "owner and mode of the files are those of the environment and the project"
            self._list_untranslated(item, reason)

    def _locate_source(self, source: str) -> str:
        """Return the path in the project of a path in the build context, which has no parent."""
        path = posixpath.normpath("/" + source.lstrip("/"))
        return posixpath.normpath(f"{self.conversion.context or '.'}{path}")

    def _find_copy_problem(self, instruction: str, source: str) -> str:
        """Return why a source in the project is not copied, if so."""
        if instruction == "ADD" and re.match(r"[a-z+]+://|git@", source):
            return "use io.http() to download files"
        path = self.conversion.project / self._locate_source(source)
        if instruction == "ADD" and (
            re.search(r"\.(tar|tgz|tbz2?|txz)(\.\w+)?$", source)
            or (path.is_file() and tarfile.is_tarfile(path))
        ):
            return "archives are not unpacked: use run()"
        if path.is_symlink():
            return "is a link, and Docker copies what it leads to"
        if re.search(r"[*?]", source) and any(
            match.is_dir() for match in self.conversion.project.glob(self._locate_source(source))
        ):
            return _PATTERN_REASON
        return ""

    def _write_document(
        self, item: DockerfileInstruction, document: DockerfileHeredoc, place: str
    ) -> None:
        """Add the step that writes a here-document to a file."""
        text = chomp_heredoc_content(document.content) if document.chomp else document.content
        if document.expand:
            text = self.conversion.dockerfile.expand(item, text, self.scope, keep_quotes=True)
        path = posixpath.join(place, document.name) if place.endswith("/") else place
        end = "EOF"
        while end in text.splitlines():
            end += "_"
        commands = [f"cat > {shlex.quote(path)} <<'{end}'\n{text}{end}"]
        if posixpath.dirname(path) != "/":
            commands.insert(0, f"mkdir -p {shlex.quote(posixpath.dirname(path))}")
        self.steps.append(DraftCall("run", keywords=(("commands", commands),)))

    def _find_origin(
        self, item: DockerfileInstruction, reference: str
    ) -> tuple[tuple[str, object], ...] | None:
        """Return where ``io.copy`` takes files from, as keywords; None if that is not possible."""
        if not reference:
            return ()
        stage = self.conversion.dockerfile.find_stage(reference, before=self.stage.index)
        if stage is None:
            if reference.isdecimal():
                raise self.conversion.dockerfile.make_error(
                    item, f"invalid from flag value {reference}"
                )
            return (("image", reference),)
        self.conversion.read.add(stage.index)
        if stage.image == "scratch":
            self._list_untranslated(item, f"stage {stage.title} starts from scratch: not done")
            return None
        if not stage.changes_files:
            return (("image", stage.image),)
        name = self._make_function(stage)
        main = self.conversion.main
        used = main.find_parameters(main.functions[name])
        parameters = (("parameters", used),) if used else ()
        return (("source", DraftName(name)), *parameters)

    def _make_function(self, stage: DockerfileStage) -> str:
        """Return the name of the build function of a stage, which is translated the first time."""
        functions = self.conversion.functions
        if stage.index in functions:
            return functions[stage.index]
        name = re.sub(r"\W", "_", stage.name.lower(), flags=re.ASCII)
        taken = {*functions.values(), *NAMESPACES, *FUNCTIONS, "build", "load", "print"}
        if not name.isidentifier() or keyword.iskeyword(name) or name[0] == "_" or name in taken:
            name = f"stage_{stage.index}"
        functions[stage.index] = name
        draft = BuildFileDraft()
        # Files are copied from where pip puts them, so that packages are not declared.
        _StageTranslator(self.conversion, stage, draft, False).translate()
        self.conversion.main.functions[name] = draft
        return name


def _make_script(item: DockerfileInstruction) -> str | None:
    """Return what the shell gets of a ``RUN``; None for a script of another program."""
    if item.json:
        return shlex.join(item.args)
    text = "".join(item.args)
    if parse_heredoc(text) is None:
        return text + "".join(f"\n{document.content}{document.name}" for document in item.heredocs)
    document = item.heredocs[0]
    text = chomp_heredoc_content(document.content) if document.chomp else document.content
    return None if text.startswith("#!") else text


def _read_run_flags(
    flags: Sequence[str],
) -> tuple[dict[str, str], list[tuple[str, object]], str]:
    """Return the sources of mounts by target, empty for caches, keywords of ``run()``, and a flag
    that is not possible.
    """
    mounts: dict[str, str] = {}
    secrets: list[object] = []
    keywords: list[tuple[str, object]] = []
    for flag in flags:
        name, _, value = flag.partition("=")
        options = dict(option.partition("=")[::2] for option in value.split(","))
        kind = options.get("type", "bind")
        target = options.get("target") or options.get("dst") or options.get("destination") or ""
        if flag == "--network=default":
            continue
        if name != "--mount" or options.keys() & {"env", "from"}:
            return mounts, keywords, flag
        identity = options.get("id") or posixpath.basename(target)
        if kind == "ssh":
            keywords.append(("ssh", True))
        elif kind == "secret" and identity:
            secrets.append({"id": identity, "target": target} if target else identity)
        elif kind in ("bind", "cache") and target:
            source = options.get("source") or options.get("src") or "."
            mounts[target] = "" if kind == "cache" else source
        else:
            return mounts, keywords, flag
    return mounts, [*keywords, *([("secrets", secrets)] if secrets else [])], ""


def _find_source(path: str, copied: dict[str, str]) -> str:
    """Return the project's file that was copied to ``path``, alone or with its directory."""
    for end, source in reversed(copied.items()):  # the last copy wins
        if path == end:
            return source
        if path.startswith(end.rstrip("/") + "/"):
            return posixpath.normpath(posixpath.join(source, path[len(end.rstrip("/")) + 1 :]))
    return ""
