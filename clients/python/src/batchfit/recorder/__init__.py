"""Runs an exported graph, or a module, under PyTorch for three training steps and records what the allocator is asked for.

`python -m batchfit.recorder` is the child process of `batchfit fit --recorder PYTHON`: see protocol.py for what it reads and
writes. A graph is data: its operators are looked up among those that PyTorch has registered, nothing in it is unpickled,
evaluated or imported.
"""
