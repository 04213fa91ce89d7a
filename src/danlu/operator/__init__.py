"""Training jobs on Kubernetes: what ``danlu.training`` decides, carried out on a cluster."""
