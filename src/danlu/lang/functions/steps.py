"""The steps: ``run``, ``io.copy`` and ``io.http``."""

from __future__ import annotations

import posixpath
import re
from typing import ClassVar
from urllib.parse import urlsplit

import msgspec

from danlu.environment.image_layout import EXTRA_SOURCES, HOME, PROJECT
from danlu.environment.lock import LockedImage
from danlu.environment.lock_section import LockSection, SectionResolver
from danlu.environment.types import Environment, GraphContext, ImageOwner, Step
from danlu.errors import DanluError, ResolveError
from danlu.graph.ops import (
    CopyContext,
    CopyImage,
    Exec,
    HttpFile,
    ImageSource,
    Merge,
    SecretMount,
    Unresolved,
)
from danlu.graph.types import Vertex
from danlu.lang.arg_types import (
    BUILD_FUNCTION,
    FLAG,
    PARAMETERS,
    SECRETS,
    TEXT,
    TEXTS,
    CallError,
    FunctionValue,
)
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.lang.build_parameters import Value, bind_values, format_target
from danlu.lang.checks import check_image, check_url
from danlu.util.urls import mask_credentials, strip_credentials

_HEX = re.compile(r"[0-9a-f]{64}")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


def _lay_over(below: Vertex, leaf: Vertex) -> Vertex:
    return Vertex(Merge(), (below, leaf), name=leaf.name, branch="steps", spans=leaf.spans)


# -- run -------------------------------------------------------------------------------------------


class StepSecret(msgspec.Struct, frozen=True):
    """A secret that a ``run()`` may read: its id (as in ``--secret id=…``) and its file."""

    id: str
    target: str


#: Put before the first line of a script, says which of its commands failed. The trap on EXIT is for
#: what ERR does not report: `exit`, a command in a function, and all but the last one of `a && b`.
_NAME_FAILED_COMMAND = (
    "trap '_danlu_code=$?; [[ $- != *e* ]] || { _danlu_said=1;"
    ' echo "run(): line $LINENO failed with exit code $_danlu_code: $BASH_COMMAND" >&2; }\' ERR;'
    " trap '_danlu_code=$?; [[ $_danlu_code == 0 || ${_danlu_said-} ]] ||"
    ' echo "run(): failed with exit code $_danlu_code: $BASH_COMMAND" >&2\' EXIT; shift; '
)


class RunStep(Step, frozen=True):
    """``run(commands, mount_host, secrets, ssh, shell)``: one script, a line a command, one layer.

    Without ``shell`` it is a bash script that stops at the first command that fails.
    """

    runs_commands: ClassVar[bool] = True

    commands: tuple[str, ...]
    mount_host: bool = False
    secrets: tuple[StepSecret, ...] = ()
    ssh: bool = False
    shell: tuple[str, ...] = ()

    @property
    def uses_project(self) -> bool:
        return self.mount_host

    def add_to(self, below: Vertex, context: GraphContext) -> Vertex:
        # The home directory of the user that the image starts as. The step runs as root.
        owner = context.environment.find(ImageOwner)
        is_user = owner is not None and owner.uid != 0
        home = HOME if is_user else "/root"
        variables = {**context.variables(), "HOME": home, "PYTHONDONTWRITEBYTECODE": "1"}
        script = "\n".join(self.commands)
        args = (*(self.shell or ("/bin/bash", "-euo", "pipefail", "-c")), script)
        if "\n" in script.strip() and not self.shell:
            # The history of the image shows the last argument, which the script itself drops.
            args = (*args[:-1], _NAME_FAILED_COMMAND + script, "/bin/bash", script)
        op = Exec(
            args=args,
            environment=tuple(sorted(variables.items())),
            working_directory=PROJECT if self.mount_host else HOME,
            epoch=context.epoch,
            path=context.path(),
            secrets=tuple(SecretMount(secret.id, secret.target) for secret in self.secrets),
            ssh=self.ssh,
            context=self.mount_host,
            context_digest=context.digests.context if self.mount_host else "",
            home=HOME if is_user else "",
            home_uid=context.owner.uid if is_user else 0,
            home_gid=context.owner.gid if is_user else 0,
        )
        first = script.strip().splitlines()[0]
        more = " …" if len(self.commands) > 1 or "\n" in script.strip() else ""
        return Vertex(op, (below,), f"run {mask_credentials(first)}{more}", "steps", (self.span,))


