"""Tools for people who work on Muster: the local cluster and others."""
