"""What backends share that profile: layers and kernels from torch.profiler, hooks and steps."""
