"""What a model file holds, found without running or trusting any of it.

``reading`` takes a file apart (archive, pickle opcodes, tensors as views of the mapped file), ``layout`` says what kind
of checkpoint it is, ``values`` and ``training_state`` look at the numbers, ``byte_rules`` and ``content_rules`` judge,
``fitness`` says what it can be used for. Nothing here calls an unpickler.
"""
