"""Torch-TensorRT: a model in PyTorch, its operators put into TensorRT engines where that can be done.

``backend`` is the door. ``library`` finds Torch-TensorRT, ``settings`` says in its words what the options mean,
``front_ends`` are its ways in, ``runner`` runs what came out, ``watch`` sees what its partitioner decides.
"""
