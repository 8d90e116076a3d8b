"""The recent history of queues: written by consumers and maintenance, read by the admin."""
