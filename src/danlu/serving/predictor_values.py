"""What a value in a request means: the one set of rules for every protocol, file and adapter.

It is copied to the image next to ``run.py`` and imports nothing but the standard library; NumPy,
PyTorch and pandas are used only for values of their types. Python 3.9 and later.

The rules are in docs/architecture/decisions.md, "What a payload means". In short: no value changes
its type unless NumPy calls that the same kind and the value fits; text is never read as something
else; columns are matched by name; what is recorded with ``$bytes``, ``$float``, ``$array`` and
``$frame`` is decoded only where danlu recorded it, never in a request.
"""

from __future__ import annotations

import base64
import functools
import importlib
import inspect
import itertools
import json
import math
import operator
import struct
import typing
from collections.abc import Mapping, Sequence
from typing import Any

_SIMPLE = {int: "integer", float: "number", str: "string", bool: "boolean", bytes: "bytes"}
_CONTAINERS = {list: "list", tuple: "list", dict: "object"}
_ACCEPTED = {
    "integer": (int,), "number": (int, float), "string": (str,), "boolean": (bool,),
    "bytes": (bytes,), "list": (list, tuple), "object": (dict,),
}  # fmt: skip
#: Types of parameters that are one value, so that each instance of V1 is a separate call.
SINGLE = frozenset(("integer", "number", "string", "boolean", "bytes", "object"))
_MAX_RANK = 32
#: Whole numbers up to this are exact as float64; larger ones may be.
_EXACT = 1 << 53


@functools.lru_cache(maxsize=1)
def import_numpy() -> Any:
    """Return NumPy, which the image has if anything needs it."""
    return importlib.import_module("numpy")


class InvalidInputError(Exception):
    """An input that does not fit the annotations of ``predict``, or a missing example."""


class Table:
    """Rows with named columns; a column is a list, or an array whose type the client declared."""

    def __init__(self, columns: Mapping[str, Any], length: int, index: Any = None) -> None:
        self.columns = columns
        self.length = length
        self.index = index

    def list_rows(self) -> list[list[Any]]:
        """Return the rows, in the order of the columns."""
        columns = [_list_values(column) for column in self.columns.values()]
        if not columns:
            return [[] for _ in range(self.length)]
        return [list(row) for row in zip(*columns)]  # noqa: B905 (Python 3.9)

    def list_records(self) -> list[dict[str, Any]]:
        """Return the rows as objects."""
        return [dict(zip(self.columns, row)) for row in self.list_rows()]  # noqa: B905


def make_table(names: Sequence[Any], rows: Sequence[Any], index: Any = None) -> Table:
    """Return the table of rows that are lists; raises :class:`InvalidInputError`."""
    columns = [str(name) for name in names]
    if not all(isinstance(name, str) or type(name) is int for name in names):
        raise InvalidInputError("the names of columns must be texts")
    if len(set(columns)) != len(columns):
        raise InvalidInputError("two columns have the same name")
    for row in rows:
        if not isinstance(row, (list, tuple)) or len(row) != len(columns):
            raise InvalidInputError(f"every row must be a list of {len(columns)} values")
    if index is not None and (not isinstance(index, list) or len(index) != len(rows)):
        raise InvalidInputError("the index must have a value for every row")
    values = [list(column) for column in zip(*rows)] or [[] for _ in columns]  # noqa: B905
    return Table(dict(zip(columns, values)), len(rows), index)  # noqa: B905


def make_record_table(records: Sequence[Any]) -> Table:
    """Return the table of rows that are objects; a key that one does not have is null there."""
    names: dict[str, None] = {}
    for record in records:
        if not isinstance(record, dict):
            raise InvalidInputError("every row must be an object with the columns by name")
        names.update(dict.fromkeys(record))
    columns = {name: [record.get(name) for record in records] for name in names}
    return Table(columns, len(records))


