"""Replays a trace of jobs through the planner at full speed, beside FIFO and EASY backfill.

The planner is the operator's own, `muster.scheduling.planner.plan`: what is simulated is what would be decided.
"""
