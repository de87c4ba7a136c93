"""Shared by backends that run ONNX: the export, the graph's nodes and quantization."""
