//! In front of the real cuDNN, which answers without a device.
