"""The parts of ``manage.py demo``: child processes, HTTP traffic and counting."""
