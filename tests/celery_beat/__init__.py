"""The tables of django-celery-beat, which does not run on every Django of ours."""

from __future__ import annotations
