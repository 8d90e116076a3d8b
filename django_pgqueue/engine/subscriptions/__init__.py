"""Subscriptions: queues that read another queue's messages, without a copy of each."""
