"""The session: what a training script uses. See docs/session.md."""
