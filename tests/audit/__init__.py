"""The audit log: who did what to which queue."""
