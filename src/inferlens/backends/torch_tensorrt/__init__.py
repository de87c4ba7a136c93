"""Torch-TensorRT: a PyTorch model whose operators run in TensorRT engines where possible."""
