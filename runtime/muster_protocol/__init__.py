"""What the operator and the runtime must agree on.

Environment names, the launcher's HTTP API, exit facts and the checkpoint's objects. Standard library only, so that both
sides, and small tools that need nothing but S3, can import it.
"""

__version__ = "0.1.0"
