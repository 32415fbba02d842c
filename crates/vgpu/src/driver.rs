//! The driver, and virtual memory management.
