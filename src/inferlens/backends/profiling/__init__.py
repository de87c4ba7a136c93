"""Profilers that backends share: layers and kernels from torch.profiler, hooks and steps."""
