# mypy: ignore-errors
"""Print the TrainJobs of Trainer's example notebooks, as the SDK writes them for a cluster.

The calls are those of ``examples/`` in kubeflow/trainer 8c0f5059bd51 with another function. The
runtimes that danlu lacks are in the files that are passed.
"""

import json
import sys

from kubeflow.trainer import (
    BuiltinTrainer,
    CustomTrainer,
    DataCacheInitializer,
    DataFormat,
    HuggingFaceDatasetInitializer,
    HuggingFaceModelInitializer,
    Initializer,
    TorchTuneConfig,
    TorchTuneInstructDataset,
)
from kubeflow.trainer.backends.kubernetes.backend import KubernetesBackend
from kubeflow.trainer.options import RuntimePatch
from kubeflow.trainer.options.kubernetes import (
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    PodSpecPatch,
    PodTemplatePatch,
    ReplicatedJobPatch,
    TrainingRuntimeSpecPatch,
)

from danlu.kubeflow import LocalBackend


def fit(**arguments):
    print(arguments)


def function(nodes=None, resources=None, packages=None, **more):
    return CustomTrainer(
        func=fit,
        num_nodes=nodes,
        resources_per_node=resources,
        packages_to_install=packages,
        **more,
    )


def torchtune(resources):
    dataset = TorchTuneInstructDataset(source=DataFormat.PARQUET, split="train[:1000]")
    config = TorchTuneConfig(dataset_preprocess_config=dataset, resources_per_node=resources)
    return BuiltinTrainer(config=config)


def alpaca(model, **more):
    return Initializer(
        dataset=HuggingFaceDatasetInitializer(storage_uri="hf://tatsu-lab/alpaca/data"),
        model=HuggingFaceModelInitializer(storage_uri=model, **more),
    )


def patch_pods(**pod):
    template = JobTemplatePatch(
        spec=JobSpecPatch(template=PodTemplatePatch(spec=PodSpecPatch(**pod)))
    )
    jobs = [ReplicatedJobPatch(name="node", template=template)]
    spec = JobSetTemplatePatch(spec=JobSetSpecPatch(replicated_jobs=jobs))
    return RuntimePatch(training_runtime_spec=TrainingRuntimeSpecPatch(template=spec))


