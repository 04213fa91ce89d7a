"""Check that tests notice small errors in the code that reads untrusted input.

::

    scripts/mutate.py                     a sample; compare the score with the recorded one
    scripts/mutate.py oci store           of these packages only
    scripts/mutate.py --all oci           all mutants instead of a sample
    scripts/mutate.py --only 'tar/places' only mutants whose name contains this
    scripts/mutate.py --update            record score and survivors (tests/mutation-score.toml)
    scripts/mutate.py --list              name the mutants, run nothing

A mutant is the source with one small error: a negated condition, another comparison, a `raise`,
`return` or call that is missing, another constant, a missing element or flag. It is *killed* if a
quick test fails, and *survives* if all pass. First all tests run once on the unchanged code, and
the functions that each of them calls, also in forked children, are recorded; then each mutant is
run against the tests that call its function. Why not mutmut: docs/architecture/decisions.md.

The sample depends on a hash of each mutant's name, so it stays the same when other code changes.
Whether a survivor is *equivalent* (no test can tell it from the original) is recorded with a reason
in the score file; equivalent mutants do not count. The exit code is 1 if the score of a package is
lower than the recorded one.

Mutants can do harm (an extraction that no longer looks for ``..``), so they run in a mount
namespace in which only their own directory is writable. That needs root.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import hashlib
import json
import mmap
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("src/danlu")
SCORE_FILE = ROOT / "tests/mutation-score.toml"
SEED = "danlu"
#: Seconds for the tests of one mutant: one that loops forever is killed too.
MUTANT_TIMEOUT = 90
#: Seconds of recorded test time to spend on one mutant, the fastest tests first.
TEST_BUDGET = 40


@dataclass(frozen=True)
class MutatedPackage:
    """Code to mutate (modules or directories below src/danlu) and the tests that should see it."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    #: The part of the mutants to run: 50 to 120 of them.
    sample: float = 0.05


PACKAGES = {
    "oci": MutatedPackage(("oci",), ("tests/oci",)),
    "sources": MutatedPackage(
        ("sources", "util/safe_paths.py"),
        ("tests/sources", "tests/util/test_safe_paths.py", "tests/resolve"),
        sample=0.035,
    ),
    "store": MutatedPackage(("store",), ("tests/store",)),
    "lang": MutatedPackage(
        ("lang",),
        (
            *("tests/lang", "tests/assemble", "tests/resolve/test_toolchains.py"),
            *("tests/resolve/test_vscode.py", "tests/resolve/test_http_files.py"),
            *("tests/resolve/test_julia_packages.py", "tests/resolve/test_r_packages.py"),
            "tests/resolve/test_copied_images.py",
        ),
    ),
    "sandbox": MutatedPackage(
        ("sandbox",), ("tests/sandbox", "tests/sources/test_pypi_indexes.py")
    ),
    "resolve": MutatedPackage(
        ("resolve/lockfile.py", "resolve/python/pylock.py", "resolve/python/packages.py"),
        ("tests/resolve",),
    ),
    "build_cache": MutatedPackage(
        ("project/build_cache.py",), ("tests/project/test_build_cache.py",), sample=1.0
    ),
}


@dataclass(frozen=True)
class SourceMutant:
    """One change: ``source[start:end]`` of a module becomes ``text``."""

    name: str
    module: str
    function: str
    line: int
    start: int
    end: int
    text: str


# --- making mutants

_SWAPPED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_SYMBOLS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}


