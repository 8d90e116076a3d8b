-- Takes or renews the maintenance lease. Changes nothing while another process holds it.
INSERT INTO pgqueue_maintenance AS m (id, token, process, until)
VALUES (1, %(token)s, %(process)s, statement_timestamp() + make_interval(secs => %(seconds)s))
ON CONFLICT (id) DO UPDATE
SET token = excluded.token, process = excluded.process, until = excluded.until,
    since = CASE m.token WHEN excluded.token THEN m.since ELSE excluded.since END
WHERE m.token = excluded.token OR m.until <= statement_timestamp()
