(extract(epoch FROM m.expires_at) * 1000000::numeric)::bigint
