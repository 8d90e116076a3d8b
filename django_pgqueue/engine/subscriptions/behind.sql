-- Whether the source has unread messages; NULL if the position is missing or comes from another system. P1.
WITH place AS MATERIALIZED (
    {subscriptions/place}
)
SELECT (SELECT CASE WHEN NOT bool_or(is_foreign) THEN EXISTS (
            SELECT FROM place p CROSS JOIN LATERAL ({subscriptions/ahead}) m) END FROM place)
