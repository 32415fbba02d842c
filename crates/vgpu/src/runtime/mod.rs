//! The CUDA runtime: devices, streams, events, capture, copies, launches.
