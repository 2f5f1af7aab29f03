"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)


def _words(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _revision() -> sa.Column[int]:
    return sa.Column("revision", sa.BigInteger, nullable=False)


def upgrade() -> None:
    op.create_table(
        "jobs",
        *map(_words, ("uid", "namespace", "name", "queue", "user_name", "project")),
        sa.Column("labels", sa.JSON, nullable=False),
        *map(_words, ("image", "gpu_type")),
        *map(_count, ("gpus", "workers")),
        *map(_words, ("phase", "cause", "message")),
        sa.Column("submitted_at", MOMENT, nullable=False),
        *(sa.Column(name, MOMENT) for name in ("started_at", "finished_at", "deleted_at")),
        sa.Column("estimated", sa.Boolean, nullable=False),
        *map(_count, ("restarts", "preemptions", "lost_gpu_seconds", "gpu_seconds")),
        sa.Column("goodput", sa.JSON, nullable=False),
        sa.Column("step", sa.BigInteger),
        _revision(),
        sa.PrimaryKeyConstraint("uid", name="pk_jobs"),
    )
    op.create_index("ix_jobs_submitted_at", "jobs", ["submitted_at", "uid"])
    op.create_index("ix_jobs_namespace", "jobs", ["namespace", "submitted_at"])
    op.create_index("ix_jobs_queue", "jobs", ["queue", "submitted_at"])
    op.create_table(
        "attempts",
        _words("job"),
        _count("attempt"),
        _words("queue"),
        *map(_count, ("workers", "gpus")),
        _words("domain"),
        sa.Column("placed_at", MOMENT, nullable=False),
        *(sa.Column(name, MOMENT) for name in ("running_at", "ended_at")),
        sa.Column("estimated", sa.Boolean, nullable=False),
        *map(_words, ("reason", "cause", "message")),
        *map(_count, ("restarts", "replacements")),
        sa.Column("goodput", sa.JSON, nullable=False),
        _revision(),
        sa.PrimaryKeyConstraint("job", "attempt", name="pk_attempts"),
    )
    op.create_table(
        "intervals",
        _words("job"),
        _count("attempt"),
        sa.Column("worker", sa.Integer, nullable=False),
        sa.Column("replacement", sa.Integer, nullable=False),
        *map(_words, ("node", "gpu_type", "capacity")),
        _count("gpus"),
        sa.Column("begins", MOMENT, nullable=False),
        sa.Column("ends", MOMENT),
        sa.Column("estimated", sa.Boolean, nullable=False),
        _revision(),
        sa.PrimaryKeyConstraint("job", "attempt", "worker", "replacement", name="pk_intervals"),
    )
    op.create_index("ix_intervals_begins", "intervals", ["begins"])
    op.create_index("ix_intervals_ends", "intervals", ["ends"])
    op.create_table(
        "pools",
        *map(_words, ("gpu_type", "capacity")),
        sa.Column("begins", MOMENT, nullable=False),
        _count("gpus"),
        sa.Column("ends", MOMENT),
        sa.Column("estimated", sa.Boolean, nullable=False),
        _revision(),
        sa.PrimaryKeyConstraint("gpu_type", "capacity", "begins", name="pk_pools"),
    )
    op.create_index("ix_pools_ends", "pools", ["ends"])
    op.create_table(
        "preemptions",
        _words("job"),
        _count("attempt"),
        sa.Column("at", MOMENT, nullable=False),
        *map(_words, ("beneficiary", "reason")),
        _count("lost_gpu_seconds"),
        _words("message"),
        _revision(),
        sa.PrimaryKeyConstraint("job", "attempt", name="pk_preemptions"),
    )
    op.create_index("ix_preemptions_at", "preemptions", ["at"])
    op.create_table(
        "checkpoints",
        _words("job"),
        *map(_count, ("step", "attempt")),
        _words("uri"),
        sa.Column("committed_at", MOMENT, nullable=False),
        _count("bytes"),
        sa.Column("save_seconds", sa.Float, nullable=False),
        _revision(),
        sa.PrimaryKeyConstraint("job", "step", name="pk_checkpoints"),
    )
    op.create_table(
        "failures",
        _words("job"),
        sa.Column("at", MOMENT, nullable=False),
        _words("cause"),
        sa.Column("worker", sa.Integer),
        _words("node"),
        sa.Column("step", sa.BigInteger),
        sa.Column("in_place", sa.Boolean, nullable=False),
        _words("message"),
        _revision(),
        sa.PrimaryKeyConstraint("job", "at", "cause", name="pk_failures"),
    )
    op.create_table(
        "writers",
        *map(_words, ("name", "identity")),
        _count("term"),
        sa.Column("seen_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_writers"),
    )


def downgrade() -> None:
    for table in ("writers", "failures", "checkpoints", "preemptions", "pools", "intervals", "attempts", "jobs"):
        op.drop_table(table)
