"""What a handler keeps for the next delivery: steps, notes and waits; the members of batches."""