def make_column_table(columns: Mapping[str, Any]) -> Table:
    """Return the table of columns by name: lists, or arrays of one dimension (or [rows, 1])."""
    made: dict[str, Any] = {}
    for name, values in columns.items():
        if hasattr(values, "reshape") and values.ndim == 2 and values.shape[1] == 1:
            values = values.reshape(-1)
        if not isinstance(values, list) and getattr(values, "ndim", 0) == 0:
            raise InvalidInputError(f"column {name!r} must be a list")
        made[name] = values
    lengths = {len(values) for values in made.values()}
    if len(lengths) > 1:
        raise InvalidInputError("the columns have different lengths")
    return Table(made, lengths.pop() if lengths else 0)


def _list_values(column: Any) -> list[Any]:
    return column if isinstance(column, list) else column.tolist()


def decode_json(data: bytes | str) -> Any:
    """Return the value of JSON (RFC 8259) whose objects have no key twice.

    Raises :class:`InvalidInputError`.
    """
    try:
        text = data.decode() if isinstance(data, bytes) else data
        return json.loads(text, object_pairs_hook=_make_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"invalid JSON: {error}") from error


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInputError(f"an object has the key {twice!r} twice")
    return made


def _refuse_constant(name: str) -> Any:
    raise InvalidInputError(f"invalid JSON: {name}; null is a number that is missing")


# -- the schema of a predictor --------------------------------------------------------------------


def describe_annotation(annotation: Any) -> dict[str, Any]:
    """Return the schema of an annotation: ``type``, for arrays also ``dtype`` and ``shape``.

    ``Annotated[numpy.ndarray, "float32", (None, 64)]`` states both; None is any length.
    """
    details: dict[str, Any] = {}
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, *notes = typing.get_args(annotation)
        for note in notes:
            if isinstance(note, tuple):
                details["shape"] = list(note)
            elif isinstance(note, (str, type)) or hasattr(note, "name"):
                details["dtype"] = note if isinstance(note, str) else _dtype_name(note)
    origin = typing.get_origin(annotation) or annotation
    if origin in _SIMPLE:
        return {"type": _SIMPLE[origin]}
    if origin in _CONTAINERS:
        return {"type": _CONTAINERS[origin]}
    name = getattr(origin, "__qualname__", str(origin))
    package = getattr(origin, "__module__", "").partition(".")[0]
    if (package, name) == ("numpy", "ndarray"):
        return {"type": "array", **details}
    if (package, name) == ("torch", "Tensor"):
        return {"type": "tensor", **details}
    if (package, name) == ("pandas", "DataFrame"):
        return {"type": "frame"}
    return {"type": "any"}


def _dtype_name(note: Any) -> str:
    return str(getattr(note, "__name__", None) or getattr(note, "name", note)).rpartition(".")[2]


def describe_predictor(predictor: Any) -> dict[str, Any]:
    """Return the schema of a predictor: ``inputs`` by parameter, and ``output``.

    Its attribute or method ``columns`` says which columns its table has, that is the first
    parameter that is one: how many; their names; or by name their type, None, or an object with
    ``dtype``, ``shape`` and ``optional``.
    """
    method = predictor.predict
    try:
        hints = typing.get_type_hints(method, include_extras=True)
    except Exception:  # an annotation that cannot be evaluated says nothing
        hints = {}
    inputs: dict[str, Any] = {}
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidInputError("predict must have named parameters, not *args or **kwargs")
        schema = describe_annotation(hints.get(name, Any))
        if parameter.default is not parameter.empty:
            schema["optional"] = True
        inputs[name] = schema
    columns = getattr(predictor, "columns", None)
    columns = columns() if callable(columns) else columns
    table = find_table(inputs)
    if columns is not None and table is not None:
        inputs[table].update(_describe_columns(columns))
        if getattr(predictor, "ignores_other_columns", False):
            inputs[table]["ignores_others"] = True
    return {"inputs": inputs, "output": describe_annotation(hints.get("return", Any))}


