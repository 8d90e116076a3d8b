"""What a handler keeps for the next delivery of its message: steps, notes and waits."""