def _declare_run(env: EnvironmentBuilder, call: BoundCall) -> None:
    secrets = tuple(StepSecret(identity, target) for identity, target in call["secrets"])
    targets = [secret.target for secret in secrets]
    for target in targets:
        if targets.count(target) > 1:
            raise CallError(f"run(): two secrets have the target {target}", argument="secrets")
    if any(command.strip() for command in call["commands"]):
        options = (call["mount_host"], secrets, call["ssh"], call["shell"])
        env.add_step(RunStep(call["commands"], *options, span=call.span))


# -- io.copy ---------------------------------------------------------------------------------------


class CopyStep(Step, frozen=True):
    """``io.copy(path, target, image, source, parameters)``.

    ``source`` is a path in the project, in the image ``image``, or in the result of the build
    function ``function`` with ``arguments``.
    """

    source: str
    target: str
    image: str = ""
    function: str = ""
    arguments: tuple[tuple[str, Value], ...] = ()

    @property
    def target_name(self) -> str:
        """The function with its arguments; empty if the files are not a function's result."""
        return format_target(self.function, dict(self.arguments))

    def source_target(self) -> str:
        return self.target_name

    def project_files(self) -> tuple[str, ...]:
        return () if self.image or self.function else (self.source,)

    def add_to(self, below: Vertex, context: GraphContext) -> Vertex:
        owner = context.owner
        target = self.target if self.target.startswith("/") else f"/{self.target}"
        if self.function:
            name = f"copy {self.source} of {self.target_name} to {self.target}"
            from_target = CopyImage(self.source, target, owner.uid, owner.gid, context.epoch)
            result = context.sources[self.target_name]
            return _lay_over(below, Vertex(from_target, (result,), name, "steps", (self.span,)))
        if not self.image:
            digest = context.digests.files.get(self.source, "")
            op = CopyContext(self.source, target, digest, owner.uid, owner.gid, context.epoch)
            name = f"copy {self.source} to {self.target}"
            return _lay_over(below, Vertex(op, (), name, "steps", (self.span,)))
        name = f"copy {self.source} of {self.image} to {self.target}"
        from_image = CopyImage(self.source, target, owner.uid, owner.gid, context.epoch)
        image = self._make_image_vertex(context)
        return _lay_over(below, Vertex(from_image, (image,), name, "steps", (self.span,)))

    def _make_image_vertex(self, context: GraphContext) -> Vertex:
        name = f"image {self.image}"
        for image in COPIED_IMAGES.pins(context.lock):
            if image.reference == self.image:
                source = ImageSource(image.reference, image.digest, context.platform)
                return Vertex(source, name=name, branch="steps")
        return Vertex(Unresolved("image", (self.image,)), (), name, "steps", (self.span,))


class CopiedImages(LockSection[LockedImage]):
    """The images that ``io.copy`` copies from."""

    name = "images"
    singular = "image"
    plural = "images"

    def is_stale(self, environment: Environment, pins: tuple[LockedImage, ...]) -> bool:
        wanted = {step.image for step in environment.steps if isinstance(step, CopyStep)} - {""}
        return wanted != {image.reference for image in pins}

    async def resolve(
        self, environment: Environment, pins: tuple[LockedImage, ...], resolver: SectionResolver
    ) -> tuple[LockedImage, ...]:
        known = {image.reference: image for image in pins}
        locked: dict[str, LockedImage] = {}
        for step in environment.steps:
            if not isinstance(step, CopyStep) or not step.image or step.image in locked:
                continue
            if step.image in known and not resolver.may_change(step.image):
                locked[step.image] = known[step.image]
                continue
            try:
                digest = await resolver.resolve_image(step.image)
            except DanluError as error:
                error.span = error.span or step.span
                raise
            locked[step.image] = LockedImage(step.image, digest)
        return tuple(locked[name] for name in sorted(locked))

    def describe(self, pin: LockedImage) -> tuple[str, str]:
        return pin.reference, pin.digest[7:19]

    def find_problem(self, pin: LockedImage) -> str:
        if _SHA256.fullmatch(pin.digest):
            return ""
        return f"image {pin.reference} has an invalid digest"


COPIED_IMAGES = CopiedImages(LockedImage)


#: Mounted over whatever an image has there (runtime specification, "Default Filesystems").
_KERNEL_DIRECTORIES = ("dev", "proc", "sys")


