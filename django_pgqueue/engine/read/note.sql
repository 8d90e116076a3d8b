CASE WHEN m.{places/expired} THEN 'expired' END
