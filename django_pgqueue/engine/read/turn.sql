, t.turn
