"""The database objects that migrations make: tables, triggers, functions and grants."""
