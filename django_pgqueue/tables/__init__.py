"""The tables: a model in each module. :mod:`django_pgqueue.models` has all of them."""
