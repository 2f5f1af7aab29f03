"""Checkpoints: torch.distributed.checkpoint's planning over our own storage, committed by compare-and-swap."""
