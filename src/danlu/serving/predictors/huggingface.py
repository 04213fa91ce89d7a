"""A Hugging Face Transformers pipeline, saved by ``save_pretrained``.

The task is that of the pipeline, which its model card or ``config.json`` names, or the option
``task``. Code of the model repository is not executed (``trust_remote_code`` is off).
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

#: The end of an architecture's name (config.json) by task.
_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForConditionalGeneration": "text2text-generation",
    "ForImageClassification": "image-classification",
}


class HuggingFacePredictor:
    """What the pipeline returns for an input."""

    def load(self, directory: str) -> None:
        """Load the model and its tokenizer or processor."""
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        transformers = importlib.import_module("transformers")

        task = _find_task(directory)
        self.pipeline: Any = transformers.pipeline(task, model=directory, device=-1)

    def predict(self, inputs: str) -> Any:
        """Return the pipeline's answer for a text."""
        return self.pipeline(inputs)


def _find_task(directory: str) -> str:
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        names = json.load(file).get("architectures") or [""]
    for end, task in _TASKS.items():
        if names[0].endswith(end):
            return task
    raise ValueError(f"no task is known for {names[0] or 'a model without architecture'}")
