"""TensorRT from ONNX. What cannot be done is ``Unsupported``, with the reason; a lack of memory ``MemoryError``."""
