"""Experiment tracking, in a process of its own beside index 0's launcher: nothing in it can hold up a step.

`tracker` says what a tracker is, for others to write theirs. MLflow is spoken to by its REST API, W&B by its own client
from the training image.
"""
