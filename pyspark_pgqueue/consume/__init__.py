"""A queue as a stream that leases and archives its messages."""
