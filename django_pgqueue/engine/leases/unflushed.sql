(NOT {own_transaction} OR (SELECT set_config('synchronous_commit', 'off', true)) = 'off')
