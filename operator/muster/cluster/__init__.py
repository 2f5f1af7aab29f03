"""The only code that talks to the API server: client, watches, Lease, pod building, and applying a plan."""
