"""HTTP of the operator: probes and metrics for the cluster, and the read-only API for people and their tools."""
