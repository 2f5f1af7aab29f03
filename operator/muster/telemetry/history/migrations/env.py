"""Run by Alembic for each command, on the connection that the caller brings in `attributes`."""

from __future__ import annotations

from alembic import context

from muster.telemetry.history.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
