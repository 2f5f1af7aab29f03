"""`muster-launch`: the entry of a training pod.

It waits at a barrier until the whole gang is there, starts one process a rank, watches them, and ends with the rest of
the gang. It runs on the standard library alone, so that it works beside any training image; boto3 and
prometheus-client are vendored and used for the storage preflight and /metrics only.
"""
