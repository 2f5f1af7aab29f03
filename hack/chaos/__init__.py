"""`make chaos`: faults on the real local cluster, each while a gang trains, and what they cost it.

A row of `rows.ROWS` is a fault; a seed chooses its moment and its victim. `run` plays one of them, `measure` reads off
the journal of steps what it cost, `results` keeps the outcome, and `table` makes docs/reliability.md of them.
"""
