//! Flags of the service: how much it takes on, who may ask, and what is kept.

mod agents;
mod serve;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};

use super::DatabaseFlags;
use crate::cli::error::CliError;
use crate::http::KeyLimits;
use crate::jobs::Limits;
use crate::store::Scope;
pub(in crate::cli) use agents::{Agent, Agents, AgentsCommand, ServerFlags};
pub(in crate::cli) use serve::{Serve, bytes};

/// A switch by an environment variable or a settings file. Any other word is refused: it would open a service by a slip.
pub(in crate::cli) fn truth(text: &str) -> Result<bool, String> {
    match text.to_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" | "" => Ok(false),
        _ => Err("give true or false".to_owned()),
    }
}

/// How much work is taken on.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options")]
pub(in crate::cli) struct WorkFlags {
    /// How many fits may wait in the queue; more get 503.
    #[arg(
        long,
        env = "BATCHFIT_QUEUE_SIZE",
        value_name = "N",
        default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    queue_size: u32,
    /// How many fits and probes on simulated devices run at a time; by default one per core. A GPU runs one.
    #[arg(
        long,
        env = "BATCHFIT_SIMULATED_LANES",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    simulated_lanes: Option<u32>,
    /// How long an agent may be silent before its work goes to another.
    #[arg(
        long,
        env = "BATCHFIT_AGENT_LEASE",
        value_name = "SECONDS",
        default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    agent_lease: u64,
    /// Time limit of a fit on a simulated device; on a GPU ten times that, unless the request has `timeout_seconds`.
    #[arg(
        long,
        env = "BATCHFIT_FIT_DEADLINE",
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    fit_deadline: u64,
}

impl WorkFlags {
    pub(in crate::cli) fn limits(&self) -> Limits {
        let usual = Limits::default();
        Limits {
            queued: self.queue_size,
            simulated_in_parallel: self.simulated_lanes.unwrap_or(usual.simulated_in_parallel),
            lease_of_agents: Duration::from_secs(self.agent_lease),
            fit_deadline: Duration::from_secs(self.fit_deadline),
            ..usual
        }
    }
}

/// Who may ask.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options")]
pub(in crate::cli) struct KeyFlags {
    /// Answer clients without a key on any address; on loopback they need none anyway.
    #[arg(long, env = "BATCHFIT_ALLOW_ANONYMOUS", value_parser = truth)]
    allow_anonymous: bool,
    /// Require keys on loopback too, for a service behind a proxy.
    #[arg(
        long,
        env = "BATCHFIT_REQUIRE_KEYS",
        conflicts_with = "allow_anonymous",
        value_parser = truth
    )]
    require_keys: bool,
    /// Requests per second of each key; 0 for no limit.
    #[arg(
        long,
        env = "BATCHFIT_KEY_RATE",
        value_name = "N",
        default_value_t = 200,
        value_parser = clap::value_parser!(u32).range(0..=1_000_000)
    )]
    key_rate: u32,
    /// Requests of each key at a time; 0 for no limit.
    #[arg(
        long,
        env = "BATCHFIT_KEY_CONCURRENCY",
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(0..=1_000_000)
    )]
    key_concurrency: u32,
}

impl KeyFlags {
    /// Fails where the settings contradict each other, of which not all are flags.
    pub(in crate::cli) fn check(&self) -> Result<(), CliError> {
        if self.require_keys && self.allow_anonymous {
            let said = "allow_anonymous contradicts it; leave one of them out";
            return Err(CliError::flag("require_keys", said.to_owned()));
        }
        Ok(())
    }

    /// What keys may ask, where they are needed: on any address but loopback, unless flags say otherwise.
    pub(in crate::cli) fn limits(&self, is_loopback: bool) -> Option<KeyLimits> {
        let is_needed = self.require_keys || !is_loopback && !self.allow_anonymous;
        let some = |number: u32| (number > 0).then_some(number);
        is_needed.then(|| KeyLimits {
            per_second: some(self.key_rate),
            at_a_time: some(self.key_concurrency),
        })
    }
}

/// Keys of the service.
#[derive(Debug, Args)]
pub(in crate::cli) struct Keys {
    #[command(subcommand)]
    pub(in crate::cli) command: KeysCommand,
    #[command(flatten)]
    pub(in crate::cli) kept: DatabaseFlags,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum KeysCommand {
    /// Make a key, and print it, once.
    Create {
        /// A name for it, such as who uses it.
        #[arg(long, value_name = "NAME")]
        name: String,
        /// read: look; fit: also ask; agent: work as an agent; admin: everything, such as deleting uploads and draining agents.
        #[arg(long, value_name = "SCOPE", hide_possible_values = true, value_parser = scope())]
        scope: Scope,
    },
    /// List keys, also revoked ones, without their secrets.
    List {
        /// Print one JSON document and nothing else.
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key: a running service refuses it within a second.
    Revoke {
        /// Its name, or its id.
        #[arg(value_name = "KEY")]
        key: String,
    },
}

/// Reads a scope as it is written.
fn scope() -> impl TypedValueParser<Value = Scope> {
    let names = PossibleValuesParser::new(Scope::ALL.map(Scope::name));
    names.map(|name| Scope::named(&name).expect("it is one of them"))
}

/// Upkeep of the database.
#[derive(Debug, Args)]
pub(in crate::cli) struct Database {
    #[command(subcommand)]
    pub(in crate::cli) command: DatabaseCommand,
    #[command(flatten)]
    pub(in crate::cli) kept: DatabaseFlags,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum DatabaseCommand {
    /// Copy the database to a new file, also while a service uses it.
    Backup {
        /// Where to; there must be no such file yet.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Check every page and row without changing anything; exit code 1 if something is damaged.
    Check,
    /// Copy all rows into another database that has none yet: files of SQLite and databases of PostgreSQL, either way.
    Copy {
        /// From where; no process should write to it meanwhile.
        #[arg(value_name = "FROM")]
        from: String,
        /// Where to. A file is made; a database of PostgreSQL is there already, and gets its tables.
        #[arg(value_name = "TO")]
        to: String,
    },
    /// Drop old fits, probes and recommendations.
    Prune {
        /// How long ago.
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(0..=36_500))]
        older_than_days: u32,
    },
    /// Give unused space back to the file system; needs as much free space meanwhile.
    Vacuum,
}

/// What is kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options")]
pub(in crate::cli) struct RetentionFlags {
    /// For how many days finished fits, recommendations and probes are kept; without it, for ever.
    #[arg(
        long,
        env = "BATCHFIT_KEEP_DAYS",
        value_name = "DAYS",
        value_parser = clap::value_parser!(u32).range(1..=36_500)
    )]
    keep_days: Option<u32>,
}

impl RetentionFlags {
    pub(in crate::cli) fn retention(&self) -> Option<Duration> {
        let hours = |days: u32| Duration::from_hours(24 * u64::from(days));
        self.keep_days.map(hours)
    }
}
