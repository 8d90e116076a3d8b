-- Part that other statements include: whether a position is of another system.
system <> (SELECT system_identifier FROM pg_control_system())
