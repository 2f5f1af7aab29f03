"""What a run tells about itself: rates, MFU, and its losses bit by bit."""
