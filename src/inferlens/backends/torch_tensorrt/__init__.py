"""Torch-TensorRT: a model in PyTorch, its operators put into TensorRT engines where that can be done."""
