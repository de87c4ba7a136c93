"""Ways of looking at traces: they draw what :mod:`inferlens.trace` computes."""