class MutantFinder(ast.NodeVisitor):
    """Collects (kind, node, replacement) for one module."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, ast.AST, str]] = []
        self._scope: list[str] = []

    def _add_mutant(self, what: str, node: ast.AST, text: str) -> None:
        self.changes.append((".".join(self._scope) or "module", what, node, text))

    def _visit_scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._scope.append(node.name)
        if not isinstance(node, ast.ClassDef):
            for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    visit_FunctionDef = _visit_scope  # noqa: N815
    visit_AsyncFunctionDef = _visit_scope  # noqa: N815
    visit_ClassDef = _visit_scope  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self._negate_test(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate_test(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate_test(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._add_mutant(f"drop if {ast.unparse(condition)}", condition, "True")
        self.generic_visit(node)

    def _negate_test(self, test: ast.expr) -> None:
        # A single comparison is negated by changing it.
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
            self._add_mutant(f"negate {ast.unparse(test)}", test, f"(not ({ast.unparse(test)}))")

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            shown = f"{ast.unparse(left)} {_SYMBOLS[type(operator)]} {ast.unparse(right)}"
            swapped = _SWAPPED[type(operator)]
            self._add_mutant(
                f"{shown} becomes {swapped}", _OperatorPlace(left, right), f" {swapped} "
            )
            self._change_numbers(left, right)
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for value in node.values:
            rest = [ast.unparse(other) for other in node.values if other is not value]
            word = " and " if isinstance(node.op, ast.And) else " or "
            shown = ast.unparse(value)
            self._add_mutant(f"drop {word.strip()} {shown}", node, f"({word.join(rest)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.BitOr) and not _is_cloexec(node.right):
            self._add_mutant(
                f"drop | {ast.unparse(node.right)}", node, f"({ast.unparse(node.left)})"
            )
            if not isinstance(node.left, ast.BinOp):
                self._add_mutant(
                    f"drop {ast.unparse(node.left)} |", node, f"({ast.unparse(node.right)})"
                )
        whole = [side for side in (node.left, node.right) if _is_number(side)]
        if whole and isinstance(node.op, (ast.Add, ast.Sub)):
            sign = "-" if isinstance(node.op, ast.Add) else "+"
            changed = f"({ast.unparse(node.left)} {sign} {ast.unparse(node.right)})"
            self._add_mutant(f"{ast.unparse(node)} becomes {sign}", node, changed)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self._add_mutant(f"drop {_format_node(node)}", node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
            changed = str(not node.value.value)
            self._add_mutant(f"{ast.unparse(node)} becomes {changed}", node.value, changed)
        elif node.value is None:
            self._add_mutant("drop return", node, "pass")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add_mutant("drop continue", node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._add_mutant("drop break", node, "pass")

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call):
            self._add_mutant(f"drop {_format_node(node)}", node, "pass")
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._add_mutant(f"drop {_format_node(node)}", node, "pass")

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg == "sync":
            return  # Only a power cut shows whether a file was synced.
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
            changed = str(not node.value.value)
            self._add_mutant(
                f"{node.arg}={node.value.value} becomes {changed}", node.value, changed
            )
        else:
            self.generic_visit(node)

    def _change_numbers(self, *nodes: ast.expr) -> None:
        """Change numbers in comparisons; most others are chunk sizes."""
        for node in nodes:
            if isinstance(node, ast.Constant) and type(node.value) is int:
                self._add_mutant(
                    f"{node.value} becomes {node.value + 1}", node, str(node.value + 1)
                )

    def _visit_elements(self, node: ast.List | ast.Tuple | ast.Set) -> None:
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return
        if len(node.elts) > 1 and all(isinstance(item, ast.Constant) for item in node.elts):
            opening, closing = {ast.List: "[]", ast.Tuple: "()", ast.Set: "{}"}[type(node)]
            for item in node.elts:
                rest = ", ".join(ast.unparse(other) for other in node.elts if other is not item)
                comma = "," if isinstance(node, ast.Tuple) else ""
                self._add_mutant(
                    f"drop element {ast.unparse(item)}", node, f"{opening}{rest}{comma}{closing}"
                )
            return
        self.generic_visit(node)

    visit_List = _visit_elements  # noqa: N815
    visit_Tuple = _visit_elements  # noqa: N815
    visit_Set = _visit_elements  # noqa: N815

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if "__all__" not in names:
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave messages alone."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave what only types need alone."""


class _OperatorPlace(ast.AST):
    """The place of an operator: between two expressions."""

    def __init__(self, left: ast.expr, right: ast.expr) -> None:
        super().__init__()
        self.lineno, self.col_offset = left.end_lineno, left.end_col_offset
        self.end_lineno, self.end_col_offset = right.lineno, right.col_offset


