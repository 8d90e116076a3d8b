"""The inbox: webhooks come in at a view, wait in a queue and become a feed of activity."""
