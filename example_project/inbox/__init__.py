"""The inbox: a view queues webhooks, a consumer makes a feed of them."""
