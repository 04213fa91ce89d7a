"""Jobs on a Kubernetes cluster (:class:`danlu.jobs.types.Jobs`), run there by an operator.

Any operator of Kubeflow's kinds runs them; danlu's own also hears of progress, takes values, and
ends jobs with their submitter (:mod:`danlu.training.cluster`).
"""
