"""Views of profiles: layers, kernels, modules, floors, findings, timelines and quantization errors of cases."""
