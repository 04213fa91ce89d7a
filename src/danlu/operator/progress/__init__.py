"""Progress reports and results that replicas send while they run.

A job asks for them with an annotation (:data:`danlu.training.names.REPORTS_ANNOTATION`). Its
replicas get the URL of the operator's HTTPS server, a certificate and a token, and what they send
is stored in a ConfigMap of the job.
"""
