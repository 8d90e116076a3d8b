"""Django's connections: the engine's runner, locks with timeouts, and the models' database."""
