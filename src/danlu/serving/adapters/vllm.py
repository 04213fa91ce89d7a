"""vLLM: OpenAI's protocol for the files of the model; the predictor is not called."""

from __future__ import annotations

import run  # type: ignore[import-not-found]
from packed import NAME, parse_options, run_module  # type: ignore[import-not-found]


def main(args: list[str]) -> None:
    """Run vLLM with the model's directory."""
    options = parse_options(args)
    run_module(
        *("-m", "vllm.entrypoints.openai.api_server", "--model", run.MODEL),
        *("--served-model-name", NAME, "--host", options.host, "--port", str(options.port)),
    )
