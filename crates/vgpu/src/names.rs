//! Every other name that programs link to; each is said once when it is called.
