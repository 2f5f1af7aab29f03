"""What became of jobs, kept in a database when their objects are gone: SQLite, or PostgreSQL."""
