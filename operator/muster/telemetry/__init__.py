"""What the operator tells about itself: metrics and health."""
