"""Conclusions from records and profiles: samples that count, comparisons, layers, modules, kernels, findings."""
