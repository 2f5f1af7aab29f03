"""The planner: `plan(snapshot) -> Plan`.

Pure functions over arrays. No I/O, no clock, no logging, no Kubernetes: the same snapshot always gives the same plan,
in the operator, in the simulator and in tests.
"""
