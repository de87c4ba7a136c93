"""From records and profiles to what they say: samples that count, comparisons, layers, modules, kernels, findings."""
