"""The operator at work: its process, its handlers, the scheduling loop, and the policies of a job's life."""
