"""The jobs that maintain and use a lake. Each is a function and a command."""
