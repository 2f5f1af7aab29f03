"""What people are told of jobs and queues, in words: for the command line and for the API. Pure."""
