-- Part of functions: the settings for their statements, which are pinned to indexes and to row
-- addresses (ctid). Sessions cache plans, and a plan made while a table was small would scan it for
-- good, so enable_seqscan is off. With plan_cache_mode a pinned statement is planned once. Without
-- it, PostgreSQL would plan some of them at each call, since known values promise fewer rows.
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