def _is_cloexec(node: ast.AST) -> bool:
    """Return whether the flag is one that Python sets by itself (PEP 446)."""
    return ast.unparse(node) == "os.O_CLOEXEC"


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _format_node(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:80]


def find_mutants(module: Path) -> list[SourceMutant]:
    """Return all mutants of a module; their names have no line numbers and so survive edits."""
    source = (ROOT / module).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    finder = MutantFinder()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node  # type: ignore[attr-defined]
    finder.visit(tree)
    seen: Counter[str] = Counter()
    found = []
    short = str(module.relative_to(SOURCE))
    for function, what, node, text in finder.changes:
        start = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        if isinstance(node, _OperatorPlace):
            # Keep parentheses and line ends around the operator.
            start, end = _find_operator(source, start, end)
        base = f"{short} {function}: {' '.join(what.split())[:110]}"
        seen[base] += 1
        name = base if seen[base] == 1 else f"{base} #{seen[base]}"
        mutated = source[:start] + text.encode() + source[end:]
        try:
            ast.parse(mutated)
        except SyntaxError:
            continue
        line = node.lineno  # type: ignore[attr-defined]
        found.append(SourceMutant(name, str(module), function, line, start, end, text))
    return found


def _find_operator(source: bytes, start: int, end: int) -> tuple[int, int]:
    between = source[start:end]
    for operator in sorted({*_SYMBOLS.values()}, key=len, reverse=True):
        at = between.find(operator.encode())
        if at >= 0:
            return start + at, start + at + len(operator)
    return start, end


