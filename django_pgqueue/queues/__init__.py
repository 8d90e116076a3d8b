"""``queue()`` and ``Message.objects``: the operations as methods, and the models they return."""
