"""What the operator and the runtime must agree on.

Environment names, the launcher's HTTP API, exit facts, the checkpoint's objects, and the tools that need nothing but
the checkpoints' store. Standard library only, but for `checkpoints.s3`, which needs boto3, so that both sides can
import it.
"""

__version__ = "0.1.0"
