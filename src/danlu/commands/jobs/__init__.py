"""Use cases of ``danlu jobs``: targets, views, reports, results and pruning."""
