%(heads)s::bigint[]
