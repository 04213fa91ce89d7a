"""What replicas tell of themselves while they run: how far they are, and what came of them.

A job asks for it by an annotation (:data:`danlu.training.cluster.REPORTS`). Its replicas then find
an address, a certificate and a token, and what they post there is kept in a ConfigMap of the job.
"""