def _declare_copy(env: EnvironmentBuilder, call: BoundCall) -> None:
    for argument in ("path", "target"):
        if not call[argument]:
            raise CallError(f"io.copy(): empty {argument}", argument=argument)
    if call["target"] == "~" or call["target"].startswith("~/"):
        raise CallError(
            "io.copy(): ~ is not expanded in the target",
            hint=f'use the full path, such as "{HOME}{call["target"][1:]}"',
            argument="target",
        )
    first = posixpath.normpath("/" + call["target"].lstrip("/")).split("/")[1]
    if first in _KERNEL_DIRECTORIES:
        raise CallError(
            f"io.copy(): /{first} belongs to the kernel: a container has its own",
            hint="copy to a directory that an image can contain, such as /opt or /srv",
            argument="target",
        )
    if call["image"]:
        check_image(call["image"], "io.copy")
    function: FunctionValue | None = call["source"]
    if function is not None and call["image"]:
        raise CallError(
            "io.copy(): both image and source", hint="copy from one of them", argument="source"
        )
    if function is None and call["parameters"]:
        raise CallError(
            "io.copy(): parameters without source",
            hint="name the build function: source=…",
            argument="parameters",
        )
    name, arguments = "", {}
    if function is not None:
        name, arguments = (
            function.name,
            bind_values(env.text, function.name, call["parameters"] or ()),
        )
    env.add_step(
        CopyStep(
            call["path"],
            call["target"],
            call["image"],
            name,
            tuple(arguments.items()),
            span=call.span,
        )
    )


# -- io.http ---------------------------------------------------------------------------------------


class HttpStep(Step, frozen=True):
    """``io.http(url, checksum, filename)``; ``checksum`` is ``sha256:…`` or empty.

    The file goes to ``/home/envd/extra_source/<filename>`` as in envd; ``filename`` defaults to
    the last part of the URL's path.
    """

    url: str
    checksum: str = ""
    filename: str = ""

    @property
    def file_name(self) -> str:
        """The name that the file gets."""
        path = self.url.split("#", 1)[0].split("?", 1)[0]
        return self.filename or path.rstrip("/").rsplit("/", 1)[-1] or "download"

    @property
    def sha256(self) -> str:
        """The declared hash without its prefix, empty if there is none."""
        return self.checksum.removeprefix("sha256:")

    def addresses(self) -> tuple[str, ...]:
        return (self.url,)

    def add_to(self, below: Vertex, context: GraphContext) -> Vertex:
        # The graph has no credentials: they are part of no digest and of no image.
        url = strip_credentials(self.url)
        op: HttpFile | Unresolved = Unresolved("HTTP file", (url,))
        for pin in HTTP_FILES.pins(context.lock):
            if pin.url == url:
                op = HttpFile(
                    url=url,
                    sha256=pin.sha256,
                    target=f"{EXTRA_SOURCES}/{self.file_name}",
                    epoch=context.epoch,
                    uid=context.owner.uid,
                    gid=context.owner.gid,
                )
        return _lay_over(below, Vertex(op, (), f"download {url}", "steps", (self.span,)))


class LockedHttp(msgspec.Struct, frozen=True):
    """A file of ``io.http``: the user's URL, and the hash and size of what it returned."""

    url: str
    sha256: str
    size: int


class HttpFiles(LockSection[LockedHttp]):
    """The files of ``io.http``."""

    name = "http"
    singular = "file"
    plural = "HTTP files"

    def is_stale(self, environment: Environment, pins: tuple[LockedHttp, ...]) -> bool:
        steps = [step for step in environment.steps if isinstance(step, HttpStep)]
        locked = {pin.url: pin.sha256 for pin in pins}
        return {strip_credentials(step.url) for step in steps} != locked.keys() or any(
            step.sha256 not in ("", locked[strip_credentials(step.url)]) for step in steps
        )

    async def resolve(
        self, environment: Environment, pins: tuple[LockedHttp, ...], resolver: SectionResolver
    ) -> tuple[LockedHttp, ...]:
        known = {pin.url: pin for pin in pins}
        steps = [step for step in environment.steps if isinstance(step, HttpStep) and step.sha256]
        # The first checksum that is declared for a URL counts for each step that downloads it.
        declared_hashes = {strip_credentials(step.url): step.sha256 for step in reversed(steps)}
        locked: dict[str, LockedHttp] = {}
        for step in environment.steps:
            if not isinstance(step, HttpStep):
                continue
            url = strip_credentials(step.url)
            declared = step.sha256 or declared_hashes.get(url, "")
            if declared != declared_hashes.get(url, declared):
                raise ResolveError(
                    f"io.http(): two checksums for {url}",
                    hint="keep one: a URL is downloaded once",
                    span=step.span,
                )
            if url in locked:
                continue
            before = None if resolver.may_change(url) else known.get(url)
            if before and declared in ("", before.sha256):
                locked[url] = before
                continue
            try:
                sha256, size = await resolver.fetch_file(step.url, declared)
            except DanluError as error:
                error.span = error.span or step.span
                raise
            locked[url] = LockedHttp(url, sha256, size)
        return tuple(locked[url] for url in sorted(locked))

    def describe(self, pin: LockedHttp) -> tuple[str, str]:
        return pin.url, pin.sha256[:12]

    def find_problem(self, pin: LockedHttp) -> str:
        return "" if _HEX.fullmatch(pin.sha256) else f"{pin.url} has an invalid sha256"


