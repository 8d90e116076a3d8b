"""The statistics of a roll-up, and how PostgreSQL and Spark count them."""
