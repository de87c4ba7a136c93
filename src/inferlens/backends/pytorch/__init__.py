"""PyTorch, and code that all backends inside PyTorch share."""
