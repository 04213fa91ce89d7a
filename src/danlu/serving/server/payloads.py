"""Bodies of ``/invocations`` and of V1: the inputs in them, and answers in the types asked for.

Sources: MLflow's scoring protocol (``mlflow/pyfunc/scoring_server``), KServe's and TensorFlow
Serving's V1, the inference toolkit of SageMaker's containers (``decoder.py``, ``encoder.py``).
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .tensors import read_json

try:
    from .. import predictor_values as values
except ImportError:  # in the image
    import predictor_values as values  # type: ignore[import-not-found,no-redef]

JSON, CSV, NPY = "application/json", "text/csv", "application/x-npy"
_FORMS = ("instances", "inputs", "dataframe_split", "dataframe_records")
_NUMBER = re.compile(r"\s*[-+]?(\d+|(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?)\s*", re.ASCII)
_WHOLE = re.compile(r"\s*[-+]?\d+\s*", re.ASCII)
#: As pandas reads them.
_BOOLEANS = {
    "True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False,
}  # fmt: skip
_MAX_FIELD = 1 << 30
#: Of content types, and of CSV.
_PARAMETERS = ({"charset"}, {"charset", "header"})


class UnsupportedType(Exception):
    """A content type, charset or coding that the server does not have."""


class NotAcceptable(Exception):
    """The answer has no form in the types that the client accepts."""


class Invocation(NamedTuple):
    """The inputs of a body: one, or with ``is_many`` one for each instance.

    ``is_form`` says that the answer is an object with ``predictions``.
    """

    inputs: list[Any]
    is_many: bool = False
    is_form: bool = True


@functools.lru_cache(maxsize=256)
def parse_header(value: str) -> tuple[str, Mapping[str, str]]:
    """Return a content type in lower case, and its parameters."""
    kind, *rest = value.split(";")
    parameters = (part.partition("=") for part in rest if part.strip())
    return kind.strip().lower(), {
        name.strip().lower(): text.strip().strip('"').lower() for name, _, text in parameters
    }


def decompress_body(body: bytes, coding: str, limit: int) -> bytes:
    """Return a body without its coding, at most one byte more than ``limit``."""
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise UnsupportedType(f"the content encoding {coding!r} is not supported")
    decompressor = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)  # of gzip or zlib
    try:
        data = decompressor.decompress(body, limit + 1)
    except zlib.error as error:
        raise values.InvalidInputError(f"the body is not {coding}: {error}") from error
    if len(data) <= limit and (not decompressor.eof or decompressor.unused_data):
        raise values.InvalidInputError(f"the body is not {coding}: it is cut off, or has more")
    return data


def compress_body(body: bytes) -> bytes:
    """Return a body in gzip, fast rather than small."""
    return gzip.compress(body, 1, mtime=0)


def read_invocation(content_type: str, body: bytes, inputs: Mapping[str, Any]) -> Invocation:
    """Return what a body of ``/invocations`` has for a predictor with ``inputs``."""
    kind, parameters = parse_header(content_type)
    if parameters.get("charset", "utf-8") not in ("utf-8", "utf8"):
        raise UnsupportedType("the charset must be UTF-8")
    if not parameters.keys() <= _PARAMETERS[kind == CSV]:
        raise UnsupportedType(f"the content type {content_type!r} has an unknown parameter")
    if kind == CSV:
        return _read_csv(body, parameters.get("header", ""), inputs)
    if kind == NPY:
        try:
            array = np.load(io.BytesIO(body), allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise values.InvalidInputError(f"invalid data of NumPy: {error}") from error
        return Invocation([array], is_form=False)
    if kind not in ("", JSON):
        raise UnsupportedType(f"content type {kind!r} is not {JSON}, {CSV} or {NPY}")
    value = read_json(body)
    forms = [name for name in _FORMS if name in value] if isinstance(value, dict) else []
    if not forms or value.keys() <= inputs.keys():
        return Invocation([value], is_form=False)
    return _read_form(value, forms, inputs)


def _read_form(value: dict[str, Any], forms: list[str], inputs: Mapping[str, Any]) -> Invocation:
    """Return the inputs of one of MLflow's forms."""
    if len(forms) > 1:
        raise values.InvalidInputError(f"only one of {' and '.join(forms)} can be given")
    (form,) = forms
    for key in value:
        if key not in (form, "params"):
            raise values.InvalidInputError(f"unknown key {key!r} next to {form!r}")
    params = value.get("params") or {}
    if params and "params" not in inputs:
        raise values.InvalidInputError("the model takes no params")
    content = value[form]
    if form == "inputs":
        found = _read_inputs(content, inputs)
    elif form == "dataframe_split":
        found = _read_split(content, inputs)
    elif not isinstance(content, list):
        raise values.InvalidInputError(f"{form} must be a list")
    elif form == "dataframe_records":
        found = bind_table(values.make_record_table(content), inputs)
    else:
        found = read_instances(content, inputs)
    if not params:
        return found
    return found._replace(inputs=[_add_params(item, params, inputs) for item in found.inputs])


