"""`make demo`: a training run on a real cluster that loses a worker and goes on, on one screen."""
