"""Ways of looking at traces: an overview, and tables of operators, kernels, modules, memory, steps and slices of time.

They draw what :mod:`inferlens.trace` computes. Nothing is printed, and the same trace gives the same text.
"""
