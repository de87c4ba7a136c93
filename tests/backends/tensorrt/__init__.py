import pytest
import torch

# TensorRT for RTX builds and refuses other things where it finds a GPU; tests/gpu holds these.
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
