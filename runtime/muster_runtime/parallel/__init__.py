"""Making a model data-parallel as the job says: DDP, FSDP2 or HSDP; and how the ranks talk beside the training."""
