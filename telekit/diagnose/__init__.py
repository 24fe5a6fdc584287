"""Cluster-level diagnosis: traces read, bottlenecks and slow ranks found, with evidence."""
