//! The caching allocator: scenarios that read like a conversation, and recorded traces.

mod recorded;
mod scenario;
