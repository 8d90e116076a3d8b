"""The audit log: which operations are recorded, by whom, and when."""
