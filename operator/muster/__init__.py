"""The control plane of Muster."""

__version__ = "0.1.0"
