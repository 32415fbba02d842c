//! What `nvidia-smi` and `pynvml` read.