audio = ["torch", "torchaudio", "soundfile", "kagglehub", "numpy"]
speech = ["torch", "torchaudio", "librosa", "soundfile", "tensorboard"]
tpus = {
    "node_selector": {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x2",
    },
    "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
}
EXAMPLES = {
    "deepspeed/text-summarization/T5-Fine-Tuning.ipynb": {
        "runtime": "deepspeed-distributed",
        "trainer": function(
            2,
            {"gpu": 4},
            ["boto3"],
            func_args={"num_samples": "2000", "model_name": "t5-base", "bucket": "mine"},
        ),
    },
    "jax/image-classification/mnist.ipynb": {
        "runtime": "jax-distributed",
        "trainer": function(3, {"cpu": 3}),
    },
    "jax/tpu_smoke_test.ipynb": {
        "runtime": "jax-distributed",
        "trainer": function(
            1,
            {"google.com/tpu": 4},
            image="us-docker.pkg.dev/cloud-tpu-images/jax-ai-image/tpu:latest",
            env={"JAX_PLATFORMS": "tpu,cpu", "ENABLE_PJRT_COMPATIBILITY": "true"},
        ),
        "options": [patch_pods(**tpus)],
    },
    "local/local-container-mnist.ipynb": {
        "runtime": "torch-distributed",
        "trainer": function(2, packages=["torchvision"]),
    },
    "local/local-training-mnist.ipynb": {
        "runtime": "torch-distributed",
        "trainer": function(packages=["pip-system-certs", "torch", "torchvision"]),
    },
    "megatron/tensor-parallelism/megatron-core-gpt-tp.ipynb": {
        "runtime": "torch-distributed",
        "trainer": function(
            2, {"memory": "16Gi", "gpu": 1}, ["megatron-core", "pybind11"], env={"TP_SIZE": "2"}
        ),
    },
    "mlx/image-classification/mnist.ipynb": {
        "runtime": "mlx-distributed",
        "trainer": function(3, {"gpu": 1}, ["boto3"], func_args={"bucket": None}),
    },
    "mlx/language-modeling/fine-tune-llama.ipynb": {
        "runtime": "mlx-distributed",
        "trainer": function(4, {"gpu": 1}, func_args={"hf_token": "secret", "batch_size": "8"}),
    },
    "pytorch/audio-classification/audio-classification.ipynb, locally": {
        "runtime": "torch-distributed",
        "trainer": function(packages=audio),
    },
    "pytorch/audio-classification/audio-classification.ipynb": {
        "runtime": "torch-distributed",
        "trainer": function(1, {"cpu": "1", "memory": "2Gi"}, audio),
    },
    "pytorch/data-cache/fine-tune-with-cache.ipynb": {
        "runtime": "torch-distributed-with-cache",
        "trainer": function(
            8,
            {"cpu": 3, "memory": "8Gi", "nvidia.com/gpu": 1},
            ["pyarrow==19.0.0", "transformers==4.45.2"],
        ),
        "initializer": Initializer(
            dataset=DataCacheInitializer(
                num_data_nodes=4,
                metadata_loc="s3://metadata",
                storage_uri="cache://schema/table",
                iam_role="role",
            )
        ),
    },
    "pytorch/image-classification/mnist.ipynb, locally": {
        "runtime": "torch-distributed",
        "trainer": function(packages=["torch", "torchvision"]),
    },
    "pytorch/image-classification/mnist.ipynb": {
        "runtime": "torch-distributed",
        "trainer": function(3, {"cpu": 3, "memory": "16Gi"}, func_args={"lr": 0.01}),
    },
    "pytorch/question-answering/fine-tune-distilbert.ipynb": {
        "trainer": function(
            1,
            {"cpu": "2", "memory": "12Gi"},
            ["datasets", "transformers[torch]", "cloudpathlib[all]"],
            func_args={"model_name": "distilbert-base-uncased", "bucket": None},
        ),
    },
    "pytorch/speech-recognition/speech-recognition.ipynb, locally": {
        "runtime": "torch-distributed",
        "trainer": function(packages=speech),
    },
    "pytorch/speech-recognition/speech-recognition.ipynb": {
        "runtime": "torch-distributed",
        "trainer": function(1, {"cpu": "2", "memory": "4Gi"}, speech),
    },
    "torchtune/llama3_2/alpaca-trainjob-yaml.ipynb": {
        "runtime": "torchtune-llama3.2-1b",
        "trainer": torchtune({"memory": "200G", "gpu": 1}),
        "initializer": alpaca("hf://meta-llama/Llama-3.2-1B-Instruct", access_token="secret"),
    },
    "torchtune/qwen2_5/qwen2.5-1.5B-with-alpaca.ipynb": {
        "runtime": "torchtune-qwen2.5-1.5b",
        "trainer": torchtune({"memory": "128G", "gpu": 2}),
        "initializer": alpaca("hf://Qwen/Qwen2.5-1.5B-Instruct"),
    },
    "xgboost/distributed-training/xgboost-distributed.ipynb": {
        "runtime": "xgboost-distributed",
        "trainer": function(3, {"cpu": 3}),
    },
}


class Recorder:
    """The SDK's view of a cluster with danlu's runtimes; it keeps what is created."""

    def __init__(self, api):
        self.api = api
        self.created = []

    def __getattr__(self, name):
        return getattr(self.api, name)

    def create_namespaced_custom_object(self, group, version, namespace, plural, body):
        self.created.append(body)


backend = LocalBackend(runtimes=sys.argv[1:])
recorder = backend.custom_api = Recorder(backend.custom_api)
for call in EXAMPLES.values():
    KubernetesBackend.train(backend, **call)
print(json.dumps(dict(zip(EXAMPLES, recorder.created, strict=True))))
