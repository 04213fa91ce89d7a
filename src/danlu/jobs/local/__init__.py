"""Jobs on this machine: a supervisor process a job, replicas as processes or as containers."""
