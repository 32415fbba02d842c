//! Real NVIDIA GPUs. The only place that names cudarc.
