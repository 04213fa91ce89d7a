"""The texts of evaluated files, from the caller's loader, and places in them for messages."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from danlu.errors import BuildFileError, DanluError, Span, UsageError
from danlu.lang.protocol import CallFrame, FunctionCall
from danlu.util.urls import strip_credentials

_TOKEN = re.compile(
    r"""('''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|\#[^\n]*)"""
    r"|(\t)",
    re.DOTALL,
)
_DEFINITION = re.compile(r"^def[ \t]+([A-Za-z_]\w*)[ \t]*\([ \t]*\)", re.MULTILINE)


def normalize_newlines(text: str) -> str:
    """Return the text without a byte order mark and with Unix line ends."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def replace_tabs(text: str) -> str:
    """Replace each tab outside strings by a space: the interpreter does not accept tabs."""
    if "\t" not in text:
        return text
    return _TOKEN.sub(lambda match: match[1] if match[1] is not None else " ", text)


def dotted_name(node: ast.AST) -> str:
    """Return the name of an expression such as ``install.python``, empty for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted_name(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def find_build_functions(text: str) -> list[str]:
    """Return the top-level functions that can be built: public, without required arguments."""
    try:
        tree = ast.parse(normalize_newlines(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [
            name
            for name in _DEFINITION.findall(normalize_newlines(text))
            if not name.startswith("_")
        ]
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and not _required_arguments(node.args)
    ]


def _required_arguments(arguments: ast.arguments) -> int:
    positional = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    return positional + sum(default is None for default in arguments.kw_defaults)


class SourceFiles:
    """Texts by file name, parsed on demand."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._texts: dict[str, str] = {}
        self._trees: dict[str, ast.Module | None] = {}
        self._calls: dict[str, dict[int, list[ast.Call]]] = {}
        self.foreign_files: set[str] = set()

    def add(self, file: str, text: str, *, is_foreign: bool = False) -> None:
        """Add a file's text. A foreign file belongs to an included repository, not to the user."""
        self._texts[file] = text
        if is_foreign:
            self.foreign_files.add(file)

    def text(self, file: str) -> str:
        """Return a file's text, empty if it is unknown."""
        return self._texts.get(file, "")

    def line(self, file: str, line: int) -> str:
        """Return a line of a file, empty if it does not exist."""
        if file not in self._lines:
            self._lines[file] = self.text(file).split("\n")
        lines = self._lines[file]
        return lines[line - 1] if 0 < line <= len(lines) else ""

    def tree(self, file: str) -> ast.Module | None:
        """Return the file's syntax tree, None if Python cannot parse it."""
        if file not in self._trees:
            try:
                self._trees[file] = ast.parse(self.text(file))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._trees[file] = None
        return self._trees[file]

    def span(self, file: str, line: int, column: int = 0, end_column: int = 0) -> Span:
        """Return a span, without columns if the line is shorter."""
        width = len(self.line(file, line))
        if not 0 < column <= width + 1:
            return Span(file, line)
        return Span(file, line, column, max(column + 1, min(end_column, width + 1)))

    def node_span(self, file: str, node: ast.expr | ast.stmt | ast.keyword) -> Span:
        """Return the span of a syntax node, to the end of its first line."""
        text = self.line(file, node.lineno)
        column = _character_offset(text, node.col_offset) + 1
        end = len(text) + 1
        if node.end_lineno == node.lineno and node.end_col_offset is not None:
            end = _character_offset(text, node.end_col_offset) + 1
        return Span(file, node.lineno, column, max(end, column + 1))

    def call_span(self, call: FunctionCall, argument: str | int | None = None) -> Span:
        """Return the span of a call, or of one of its arguments, in the innermost file."""
        return self.frame_span(call.frames[-1], call.function, argument)

    def user_span(self, call: FunctionCall) -> Span:
        """Return the span of a call in the innermost of the user's own files."""
        for position in range(len(call.frames) - 1, -1, -1):
            frame = call.frames[position]
            if frame.file not in self.foreign_files:
                innermost = position == len(call.frames) - 1
                return self.frame_span(frame, call.function if innermost else "", None)
        return self.call_span(call)

    def find_included_place(self, call: FunctionCall) -> str:
        """Return the innermost place of an included repository that led to a call, or empty.

        A function of the user's that such a repository calls gets its arguments from there.
        """
        for frame in reversed(call.frames):
            if frame.file in self.foreign_files:
                return f"{strip_credentials(frame.file)}:{frame.line}"
        return ""

    def frame_span(
        self, frame: CallFrame, function: str = "", argument: str | int | None = None
    ) -> Span:
        """Return the span of a frame's call, or of one of its arguments."""
        node = self._call_node(frame, function)
        if node is None:
            return self.span(frame.file, frame.line, frame.column, frame.end_column)
        return self.node_span(frame.file, _argument_node(node, argument))

    def find_load(self, path: str) -> Span | None:
        """Return the first ``load()`` of ``path`` in any file."""
        for file, name in self._first_arguments("load"):
            directory = posixpath.dirname(file)
            if posixpath.normpath(posixpath.join(directory, str(name.value))) == path:
                return self.node_span(file, name)
        return None

    def find_include(self, url: str) -> Span | None:
        """Return the first ``include()`` of ``url`` in the user's files."""
        for file, name in self._first_arguments("include"):
            if name.value == url and file not in self.foreign_files:
                return self.node_span(file, name)
        return None

    def _first_arguments(self, function: str) -> Iterator[tuple[str, ast.Constant]]:
        """Yield the file and first argument of each call of ``function`` with a constant."""
        for file in self._texts:
            tree = self.tree(file)
            for node in ast.walk(tree) if tree is not None else ():
                if isinstance(node, ast.Call) and dotted_name(node.func) == function and node.args:
                    name = node.args[0]
                    if isinstance(name, ast.Constant):
                        yield file, name

    def _call_node(self, frame: CallFrame, function: str) -> ast.Call | None:
        calls = self._calls_of(frame.file).get(frame.line, [])
        if frame.column:
            exact = [c for c in calls if self.node_span(frame.file, c).column == frame.column]
            return max(exact, key=lambda c: c.end_col_offset or 0, default=None)
        named = [c for c in calls if function and dotted_name(c.func) == function]
        found = named or calls
        return found[0] if len(found) == 1 else None

    def _calls_of(self, file: str) -> Mapping[int, Sequence[ast.Call]]:
        if file not in self._calls:
            by_line: dict[int, list[ast.Call]] = {}
            tree = self.tree(file)
            for node in ast.walk(tree) if tree is not None else ():
                if isinstance(node, ast.Call):
                    by_line.setdefault(node.lineno, []).append(node)
            self._calls[file] = by_line
        return self._calls[file]

    def make_error(
        self,
        message: str,
        span: Span,
        *,
        hint: str = "",
        callers: Iterable[CallFrame] = (),
    ) -> BuildFileError:
        """Return an error at a span, with the calls that led there, innermost first."""
        details = []
        for frame in reversed(list(callers)):
            source = self.line(frame.file, frame.line).strip()
            details.append(f"called from {frame.file}:{frame.line}: {source}".rstrip(": "))
        return BuildFileError(
            message,
            hint=hint,
            span=span,
            source_line=self.line(span.file, span.line),
            details=tuple(details[:10]),
        )


def _character_offset(text: str, offset: int) -> int:
    return len(text.encode()[:offset].decode(errors="ignore"))


def _argument_node(call: ast.Call, argument: str | int | None) -> ast.expr | ast.keyword:
    if isinstance(argument, str):
        for keyword in call.keywords:
            if keyword.arg == argument:
                return keyword
    if isinstance(argument, int) and argument < len(call.args):
        before = call.args[: argument + 1]
        if not any(isinstance(node, ast.Starred) for node in before):
            return call.args[argument]
    return call


def find_definition(file: str, function: str, sources: SourceFiles) -> Span:
    """Return the line that defines a build function, the file's first line if unknown."""
    tree = sources.tree(file)
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return sources.span(file, node.lineno)
    return Span(file, 1)


class RepositoryContent(msgspec.Struct, frozen=True):
    """A repository at a commit, and the text of each ``*.envd`` by path.

    ``commit`` is the full object name; paths are relative to the repository's root, with ``/``.
    """

    commit: str
    files: Mapping[str, str]


class SourceLoader(Protocol):
    """What the language asks of its caller; it opens no file and no connection itself."""

    def read(self, path: str) -> str:
        """Return the text of a file of the project. Raises ``FileNotFoundError``."""
        ...

    def include(self, url: str, ref: str) -> RepositoryContent:
        """Return the repository at ``url``, at ``ref`` (empty: the lock's commit or the head)."""
        ...


class CachingLoader:
    """The :class:`~danlu.lang.protocol.SourceProvider` of an interpreter, over a loader.

    It asks for everything once: a file is evaluated more than once if it includes repositories, and
    must not change in between.
    """

    def __init__(self, loader: SourceLoader, sources: SourceFiles) -> None:
        self._loader = loader
        self._sources = sources
        self._texts: dict[str, str] = {}
        self._repositories: dict[tuple[str, str], RepositoryContent] = {}

    def read(self, path: str) -> str | None:
        """Return the text of a file of the project, None if it does not exist."""
        if path in self._texts:
            return self._texts[path]
        try:
            text = self._loader.read(path)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except UsageError as error:
            error.span = error.span or self._sources.find_load(path)
            raise
        except UnicodeDecodeError as error:
            raise UsageError(f"cannot read {path}: not UTF-8: {error.reason}") from error
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
        self._sources.add(path, normalize_newlines(text))
        self._texts[path] = text
        return text

    def include(self, url: str, ref: str) -> tuple[str, Mapping[str, str]]:
        """Return a repository's commit and its ``*.envd`` files."""
        content = self._repositories.get((url, ref))
        if content is None:
            try:
                content = self._repositories[url, ref] = self._loader.include(url, ref)
            except DanluError as error:
                error.span = error.span or self._sources.find_include(url)
                raise
        for path, text in content.files.items():
            self._sources.add(f"{url}/{path}", normalize_newlines(text), is_foreign=True)
        return content.commit, dict(content.files)
