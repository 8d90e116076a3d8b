"""The statistics of a roll-up, and how PostgreSQL counts them."""
