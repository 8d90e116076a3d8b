"""The inbox: a view queues webhooks, and a consumer turns them into a feed."""