HTTP_FILES = HttpFiles(LockedHttp)


def _declare_http(env: EnvironmentBuilder, call: BoundCall) -> None:
    url, filename, checksum = call["url"], call["filename"], call["checksum"].lower()
    check_url(url, "io.http", "url", ("http", "https"))
    if checksum and not _SHA256.fullmatch(checksum):
        raise CallError(
            f"io.http(): invalid checksum '{call['checksum']}'",
            hint="a checksum is sha256: followed by 64 hexadecimal digits",
            argument="checksum",
        )
    name = filename or urlsplit(url).path.rpartition("/")[2]
    if not name or "/" in name or name in (".", ".."):
        raise CallError(
            f"io.http(): invalid file name '{filename}'"
            if filename
            else "io.http(): the URL has no file name",
            hint='set filename="…", without a directory',
            argument="filename" if filename else "url",
        )
    env.add_step(HttpStep(url, checksum, filename, span=call.span))


FUNCTIONS = (
    BuildFunction(
        "run",
        "Run shell commands during the build. Each call is one bash script (`set -euo pipefail`) "
        "and one layer. Runs keep the order in which they are written, after all declarations.",
        (
            Parameter("commands", TEXTS, "the lines of the script"),
            Parameter(
                "mount_host",
                FLAG,
                "mount the project's files while it runs; it runs again if one of them changes",
                False,
            ),
            Parameter(
                "secrets",
                SECRETS,
                "secrets that the commands may read, each as a file: by default "
                "`/run/secrets/ID`. They never enter the image",
                (),
            ),
            Parameter(
                "ssh",
                FLAG,
                "let the commands use the ssh agent that `danlu build --ssh default` forwards",
                False,
            ),
            Parameter(
                "shell",
                TEXTS,
                'another program that gets the script as its last argument: `["/bin/sh", "-c"]`',
                (),
            ),
        ),
        declare=_declare_run,
        example='run(["make", "make install"], secrets=["token"])',
    ),
    BuildFunction(
        "io.copy",
        "Copy files into the image: from the project, from another image, or from the result of "
        "another build function, which is built for it but does not become part of the image.",
        (
            Parameter(
                "path",
                TEXT,
                "path in the project, in `image` or in the result of `source`; its last part may "
                "be a pattern (`*.whl`)",
                aliases=("host_path", "source"),
            ),
            Parameter("target", TEXT, "path in the environment", aliases=("envd_path",)),
            Parameter("image", TEXT, "the image to copy from", ""),
            Parameter(
                "source",
                BUILD_FUNCTION,
                "the build function of this file to copy from (a text is the `path`)",
                None,
                keyword_only=True,
            ),
            Parameter(
                "parameters",
                PARAMETERS,
                "values for the parameters of `source`",
                None,
                keyword_only=True,
            ),
        ),
        declare=_declare_copy,
        lock_section=COPIED_IMAGES,
        example='io.copy("main.py", "/opt/app/")',
    ),
    BuildFunction(
        "io.http",
        "Download a file to `/home/envd/extra_source`.",
        (
            Parameter("url", TEXT, "the file's URL"),
            Parameter("checksum", TEXT, "`sha256:…`; without it the lockfile pins the hash", ""),
            Parameter("filename", TEXT, "its name; by default the last part of the URL", ""),
        ),
        declare=_declare_http,
        lock_section=HTTP_FILES,
        example='io.http("https://example.org/model.bin", filename="model.bin")',
    ),
)
