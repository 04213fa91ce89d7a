"""TrainJobs of Kubeflow Trainer 2 and their runtimes: read them as a :class:`~danlu.training.Job`.

A TrainJob names no framework; its runtime does, and has the templates. The rules are those of
Kubeflow Trainer 2.3 (``pkg/runtime``, ``pkg/webhooks``). What a single machine cannot do, or danlu
does not, is refused by name.
"""
