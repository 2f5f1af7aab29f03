"""One example of each kind, shown in the reference and applied by the tests."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, str]] = {
    "TrainingJob": """\
apiVersion: muster.dev/v1alpha1
kind: TrainingJob
metadata:
  name: llama-8b
  namespace: research
spec:
  queue: research
  workers:
    replicas: 4
    gpusPerWorker: 8
    gpuType: H100
    resources:
      requests: {cpu: 64, memory: 512Gi}
  image: ghcr.io/example/train:1.2
  command: [python, train.py, --lr, "3e-4"]
  parallelism:
    strategy: fsdp
  topology:
    mode: required
    level: block
  checkpoint:
    uri: s3://models/llama-8b
    interval: 15m
    secretRef: {name: s3-credentials}
  restart: {limit: 5}
  maxRuntime: 2d
""",
    "TrainingQueue": """\
apiVersion: muster.dev/v1alpha1
kind: TrainingQueue
metadata:
  name: research
spec:
  namespaces:
    matchLabels: {team: research}
  parent: company
  weight: 2
  quotas:
    - gpuType: H100
      capacity: on-demand
      resources:
        - {name: nvidia.com/gpu, nominal: 64, borrowingLimit: 32, lendingLimit: 64}
        - {name: cpu, nominal: 768}
        - {name: memory, nominal: 8Ti}
    - gpuType: ""
      resources:
        - {name: cpu, nominal: 512}
        - {name: memory, nominal: 2Ti}
  preemption:
    withinQueue: lowerPriority
    reclaim: any
    whenBorrowing: never
  maxPriority: 1000
  usageHalfLife: 7d
""",
    "Topology": """\
apiVersion: muster.dev/v1alpha1
kind: Topology
metadata:
  name: default
spec:
  levels:
    - {name: zone, label: topology.kubernetes.io/zone}
    - {name: block, label: muster.dev/block, bandwidth: 100G}
    - {name: rack, label: muster.dev/rack, bandwidth: 400G}
    - {name: host, label: kubernetes.io/hostname, bandwidth: 3600G}
""",
}
