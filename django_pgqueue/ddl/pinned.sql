-- Part of functions: the settings for their statements, which are pinned to indexes and to row
-- addresses (ctid). Sessions cache plans. A plan made while a table was small would scan the whole
-- table for good, so enable_seqscan is off. plan_cache_mode makes a session plan each statement
-- once. Otherwise PostgreSQL would plan some of them at each call, because it expects fewer rows
-- when it knows the values.
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan
