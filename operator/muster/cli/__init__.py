"""The `muster` command, also installed as `kubectl-muster`."""
