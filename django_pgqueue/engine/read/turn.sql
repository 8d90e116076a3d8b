, NULL::timestamptz, t.turn
