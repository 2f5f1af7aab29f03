"""A run's checkpoints, for everyone who can reach their store: ranks, and tools that need neither cluster nor torch.

Standard library only, but for `s3`, which needs boto3 and which a rank never imports: it asks its storage process.
"""
