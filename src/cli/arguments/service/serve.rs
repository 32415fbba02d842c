//! Flags of `serve`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::super::{AskCudnn, DatabaseFlags, RecorderFlags, Timeouts};
use super::{KeyFlags, RetentionFlags, WorkFlags, truth};
use crate::alloc::MemoryLimit;
use crate::http::HostName;
use crate::jobs::UploadLimits;

#[derive(Debug, Args)]
pub(in crate::cli) struct Serve {
    /// A TOML file of settings, named like the flags; flags and environment variables override it.
    #[arg(long, env = "BATCHFIT_CONFIG", value_name = "FILE")]
    pub(in crate::cli) config: Option<PathBuf>,
    /// Log a line for each request.
    #[arg(long, env = "BATCHFIT_ACCESS_LOG", value_parser = truth)]
    pub(in crate::cli) access_log: bool,
    /// Where to listen.
    #[arg(
        long,
        env = "BATCHFIT_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080"
    )]
    pub(in crate::cli) listen: String,
    /// A name or address of this server that clients may use, beside localhost and the one where it listens; requests with
    /// another `Host` are refused. Repeat it for several; the variable takes commas.
    #[arg(
        long = "allowed-host",
        env = "BATCHFIT_ALLOWED_HOST",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub(in crate::cli) allowed_hosts: Vec<HostName>,
    #[command(flatten)]
    pub(in crate::cli) kept: DatabaseFlags,
    #[command(flatten)]
    pub(in crate::cli) uploads: UploadFlags,
    #[command(flatten)]
    pub(in crate::cli) work: WorkFlags,
    #[command(flatten)]
    pub(in crate::cli) keys: KeyFlags,
    #[command(flatten)]
    pub(in crate::cli) retention: RetentionFlags,
    #[command(flatten)]
    pub(in crate::cli) cudnn: AskCudnn,
    #[command(flatten)]
    pub(in crate::cli) recorder: RecorderFlags,
    #[command(flatten)]
    pub(in crate::cli) patience: Timeouts,
}

/// What uploaded graphs and recordings may take.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options")]
pub(in crate::cli) struct UploadFlags {
    /// How long an unused upload is kept.
    #[arg(
        long,
        env = "BATCHFIT_UPLOAD_EXPIRY",
        value_name = "SECONDS",
        default_value_t = 86_400,
        value_parser = clap::value_parser!(u64).range(1..=LONGEST_EXPIRY_S)
    )]
    upload_expiry: u64,
    /// How much all uploads together may take, compressed: bytes or 4GiB.
    #[arg(
        long,
        env = "BATCHFIT_UPLOAD_SPACE",
        value_name = "BYTES",
        default_value = "4GiB",
        value_parser = bytes
    )]
    upload_space: u64,
}

/// Longest time that uploads can be kept unused: a hundred years.
const LONGEST_EXPIRY_S: u64 = 100 * 366 * 86_400;

/// A size such as `4GiB`, in bytes.
pub(in crate::cli) fn bytes(text: &str) -> Result<u64, String> {
    match crate::model::parse_size(&Value::from(text), "") {
        Ok(MemoryLimit::Bytes(bytes)) => Ok(bytes.0),
        Ok(MemoryLimit::Fraction(_)) | Err(_) => {
            Err("expected bytes, or a size such as 4GiB".to_owned())
        }
    }
}

impl UploadFlags {
    pub(in crate::cli) fn limits(&self) -> UploadLimits {
        UploadLimits {
            bytes: self.upload_space,
            expiry: Duration::from_secs(self.upload_expiry),
        }
    }
}