def _add_params(value: Any, params: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    is_named = isinstance(value, dict) and set(value) <= set(inputs)
    return {**(value if is_named else {next(iter(inputs)): value}), "params": params}


def _read_inputs(content: Any, inputs: Mapping[str, Any]) -> Invocation:
    table = values.find_table(inputs)
    about = inputs[table] if table and not _are_arguments(content, inputs) else {}
    if isinstance(content, dict) and (about.get("type") == "frame" or "columns" in about):
        # Arrays by name need not have as many rows.
        is_table = about["type"] != "object"
        return Invocation([{table: values.make_column_table(content) if is_table else content}])
    if isinstance(content, list) and _has_single(values.list_needed(inputs), inputs):
        return read_instances(content, inputs)
    return Invocation([content])


def _read_split(content: Any, inputs: Mapping[str, Any]) -> Invocation:
    """Return the inputs of pandas' ``split`` form."""
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        raise values.InvalidInputError('dataframe_split must be {"columns": [...], "data": [...]}')
    for key in content:
        if key not in ("columns", "data", "index"):
            raise values.InvalidInputError(f"unknown key {key!r} in 'dataframe_split'")
    if content.get("columns") is None:
        return read_instances(content["data"], inputs)
    if not isinstance(content["columns"], list):
        raise values.InvalidInputError("columns must be a list")
    table = values.make_table(content["columns"], content["data"], content.get("index"))
    return bind_table(table, inputs)


def _has_single(names: Any, inputs: Mapping[str, Any]) -> bool:
    """Return whether any of the parameters is one value, and not one for each row."""
    for name in names:
        if inputs[name]["type"] in values.SINGLE and "columns" not in inputs[name]:
            return True
    return False


def _are_arguments(value: Any, inputs: Mapping[str, Any]) -> bool:
    return bool(value) and values.are_arguments(value, inputs)


def bind_table(table: values.Table, inputs: Mapping[str, Any]) -> Invocation:
    """Return the input that is a table: columns are parameters by name, else of the table's."""
    if _are_arguments(table.columns, inputs):
        return read_instances(table.list_records(), inputs)
    name = values.find_table(inputs) or next(
        (key for key, about in inputs.items() if about["type"] == "any"), None
    )
    if name is None or values.list_needed(inputs) not in ([name], []):
        raise values.InvalidInputError(f"a row must be an object with {', '.join(inputs)}")
    return Invocation([{name: table}])


def read_instances(rows: Sequence[Any], inputs: Mapping[str, Any]) -> Invocation:
    """Return the inputs for instances of V1: values of the only parameter, or objects of all.

    Parameters that take rows get those of all instances. If any takes one value (an image, a text),
    every instance is a separate input.
    """
    if rows and isinstance(rows[0], dict) and all(_are_arguments(row, inputs) for row in rows):
        if _has_single(rows[0], inputs):
            return Invocation(list(rows), is_many=True)
        if any(set(row) != set(rows[0]) for row in rows):
            raise values.InvalidInputError("all instances must have the same keys")
        return Invocation([{name: [row[name] for row in rows] for name in rows[0]}])
    names = list(inputs) if len(inputs) == 1 else values.list_needed(inputs)
    if len(names) != 1:
        raise values.InvalidInputError(f"an instance must be an object with {', '.join(inputs)}")
    if _has_single(names, inputs):
        named = [row if _are_arguments(row, inputs) else {names[0]: row} for row in rows]
        return Invocation(named, is_many=True)
    return Invocation([{names[0]: list(rows)}])


# -- CSV ------------------------------------------------------------------------------------------


def _read_csv(body: bytes, header: str, inputs: Mapping[str, Any]) -> Invocation:
    """Return the input of CSV (RFC 4180): with a header for MLflow, without for SageMaker.

    ``header=present`` or ``absent`` says it. Otherwise a first line with a number is not a header;
    one with the model's names is, and so is any other if a DataFrame needs names.
    """
    csv.field_size_limit(_MAX_FIELD)
    try:
        rows = [
            row for row in csv.reader(io.StringIO(body.decode(), newline=""), strict=True) if row
        ]
    except (ValueError, csv.Error) as error:
        raise values.InvalidInputError(f"invalid CSV: {error}") from error
    if header not in ("", "present", "absent"):
        raise UnsupportedType("header must be present or absent")
    table = inputs.get(values.find_table(inputs) or "", {})
    if rows and not header:
        known = table.get("columns", inputs)
        if any(map(_NUMBER.fullmatch, rows[0])):
            header = "absent"
        elif table.get("type") == "frame" or not set(rows[0]).isdisjoint(known):
            header = "present"
        else:
            raise values.InvalidInputError(
                "is the first line a header? content-type: text/csv; header=present, or absent"
            )
    names = rows.pop(0) if rows and header == "present" else None
    kinds = table.get("columns", {})
    width = len(rows[0]) if rows else 0
    made = values.make_table(names or range(width), rows)
    columns = {
        name: _read_fields(column, kinds.get(name, {}).get("dtype"))
        for name, column in made.columns.items()
    }
    parsed = values.Table(columns, made.length)
    if names is not None:
        return bind_table(parsed, inputs)
    return read_instances(parsed.list_rows(), inputs)


def _read_fields(fields: list[str], dtype: Any) -> list[Any]:
    """Return a column's fields: numbers or booleans if all are (empty is null), else texts."""
    if dtype in ("str", "string", "object", "bytes") or str(dtype).startswith("datetime64"):
        return list(fields)
    present = [field for field in fields if field.strip()]
    if all(map(_WHOLE.fullmatch, present)):
        return [_read_number(field, int) for field in fields]
    if all(map(_NUMBER.fullmatch, present)):
        return [_read_number(field, float) for field in fields]
    if set(present) <= _BOOLEANS.keys():
        return [_BOOLEANS[field] if field.strip() else None for field in fields]
    return list(fields)


def _read_number(field: str, kind: type[int] | type[float]) -> Any:
    if not field.strip():
        return None
    try:
        number = kind(field)
    except ValueError as error:  # thousands of digits
        raise values.InvalidInputError(f"invalid CSV: {error}") from error
    if number in (math.inf, -math.inf):
        raise values.InvalidInputError(f"invalid CSV: {field} is out of range")
    return number


# -- answers --------------------------------------------------------------------------------------


def choose_type(accept: str) -> str:
    """Return the type of an answer for the header ``Accept`` (RFC 9110, section 12.5.1)."""
    if not accept.strip():
        return JSON
    wanted: list[tuple[float, str]] = []
    for part in accept.split(","):
        kind, parameters = parse_header(part)
        try:
            wanted.append((float(parameters.get("q", "1")), kind))
        except ValueError:
            continue
    for quality, kind in sorted(wanted, key=lambda item: -item[0]):
        if quality > 0 and kind in (JSON, CSV, NPY):
            return kind
        if quality > 0 and kind in ("*/*", "application/*", "text/*"):
            return CSV if kind == "text/*" else JSON
    if wanted:
        raise NotAcceptable(f"an answer is {JSON}, {CSV} or {NPY}")
    return JSON


def encode_table(result: Any, kind: str) -> bytes:
    """Return a result as CSV without a header, or as an array of NumPy.

    Of an object with ``predictions``, these count. Raises :class:`NotAcceptable`.
    """
    if isinstance(result, dict) and "predictions" in result:
        result = result["predictions"]
    if values.is_frame(result):
        rows = [list(row.values()) for row in values.encode_value(result, plain=True)]
        result = rows if kind == CSV else result.to_numpy()
    if kind == NPY:
        try:
            array = (
                result if isinstance(result, np.ndarray) else values.make_array(result, None, "")
            )
        except values.InvalidInputError as error:
            raise NotAcceptable(f"the result is not an array: {error}") from error
        if array.dtype == object:
            raise NotAcceptable("the result is not an array of numbers or texts")
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        return buffer.getvalue()
    plain = values.encode_value(result, plain=True)
    rows = (
        [row if isinstance(row, list) else [row] for row in plain]
        if isinstance(plain, list)
        else [[plain]]
    )
    if any(isinstance(cell, (list, dict)) for row in rows for cell in row):
        raise NotAcceptable("the result is not a table")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
