"""TensorRT from ONNX, in both flavours: the steps of a build, each usable alone, and the runtime."""
