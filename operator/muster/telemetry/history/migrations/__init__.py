"""Alembic's: how a database gets the tables of `schema.py`, one step a version."""
