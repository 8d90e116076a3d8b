"""An inbox for GitHub webhooks: a small Django project that shows django_pgqueue at work."""
