"""The service SageMaker: it runs training jobs, and no environments."""

from __future__ import annotations

from danlu.engine.engine import Engine, EngineFeatures


class SageMakerEngine(Engine):
    """Training jobs of an account."""

    name = "sagemaker"
    job_service = "danlu.jobs.sagemaker.service"
    features = EngineFeatures(
        networks=(),
        mounts_files=False,
        gpus="engine",
        keeps_files=False,
        runs_jobs=True,
        is_account=True,
    )


ENGINE = SageMakerEngine()