def is_sampled(mutant: SourceMutant, fraction: float) -> bool:
    digest = hashlib.sha256(f"{SEED} {mutant.name}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < fraction * (1 << 32)


def modules_of(package: MutatedPackage) -> list[Path]:
    found: list[Path] = []
    for name in package.modules:
        path = ROOT / SOURCE / name
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        found += [file.relative_to(ROOT) for file in files]
    return found


# --- running tests


@dataclass(frozen=True)
class RecordedCalls:
    """Which functions each test calls (their slots), and the seconds it takes."""

    slots: dict[str, set[int]]
    seconds: dict[str, float]


SLOTS = 1 << 20


def slot_of(file: str, function: str) -> int:
    """Return the number of a function, or class, or with an empty name of a file."""
    return zlib.crc32(f"{file}:{function}".encode()) % SLOTS


class FunctionRecorder:
    """A pytest plugin: which functions of danlu each test calls, and how long it takes."""

    def __init__(self, source: Path) -> None:
        self._source = f"{source}/"
        # In memory that is shared with forked children: those of danlu close all files.
        self._called = mmap.mmap(-1, SLOTS)
        self._seen: set[CodeType] = set()
        self.slots: dict[str, list[int]] = {}
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def _trace_call(self, frame: object, event: str, argument: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if code in self._seen:
            return
        self._seen.add(code)
        if code.co_filename.startswith(self._source) and code.co_name != "<module>":
            file = code.co_filename[len(self._source) :]
            parts = code.co_qualname.replace("<locals>.", "").split(".")
            for count in range(len(parts) + 1):
                self._called[slot_of(file, ".".join(parts[:count]))] = 1

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._called[:] = bytes(SLOTS)
        self._seen.clear()
        sys.settrace(self._trace_call)
        threading.settrace(self._trace_call)

    def pytest_runtest_logreport(self, report: object) -> None:
        test = _test_of(report.nodeid)  # type: ignore[attr-defined]
        self.seconds[test] += report.duration  # type: ignore[attr-defined]
        if report.failed:  # type: ignore[attr-defined]
            self.failed.add(test)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        found = self.slots.setdefault(_test_of(nodeid), [])
        found += [match.start() for match in re.finditer(b"\1", self._called)]


def _test_of(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def _enter_copy(copy: str, output: str) -> None:
    """Make this process look as if danlu and its tests were in ``copy``."""
    os.setsid()
    os.chdir(copy)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    home = f"{copy}/.home"
    os.makedirs(home, exist_ok=True)
    os.environ |= {"HOME": home, "PYTHONPATH": f"{copy}/src", "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ |= {"TMPDIR": home, "XDG_CACHE_HOME": f"{home}/.cache"}
    sys.dont_write_bytecode = True
    tempfile.tempdir = home
    sys.path.insert(0, f"{copy}/src")
    sys.modules.pop("__mp_main__", None)


_REWRITTEN = "ignore::pytest.PytestAssertRewriteWarning"  # of what the fork server has loaded
_OPTIONS = ["-q", "-W", _REWRITTEN, "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=40"]


def record_calls(copy: str, output: str, tests: Sequence[str]) -> None:
    """Run ``tests`` in a separate process, and write what they call to ``output``.json."""
    _enter_copy(copy, output)
    import pytest

    recorder = FunctionRecorder(Path(copy, SOURCE))
    code = pytest.main([*_OPTIONS, "--hypothesis-seed=1", *tests], plugins=[recorder])
    value = {
        "slots": recorder.slots,
        "seconds": recorder.seconds,
        "failed": sorted(recorder.failed),
    }
    Path(f"{output}.json").write_text(json.dumps(value))
    sys.stdout.flush()
    os._exit(code)


def run_tests(copy: str, output: str, tests: Sequence[str]) -> None:
    """Run ``tests`` in a separate process, up to the first failure."""
    _enter_copy(copy, output)
    try:
        import pytest
    except ImportError:
        os._exit(_NO_PYTEST)
    code = pytest.main([*_OPTIONS, "-x", "--hypothesis-seed=1", *tests])
    sys.stdout.flush()
    os._exit(code)


#: The exit code if .venv was changed during the run, which is not due to a mutant.
_NO_PYTEST = 99


class MutationBench:
    """Copies of the tree, one for each job, and a server that forks test processes quickly."""

    def __init__(self, place: Path, jobs: int) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["pytest", "hypothesis", "aiohttp", "msgspec", "anyio", "packaging", "zstandard"]
        )
        self._copies = [place / f"copy{number}" for number in range(jobs)]
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for copy in self._copies:
            for name in os.fsdecode(listed.stdout).split("\0"):
                if name and (ROOT / name).is_file():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / name, copy / name)
            subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
        self._free = list(self._copies)
        self._lock = threading.Lock()
        self._stamp = int(time.time()) + 1_000_000

    def _run_process(
        self, target: object, copy: Path, tests: Sequence[str], timeout: float
    ) -> int | None:
        arguments = (str(copy), str(copy) + ".log", tests)
        process = self._context.Process(target=target, args=arguments)  # type: ignore[arg-type]
        process.start()
        process.join(timeout)
        if process.is_alive():
            assert process.pid is not None
            os.killpg(process.pid, 9)
            process.join()
            return None
        return process.exitcode

    def record(self, package: MutatedPackage) -> RecordedCalls:
        """Run the tests of ``package`` unchanged; they must pass."""
        copy = self._take_copy()
        tests = package.tests
        try:
            code = self._run_process(record_calls, copy, tests, 3000)
            value = json.loads(Path(f"{copy}.log.json").read_text()) if code in (0, 1) else {}
            # A few depend on the depth of the stack or the time that tracing takes.
            if code == 1:
                code = self._run_process(run_tests, copy, value["failed"], 600)
            if code != 0:
                tail = Path(f"{copy}.log").read_text(errors="replace")[-3000:]
                sys.exit(f"{tail}\nmutate: {' '.join(tests)} fail without any mutation")
            slots = {test: set(found) for test, found in value["slots"].items()}
            return RecordedCalls(slots, value["seconds"])
        finally:
            self._free.append(copy)

    def survives(self, mutant: SourceMutant, tests: Sequence[str]) -> bool:
        """Return whether all of ``tests`` pass with ``mutant``."""
        copy = self._take_copy()
        path = copy / mutant.module
        source = path.read_bytes()
        try:
            path.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.end :])
            with self._lock:
                self._stamp += 1
                os.utime(path, (self._stamp, self._stamp))
            code = self._run_process(run_tests, copy, tests, MUTANT_TIMEOUT)
            if code == _NO_PYTEST:
                sys.exit("mutate: pytest not found: was .venv recreated during the run?")
            return code == 0
        finally:
            path.write_bytes(source)
            shutil.rmtree(copy / ".home", ignore_errors=True)
            self._free.append(copy)

    def _take_copy(self) -> Path:
        with self._lock:
            return self._free.pop()


