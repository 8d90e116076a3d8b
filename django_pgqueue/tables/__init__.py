"""The tables: a model in each module.

Messages, the archive, schedules and bulk actions are models, too: their objects have operations, so
they are in :mod:`django_pgqueue.queues`. :mod:`django_pgqueue.models` has all models.
"""
