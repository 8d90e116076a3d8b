"""A data lake: its files, its rows in the database, and its Iceberg table."""
