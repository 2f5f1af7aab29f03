"""The local cluster: a real Kubernetes on one machine. docs/local-cluster.md tells what it is and how to use it."""
