"""What is written from the declarations of the metrics: `python -m hack.monitoring` (`--check` only compares)."""
