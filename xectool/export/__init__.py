"""Exported networks: written, described, compared with PyTorch, and run.

``graphs`` is what is exported: a network with its normaliser in front and physical units behind. A format
(``onnx_file``, ``torchscript``, ``pt2``, ``safetensors_file``) writes it with its ``description`` inside and runs it
again; ``parity`` compares what it gives with the network itself before a file gets its name.
"""
