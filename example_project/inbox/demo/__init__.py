"""The machinery of ``manage.py demo``: child processes, traffic over HTTP, and the counting."""
