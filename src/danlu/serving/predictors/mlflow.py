"""An MLflow model, loaded as ``python_function``.

Most flavours pickle the model: loading one executes code that its author chose.
"""

from __future__ import annotations

import importlib
import os
from typing import Annotated, Any

#: The types of columns (``mlflow.types.DataType``); others, such as lists, are taken as they are.
_TYPES = {
    "boolean": "bool", "integer": "int32", "long": "int64", "float": "float32",
    "double": "float64", "string": "str", "binary": "bytes", "datetime": "datetime64[ns]",
}  # fmt: skip


class InvalidModelInput(ValueError):
    """What MLflow or the model refuses is the client's fault, as for MLflow's scoring server."""

    status_code = 400


class MlflowPredictor:
    """``predict`` of the model, whose input is what its signature says.

    That is a DataFrame, without a signature too, an array, or arrays by name.
    """

    #: As MLflow's schema enforcement does, for columns that the signature does not have.
    ignores_other_columns = True

    def load(self, directory: str) -> None:
        """Load the model."""
        os.environ.setdefault("MLFLOW_TRACKING_URI", "file:///tmp/mlruns")
        mlflow_pyfunc = importlib.import_module("mlflow.pyfunc")

        self.model: Any = mlflow_pyfunc.load_model(directory)
        self.columns: Any = None
        schema = self.model.metadata.get_input_schema()
        annotation: Any = importlib.import_module("pandas").DataFrame
        if schema is not None and schema.is_tensor_spec():
            tensors = {item.name: item for item in schema.inputs}
            if schema.has_input_names():
                annotation = dict
                self.columns = {
                    name: {"dtype": tensor.type.name, "shape": list(tensor.shape)}
                    for name, tensor in tensors.items()
                }
            else:
                array = importlib.import_module("numpy").ndarray
                (tensor,) = schema.inputs
                annotation = Annotated[array, tensor.type.name, tuple(tensor.shape)]
        elif schema is not None and schema.has_input_names():
            self.columns = {
                column.name: {
                    "dtype": _TYPES.get(getattr(column.type, "name", ""), "object"),
                    "optional": not column.required,
                }
                for column in schema.inputs
            }
        elif schema is not None:
            self.columns = len(schema.inputs)

        def predict(model_input: Any) -> Any:
            return self._call_model(model_input)

        def predict_with_params(model_input: Any, params: Any = None) -> Any:
            return self._call_model(model_input, params=params)

        chosen = predict if self.model.metadata.get_params_schema() is None else predict_with_params
        chosen.__annotations__ = {"model_input": annotation, "params": dict}
        self.predict = chosen  # type: ignore[method-assign]

    def predict(self, model_input: Any) -> Any:
        """Return the predictions; :meth:`load` replaces it by one with the signature's types."""
        raise NotImplementedError

    def _call_model(self, model_input: Any, **options: Any) -> Any:
        try:
            return self.model.predict(model_input, **options)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise InvalidModelInput(str(error)) from error
        except importlib.import_module("mlflow.exceptions").MlflowException as error:
            if error.get_http_status_code() == InvalidModelInput.status_code:
                raise InvalidModelInput(error.message) from error
            raise

    def example(self) -> Any:
        """Return the example that was logged with the model."""
        example = getattr(self.model, "input_example", None)
        return None if example is None else {"model_input": example}
