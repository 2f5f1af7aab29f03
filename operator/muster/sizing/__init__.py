"""What things take and cost: prices, and the arithmetic of money."""