def _describe_columns(columns: Any) -> dict[str, Any]:
    if isinstance(columns, int):
        return {"width": columns}
    if not isinstance(columns, Mapping):
        columns = dict.fromkeys(map(str, columns))
    described = {
        name: dict(about) if isinstance(about, Mapping) else {"dtype": about} if about else {}
        for name, about in columns.items()
    }
    return {"columns": described, "width": len(described)}


def find_table(inputs: Mapping[str, Any]) -> str | None:
    """Return the parameter that takes a table, None without one: the first that can."""
    kinds = ("frame", "array", "tensor", "list", "object")
    return next((name for name, about in inputs.items() if about["type"] in kinds), None)


# -- inputs ---------------------------------------------------------------------------------------


def convert_input(value: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``predict`` for an input; raise :class:`InvalidInputError`.

    An input is an object with the parameters by name; a predictor with one parameter also takes its
    value alone. Tables and arrays may stand in the place of lists.
    """
    inputs = schema["inputs"]
    if not are_arguments(value, inputs):
        needed = list_needed(inputs)
        if isinstance(value, tuple) and len(value) == len(inputs):
            value = dict(zip(inputs, value))  # noqa: B905 (Python 3.9)
        elif isinstance(value, dict) and not set(value).isdisjoint(inputs):
            raise InvalidInputError(f"an input must be an object with {', '.join(inputs)}")
        elif len(inputs) == 1 or (len(needed) == 1 and not isinstance(value, dict)):
            value = {(needed or list(inputs))[0]: value}
        else:
            raise InvalidInputError(f"an input must be an object with {', '.join(inputs)}")
    return {name: convert_value(name, item, inputs[name]) for name, item in value.items()}


def list_needed(inputs: Mapping[str, Any]) -> list[str]:
    """Return the parameters without a default."""
    return [name for name, about in inputs.items() if not about.get("optional")]


def are_arguments(value: Any, inputs: Mapping[str, Any]) -> bool:
    """Return whether a value is an object with the parameters by name."""
    if not isinstance(value, dict) or not value.keys() <= inputs.keys():
        return False
    return len(value) == len(inputs) or all(name in value for name in list_needed(inputs))


def convert_value(name: str, value: Any, about: Mapping[str, Any]) -> Any:
    """Return a value as the parameter's type; raise :class:`InvalidInputError`."""
    kind = about["type"]
    if kind == "any":
        return value.list_records() if isinstance(value, Table) else value
    if kind == "frame":
        return _make_frame(name, value, about)
    if kind in ("array", "tensor"):
        return _convert_array(name, value, about)
    if kind == "object" and "columns" in about:
        return _convert_columns(name, value, about)
    if kind == "bytes":
        if isinstance(value, dict) and set(value) == {"b64"}:
            value = value["b64"]
        if isinstance(value, str):
            return decode_base64(value, name)
    if kind == "list":
        value = _list_rows(name, value, about)
    accepted = _ACCEPTED[kind]
    is_wrong_bool = isinstance(value, bool) and kind in ("integer", "number")
    if is_wrong_bool or not isinstance(value, accepted):
        raise InvalidInputError(f"{name} must be of type {kind}, not {_name_type(value)}")
    return value


def _name_type(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def decode_base64(text: str, name: str) -> bytes:
    """Return the bytes of base64 (RFC 4648, section 4), or of its form for addresses (section 5).

    That may lack the padding. Raises :class:`InvalidInputError` for anything else.
    """
    if text.startswith("data:"):
        raise InvalidInputError(f"{name} is a data URL: send the base64 that follows its comma")
    if "-" in text or "_" in text:
        if "+" in text or "/" in text:
            raise InvalidInputError(f"{name} is not base64: it has - or _, and + or /")
        text = text.replace("-", "+").replace("_", "/")
        text += "=" * (-len(text) % 4) if "=" not in text else ""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidInputError(f"{name} is not base64: {error}") from error


def _list_rows(name: str, value: Any, about: Mapping[str, Any]) -> Any:
    """Return the value of a list; rows of a known table are in the order of its columns."""
    table = _read_table(value, about)
    if table is not None:
        value = select_columns(table, about).list_rows()
    elif not isinstance(value, (list, tuple)) and hasattr(_find_array(value), "tolist"):
        value = _find_array(value).tolist()
    width = about.get("width")
    if width is not None and isinstance(value, (list, tuple)):
        for row in value:
            if not isinstance(row, (list, tuple)) or len(row) != width:
                raise InvalidInputError(f"every row of {name} must be a list of {width} values")
    return value


def _are_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _read_table(value: Any, about: Mapping[str, Any]) -> Table | None:
    """Return the table that a value is; objects are rows for a predictor with columns."""
    if isinstance(value, Table):
        return value
    if is_frame(value):
        return read_frame(value)
    return make_record_table(value) if "columns" in about and _are_records(value) else None


def read_frame(frame: Any) -> Table:
    """Return the table of a DataFrame."""
    return Table({str(name): frame[name].to_numpy() for name in frame.columns}, len(frame))


def select_columns(table: Table, about: Mapping[str, Any]) -> Table:
    """Return the columns in the model's order, as MLflow's schema enforcement does.

    Raises :class:`InvalidInputError` for one that is missing, and for one that the model does not
    have, unless it ignores others. A column that is optional may be absent.
    """
    known = about.get("columns")
    if known is None:
        return table
    listed = ", ".join(known)
    for name, details in known.items():
        if name not in table.columns and not details.get("optional"):
            raise InvalidInputError(f"column {name!r} is missing; the model has {listed}")
    if not about.get("ignores_others"):
        for name in table.columns:
            if name not in known:
                raise InvalidInputError(f"the model has no column {name!r}, but {listed}")
    columns = {name: table.columns[name] for name in known if name in table.columns}
    return Table(columns, table.length, table.index)


def _convert_columns(name: str, value: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays by name that a predictor with such columns takes."""
    if _are_records(value):
        value = make_record_table(value)
    columns = value.columns if isinstance(value, Table) else value
    if not isinstance(columns, dict):
        raise InvalidInputError(f"{name} must be an object with {', '.join(about['columns'])}")
    columns = select_columns(Table(columns, 0), about).columns
    known = about["columns"]
    return {
        key: _convert_array(key, item, {"type": "array", **known[key]})
        for key, item in columns.items()
    }


# -- arrays ---------------------------------------------------------------------------------------


def _convert_array(name: str, value: Any, about: Mapping[str, Any]) -> Any:
    numpy = import_numpy()
    if not isinstance(value, numpy.ndarray):
        table = _read_table(value, about)
        if table is None and isinstance(value, list) and any(about.get("columns", {}).values()):
            table = make_table(list(about["columns"]), value)
        if table is not None:
            value = _join_columns(name, select_columns(table, about), about)
        value = _find_array(value)
    dtype = about.get("dtype")
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        array = fit_array(numpy.asarray(value), dtype, name)
    else:
        array = make_array(value, dtype, name)
        if about["type"] == "tensor" and dtype is None and array.dtype == numpy.float64:
            # As torch.tensor does with Python's numbers, which the weights of a model must match.
            array = fit_array(array, "float32", name)
    shape = about.get("shape")
    if shape is None and about.get("width") is not None:
        shape = [None, about["width"]]
    if shape is not None and not (
        len(shape) == array.ndim
        and all(want in (None, -1, got) for want, got in zip(shape, array.shape))  # noqa: B905
    ):
        wanted = ", ".join("any" if length in (None, -1) else str(length) for length in shape)
        raise InvalidInputError(f"{name} must have the shape [{wanted}], not {list(array.shape)}")
    if about["type"] == "tensor":
        if array.dtype.kind not in "biufc":
            raise InvalidInputError(f"{name} is not an array of numbers")
        return importlib.import_module("torch").from_numpy(numpy.ascontiguousarray(array))
    return array


def _join_columns(name: str, table: Table, about: Mapping[str, Any]) -> Any:
    """Return the array of a table's rows: typed columns must fit by themselves.

    Booleans are numbers in a column that the model says takes some.
    """
    numpy = import_numpy()
    dtype, columns = about.get("dtype"), []
    known = about.get("columns", {})
    for key, column in table.columns.items():
        details = known.get(key, {})
        takes_booleans = details.get("booleans", False)
        wanted = None if takes_booleans else details.get("dtype", dtype)
        make = make_array if isinstance(column, list) else fit_array
        array = make(column, wanted, key)
        if takes_booleans and array.dtype.kind == "b":
            array = array.astype("uint8")
        columns.append(fit_array(array, dtype, key))
    if dtype is None and len({array.dtype for array in columns}) > 1:
        common = numpy.result_type(*columns)
        columns = [fit_array(array, common, name) for array in columns]
    return numpy.stack(columns, axis=1) if columns else numpy.empty((table.length, 0), dtype)


def make_array(data: Any, dtype: Any, name: str) -> Any:
    """Return the array of numbers, texts or booleans in nested lists, of JSON or Python.

    JSON does not say which type a whole number has, so any will do that it fits; as a fraction it
    is rounded like one, but it must be exact as float64. null is NaN in an array of fractions.
    Raises :class:`InvalidInputError` for other values, and for mixtures.
    """
    numpy = import_numpy()
    shape, flat, kinds = _measure_lists(data, name)
    wanted = None if dtype is None else _read_dtype(dtype, name)
    if wanted is not None and wanted.kind not in "biufcUO":
        if wanted.kind not in "Mm" or not kinds <= {str}:  # times are texts in JSON
            raise InvalidInputError(f"{name} is not an array of {wanted}")
        try:
            return numpy.asarray(flat, wanted).reshape(shape)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(f"{name} is not an array of {wanted}: {error}") from error
    is_float = wanted is not None and wanted.kind in "fc"
    if not flat:
        array = numpy.empty(0, wanted)
    elif kinds <= _NUMBERS and (is_float or float in kinds or kinds > _WHOLE):
        array = _make_fractions(flat, kinds, wanted, name)
    elif kinds == _WHOLE:
        array = _make_integers(flat, wanted, name)
    elif kinds == {bool}:
        array = numpy.array(flat, bool)
    elif kinds == {str}:
        if any(text.endswith("\0") for text in flat):
            raise InvalidInputError(f"{name}: an array cannot hold a text that ends in NUL")
        array = numpy.array(flat, object if wanted is not None and wanted.kind == "O" else str)
    else:
        found = " and ".join(sorted(_TYPE_NAMES.get(kind, kind.__name__) for kind in kinds))
        raise InvalidInputError(f"{name} is not an array of one type: it has {found}")
    return fit_array(array.reshape(shape), wanted, name)


_TYPE_NAMES = {
    type(None): "null", str: "text", bool: "booleans", int: "whole numbers", float: "fractions",
    list: "lists", dict: "objects",
}  # fmt: skip


def _measure_lists(data: Any, name: str) -> tuple[list[int], Sequence[Any], set[type]]:
    """Return the shape of nested lists, their elements, and the types of these."""
    is_list = isinstance(data, (list, tuple))
    shape: list[int] = [len(data)] if is_list else []
    flat: Sequence[Any] = data if is_list else [data]
    kinds = _list_types(flat)
    while kinds and kinds <= _LISTS:
        lengths = set(map(len, flat))
        if len(lengths) > 1 or len(shape) == _MAX_RANK:
            raise InvalidInputError(f"{name} is not an array: its lists have different lengths")
        shape.append(lengths.pop())
        flat = list(itertools.chain.from_iterable(flat))
        kinds = _list_types(flat)
    if not kinds.isdisjoint(_LISTS):
        raise InvalidInputError(f"{name} is not an array: it has lists and other values")
    # Of a subclass, such as an enumeration or a scalar of NumPy, the base counts.
    if not kinds <= _PLAIN:
        kinds = {next((base for base in kind.__mro__ if base in _PLAIN), kind) for kind in kinds}
    return shape, flat, kinds


def _list_types(values: Sequence[Any]) -> set[type]:
    """Return the types of values; that there is only one is found out sooner."""
    if values and operator.countOf(map(type, values), type(values[0])) == len(values):
        return {type(values[0])}
    return set(map(type, values))


_PLAIN = {bool, int, float, str, bytes, type(None), dict}
_LISTS = {list, tuple}
_WHOLE = {int}
_NUMBERS = {int, float, type(None)}


def _make_integers(flat: Sequence[Any], wanted: Any, name: str) -> Any:
    if wanted is not None and wanted.kind in "iu":
        return _pack_numbers(flat, wanted, name)
    try:
        return _pack_numbers(flat, "int64", name)
    except InvalidInputError:
        return _pack_numbers(flat, "uint64", name)


def _make_fractions(flat: Sequence[Any], kinds: set[type], wanted: Any, name: str) -> Any:
    """Return numbers as ``wanted`` or float64, null as NaN; a whole number must be exact."""
    if type(None) in kinds:
        flat = [math.nan if value is None else value for value in flat]
    is_packed = wanted is not None and wanted.char in "efd"
    array = _pack_numbers(flat, wanted if is_packed else "float64", name)
    if (
        int in kinds
        and (import_numpy().abs(array, dtype="d") >= _EXACT).any()
        and any(type(value) is int and int(float(value)) != value for value in flat)
    ):
        raise InvalidInputError(f"{name}: a whole number does not fit in float64")
    return array


def _pack_numbers(flat: Sequence[Any], dtype: Any, name: str) -> Any:
    """Return the array of a type that ``struct`` has, too, by the same letter.

    ``struct`` rounds to nearest, as NumPy does, and raises if a number does not fit: a fraction
    only in the standard form (``=``), in which some whole numbers have another size.
    """
    numpy = import_numpy()
    code = numpy.dtype(dtype).char
    array = numpy.empty(len(flat), code)
    try:
        struct.pack_into(f"{'=' if code in 'efd' else ''}{len(flat)}{code}", array, 0, *flat)
    except (OverflowError, struct.error) as error:
        raise InvalidInputError(f"{name}: a number does not fit in {array.dtype}") from error
    return array


def _read_dtype(dtype: Any, name: str) -> Any:
    numpy = import_numpy()
    try:
        return numpy.dtype(dtype)
    except TypeError as error:
        raise InvalidInputError(f"{name}: {error}") from error


def fit_array(array: Any, dtype: Any, name: str) -> Any:
    """Return an array as ``dtype``; raise :class:`InvalidInputError` if a value would change.

    NumPy must call the types the same kind. Whole numbers must be exact, fractions are rounded to
    nearest, and none becomes infinite.
    """
    if dtype is None:
        if array.dtype.kind in "OV":
            raise InvalidInputError(f"{name} is not an array of numbers")
        return array
    if array.dtype == dtype:
        return array
    numpy = import_numpy()
    wanted = _read_dtype(dtype, name)
    if array.dtype == wanted or (wanted.kind in "UO" and array.dtype.kind in "UO"):
        return array if array.dtype == wanted else array.astype(wanted)
    # To NumPy, True is the number 1 and any number may be text; a client does not mean that.
    if array.dtype.kind == "b" or wanted.kind in "USO" or not _can_cast(array.dtype, wanted):
        found = "text" if array.dtype.kind in "US" else array.dtype
        raise InvalidInputError(f"{name} must be of type {wanted}, not {found}")
    with numpy.errstate(over="ignore", invalid="ignore"):
        fitted = array.astype(wanted)
        if array.dtype.kind in "iu":
            fits = _are_exact(array, fitted)
        elif array.dtype.kind in "fc":
            is_finite = numpy.isfinite(fitted)
            fits = is_finite.all() or bool((numpy.isfinite(array) == is_finite).all())
        else:
            fits = True
    if not fits:
        raise InvalidInputError(f"{name}: a number does not fit in {wanted}")
    return fitted


@functools.lru_cache(maxsize=256)
def _can_cast(found: Any, wanted: Any) -> bool:
    return bool(import_numpy().can_cast(found, wanted, "same_kind"))


def _are_exact(whole: Any, fitted: Any) -> bool:
    """Return whether the whole numbers are the same in another type."""
    if not whole.size:
        return True
    if fitted.dtype.kind in "iu":
        return bool((whole == fitted).all())
    finfo = import_numpy().finfo(fitted.dtype)
    largest = max(abs(int(whole.min())), abs(int(whole.max())))
    if largest <= 1 << (finfo.nmant + 1) and largest <= finfo.max:
        return True
    if not import_numpy().isfinite(fitted).all():
        return False
    pairs = zip(whole.reshape(-1).tolist(), fitted.reshape(-1).tolist())  # noqa: B905
    return all(value == number for value, number in pairs)


# -- frames ---------------------------------------------------------------------------------------


def _make_frame(name: str, value: Any, about: Mapping[str, Any]) -> Any:
    """Return the DataFrame of a table, of rows by position, or of columns by name."""
    pandas = importlib.import_module("pandas")
    if is_frame(value):
        value = read_frame(value)
    value = _find_array(value)
    if hasattr(value, "ndim"):
        if value.ndim != 2:
            raise InvalidInputError(f"{name} must have rows and columns")
        names = _name_positions(name, value.shape[1], about)
        value = make_column_table({key: value[:, place] for place, key in enumerate(names)})
    elif isinstance(value, dict):
        value = make_column_table(value)
    elif _are_records(value):
        value = make_record_table(value)
    elif isinstance(value, (list, tuple)):
        if not all(isinstance(row, (list, tuple)) for row in value):
            raise InvalidInputError(f"a row of {name} must be a list or an object")
        width = len(value[0]) if value else 0
        value = make_table(_name_positions(name, width, about), value)
    if not isinstance(value, Table):
        raise InvalidInputError(f"{name} must be a table, not {_name_type(value)}")
    table = select_columns(value, about)
    known = about.get("columns") or {}
    columns = {
        key: _make_series(pandas, key, column, known.get(key, {}).get("dtype"))
        for key, column in table.columns.items()
    }
    index = None if table.index is None else pandas.Index(table.index)
    frame = pandas.DataFrame(columns, index=range(table.length))
    if index is not None:
        frame.index = index
    return frame


def _name_positions(name: str, width: int, about: Mapping[str, Any]) -> list[Any]:
    """Return the names of columns that were sent without: the model's, if it has as many."""
    known = about.get("columns")
    if known is None:
        return list(range(width))
    if width != len(known) or about.get("ignores_others"):
        raise InvalidInputError(f"a row of {name} must be an object with {', '.join(known)}")
    return list(known)


def _make_series(pandas: Any, name: str, values: Any, dtype: Any) -> Any:
    """Return a column as ``dtype``, else as pandas finds it, but without changing a number."""
    if dtype in ("str", "string", "object", "bytes"):
        cells = _list_values(values)
        if dtype == "bytes":
            cells = [decode_base64(cell, name) if isinstance(cell, str) else cell for cell in cells]
        accepted = {"bytes": (bytes,), "object": (object,)}.get(dtype, (str,))
        for cell in cells:
            if cell is not None and not isinstance(cell, accepted):
                raise InvalidInputError(f"column {name!r} must be {dtype}, not {_name_type(cell)}")
        return pandas.Series(cells, dtype=object)
    if dtype is not None and str(dtype).startswith("datetime64"):
        try:
            return pandas.to_datetime(pandas.Series(_list_values(values), dtype=object))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"column {name!r} is not a time: {error}") from error
    if not isinstance(values, list):
        is_text = values.dtype.kind in "OU"
        return values if dtype is None and is_text else fit_array(values, dtype, name)
    kinds = set(map(type, values))
    if dtype is not None or (kinds <= {int, float, type(None)} and kinds & {int, float}):
        return make_array(values, dtype, name)
    return values if values else pandas.Series(values, dtype=object)


# -- encoding -------------------------------------------------------------------------------------


def encode_value(value: Any, *, plain: bool = False) -> Any:
    """Return a value as JSON.

    ``plain`` is for clients: arrays are nested lists, frames are lists of objects, bytes are
    ``{"b64": …}``, NaN and infinity, which JSON does not have (RFC 8259, section 6), are null. Else
    it is for :func:`decode_value`. Raises :class:`TypeError` for values of other types.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    # Of a subclass, such as an enumeration, the number counts.
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return None if plain else {"$float": str(float(value))}
    if isinstance(value, (bytes, bytearray)):
        return {"b64" if plain else "$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        encoded = {str(name): encode_value(item, plain=plain) for name, item in value.items()}
        is_taken = not plain and len(encoded) == 1 and next(iter(encoded)).startswith("$")
        return {"$object": encoded} if is_taken else encoded
    if isinstance(value, (list, tuple)):
        return [encode_value(item, plain=plain) for item in value]
    if is_frame(value):
        value = read_frame(value)
    if isinstance(value, Table):
        cells = {name: encode_value(cell, plain=plain) for name, cell in value.columns.items()}
        return Table(cells, value.length).list_records() if plain else {"$frame": cells}
    value = _find_array(value)
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):
        return _encode_array(value, plain)
    raise TypeError(
        f"predict returned a {type(value).__name__}; return numbers, strings, bytes, lists,"
        " dictionaries or arrays"
    )


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame of pandas."""
    return hasattr(value, "to_numpy") and hasattr(value, "columns")


def plain_value(value: Any) -> Any:
    """Return a value with the arrays of any framework as NumPy's, tuples as lists."""
    if isinstance(value, dict):
        return {str(name): plain_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    return value if is_frame(value) else _find_array(value)


def _find_array(value: Any) -> Any:
    """Return the NumPy array of a tensor or series, else the value."""
    if isinstance(value, (list, tuple)) or hasattr(value, "tobytes"):  # which NumPy's have
        return value
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # a tensor
        value = value.detach().cpu()
        return (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
    if not hasattr(value, "dtype") and hasattr(value, "__array__"):
        return value.__array__()
    if hasattr(value, "to_numpy"):  # a pandas series
        return value.to_numpy()
    if hasattr(value, "numpy"):  # a TensorFlow tensor
        return value.numpy()
    return value


def _encode_array(array: Any, plain: bool) -> Any:
    if array.dtype.kind in "Mm":  # ISO 8601, as JSON has no time
        array = array.astype(str)
    if array.dtype.kind in "OUS" or array.ndim == 0 or plain:
        is_json = array.dtype.kind in "biuU" or (
            array.dtype.kind == "f" and import_numpy().isfinite(array).all()
        )
        return array.tolist() if is_json else encode_value(array.tolist(), plain=plain)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"predict returned an array of {array.dtype}, which has no JSON form")
    little = array.astype(array.dtype.newbyteorder("<"))
    return {
        "$array": {
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "data": base64.b64encode(little.tobytes()).decode(),
        }
    }


def decode_value(value: Any) -> Any:
    """Return what :func:`encode_value` encoded; for what danlu recorded, not for requests."""
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$bytes"}:
        return base64.b64decode(value["$bytes"])
    if set(value) == {"$float"}:
        return float(value["$float"])
    if set(value) == {"$array"}:
        numpy = import_numpy()
        about = value["$array"]
        kind = numpy.dtype(about["dtype"]).newbyteorder("<")
        array = numpy.frombuffer(base64.b64decode(about["data"]), kind)
        return array.reshape(about["shape"]).astype(about["dtype"])
    if set(value) == {"$frame"}:
        return make_column_table(
            {name: decode_value(column) for name, column in value["$frame"].items()}
        )
    if set(value) == {"$object"}:
        value = value["$object"]
    return {name: decode_value(item) for name, item in value.items()}