def choose_tests(mutant: SourceMutant, calls: RecordedCalls) -> list[str]:
    """Return the tests that call the mutant's function, or else its module, fastest first.

    For a constant of a module they are followed by the others, which may read it.
    """
    module = str(Path(mutant.module).relative_to(SOURCE))
    seconds = calls.seconds
    fastest = sorted(seconds, key=lambda test: seconds[test])
    exact, near = (
        [test for test in fastest if slot_of(module, name) in calls.slots.get(test, ())]
        for name in (mutant.function, "")
    )
    ranked = exact or near or fastest
    if mutant.function == "module":
        ranked = list(dict.fromkeys([*near, *fastest]))
    chosen: list[str] = []
    spent = 0.0
    for test in ranked:
        spent += seconds[test]
        if spent > TEST_BUDGET and chosen:
            break
        chosen.append(test)
    return chosen


def protect_machine(place: Path) -> None:
    """Make everything but ``place`` read-only for this process and its children."""
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result:
            sys.exit(f"mutate: no mount namespace: {os.strerror(ctypes.get_errno())} (needs root)")

    clone_newns, private, bind, remount, readonly, recursive = 0x20000, 1 << 18, 4096, 32, 1, 16384
    check(libc.unshare(clone_newns))
    check(libc.mount(b"none", b"/", None, recursive | private, None))
    inside = os.fsencode(place)
    check(libc.mount(inside, inside, None, bind, None))
    for name in ("subuid", "subgid"):
        # Tests that become an ordinary user touch these before they cover them.
        if Path("/etc", name).exists():
            shutil.copy(Path("/etc", name), place)
            target = os.fsencode(f"/etc/{name}")
            check(libc.mount(os.fsencode(place / name), target, None, bind, None))
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        target = line.split()[4]
        if target.startswith(("/proc", "/sys", "/dev", "/etc/sub")) or Path(target) == place:
            continue
        # Some cannot be remounted; the root can.
        failed = libc.mount(b"none", target.encode(), None, bind | remount | readonly, None)
        if target == "/":
            check(failed)


# --- the score


def load_score() -> dict[str, object]:
    if not SCORE_FILE.exists():
        return {}
    return tomllib.loads(SCORE_FILE.read_text())


def write_score(
    scores: dict[str, tuple[int, int]], survivors: list[str], equivalent: dict[str, str]
) -> None:
    lines = [
        "# Written by `scripts/mutate.py --update`; [equivalent] has reasons written by hand.",
        "# The score is killed / (sampled - equivalent); `make test-all` fails if one falls.",
        "",
    ]
    for name, (killed, total) in sorted(scores.items()):
        percent = 100 * killed // max(total, 1)
        lines += [f"[score.{name}]", f"killed = {killed}", f"mutants = {total}"]
        lines += [f"percent = {percent}", ""]
    lines += ["[survivors]", "names = ["]
    lines += [f"    {json.dumps(name)}," for name in sorted(survivors)]
    lines += ["]", "", "[equivalent]"]
    lines += [f"{json.dumps(name)} = {json.dumps(why)}" for name, why in sorted(equivalent.items())]
    SCORE_FILE.write_text("\n".join(lines) + "\n")


