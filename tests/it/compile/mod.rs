//! Step programs against recorded PyTorch runs.
mod sequence;
