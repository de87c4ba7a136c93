"""PyTorch, and what all backends share that run modules of it."""
