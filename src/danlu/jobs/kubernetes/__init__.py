"""Jobs on a Kubernetes cluster (:class:`danlu.jobs.types.JobBackend`), run there by an operator.

Any operator for Kubeflow's kinds works. danlu's own also collects progress and results, and stops
jobs whose submitter has exited (:mod:`danlu.training.names`).
"""
