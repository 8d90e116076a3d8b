"""A Django engine for development and tests: ``ENGINE = "django_pgqueue.embedded"``."""
