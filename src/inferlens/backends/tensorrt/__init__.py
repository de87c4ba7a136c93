"""TensorRT from ONNX. An impossible request is ``Unsupported`` with the reason, a lack of memory ``MemoryError``."""