def iterate_mutants(packages: Sequence[str]) -> Iterator[tuple[str, SourceMutant]]:
    for name in packages:
        for module in modules_of(PACKAGES[name]):
            for mutant in find_mutants(module):
                yield name, mutant


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=", ".join(PACKAGES))
    parser.add_argument("--all", action="store_true", help="all mutants, not a sample")
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--list", action="store_true", help="name the mutants, run nothing")
    parser.add_argument("--update", action="store_true", help="record the score and survivors")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--place", type=Path, help="directory for the copies (not in memory)")
    options = parser.parse_args()
    packages = options.packages or list(PACKAGES)
    for name in packages:
        if name not in PACKAGES:
            parser.error(f"no package {name}: {', '.join(PACKAGES)}")
    recorded = load_score()
    equivalent: dict[str, str] = recorded.get("equivalent", {})  # type: ignore[assignment]
    mutants = [
        (package, mutant)
        for package, mutant in iterate_mutants(packages)
        if options.only in mutant.name
        and (options.all or options.only or is_sampled(mutant, PACKAGES[package].sample))
        and mutant.name not in equivalent
    ]
    if options.list:
        print("\n".join(mutant.name for _, mutant in mutants))
        return 0
    place = Path(tempfile.mkdtemp(prefix="mutants.", dir=options.place)).resolve()
    place.chmod(0o755)  # for tests that become another user
    try:
        survivors, scores = run_apart(place, mutants, options.jobs)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return report(scores, survivors, options, recorded, equivalent)


def run_apart(
    place: Path, mutants: list[tuple[str, SourceMutant]], jobs: int
) -> tuple[dict[str, list[str]], dict[str, tuple[int, int]]]:
    """Run the mutants in a child that can write below ``place`` only."""
    result = place / "result.json"
    child = os.fork()
    if child == 0:
        protect_machine(place)
        tempfile.tempdir = str(place)
        found = run_mutants(MutationBench(place, jobs), mutants, jobs)
        result.write_text(json.dumps(found))
        sys.stdout.flush()
        os._exit(0)  # what follows in `main` is the parent's to do
    _, status = os.waitpid(child, 0)
    if status or not result.exists():
        sys.exit("mutate: the run ended early")
    survivors, scores = json.loads(result.read_text())
    return defaultdict(list, survivors), {name: tuple(pair) for name, pair in scores.items()}


def run_mutants(
    bench: MutationBench, mutants: list[tuple[str, SourceMutant]], jobs: int
) -> tuple[dict[str, list[str]], dict[str, tuple[int, int]]]:
    began = time.monotonic()
    survivors: dict[str, list[str]] = defaultdict(list)
    counts = Counter(package for package, _ in mutants)
    with ThreadPoolExecutor(jobs) as pool:
        wanted = {package: PACKAGES[package] for package in counts}
        calls = dict(zip(wanted, pool.map(bench.record, wanted.values()), strict=True))
        print(f"{time.monotonic() - began:5.0f} s  recorded what the tests call", flush=True)

        def try_mutant(item: tuple[str, SourceMutant]) -> None:
            package, mutant = item
            if bench.survives(mutant, choose_tests(mutant, calls[package])):
                survivors[package].append(mutant.name)
                print(
                    f"{time.monotonic() - began:5.0f} s  survived: {mutant.name} "
                    f"(line {mutant.line})",
                    flush=True,
                )

        list(pool.map(try_mutant, mutants))
    scores = {name: (total - len(survivors[name]), total) for name, total in counts.items()}
    return survivors, scores


def report(
    scores: dict[str, tuple[int, int]],
    survivors: dict[str, list[str]],
    options: argparse.Namespace,
    recorded: dict[str, object],
    equivalent: dict[str, str],
) -> int:
    before: dict[str, dict[str, int]] = recorded.get("score", {})  # type: ignore[assignment]
    worse = []
    for name, (killed, total) in scores.items():
        percent = 100 * killed // max(total, 1)
        known = before.get(name, {}).get("percent", 0)
        print(f"{name:8} {killed:4} of {total:4} killed: {percent} % (recorded: {known} %)")
        if percent < known:
            worse.append(name)
    if options.update:
        kept = {name: (each["killed"], each["mutants"]) for name, each in before.items()}
        old: dict[str, list[str]] = recorded.get("survivors", {})  # type: ignore[assignment]
        prefixes = tuple(
            str(module.relative_to(SOURCE)) + " "
            for name in scores
            for module in modules_of(PACKAGES[name])
        )
        others = [name for name in old.get("names", []) if not name.startswith(prefixes)]
        found = [name for names in survivors.values() for name in names]
        write_score({**kept, **scores}, [*others, *found], equivalent)
        return 0
    if worse and not (options.all or options.only):
        print(f"mutate: the score of {', '.join(worse)} has fallen: write the missing tests")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
