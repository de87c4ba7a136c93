"""Profiles as tables of layers, kernels, modules and floors, as box plots, rooflines and a trace."""
