UNION ALL
(SELECT 'recheck', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL{no_columns}, NULL
 FROM pgqueue_recheck
 WHERE queue_id = {queue_id} AND id > (SELECT %(rechecked)s::bigint)
 ORDER BY id LIMIT 1)
