//! Flags of agents, and of those who look after them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::super::{AskCudnn, RecorderFlags, Timeouts};

/// How a service is asked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options")]
pub(in crate::cli) struct ServerFlags {
    /// Where the service is.
    #[arg(
        long,
        env = "BATCHFIT_SERVER",
        value_name = "URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub(in crate::cli) server: String,
    /// A file with the API key, where the service asks for one.
    #[arg(long, env = "BATCHFIT_KEY_FILE", value_name = "FILE")]
    pub(in crate::cli) key_file: Option<PathBuf>,
    /// The API key itself, from the environment: on the command line others of this machine would see it.
    #[arg(
        long,
        env = "BATCHFIT_KEY",
        value_name = "KEY",
        hide = true,
        hide_env_values = true,
        conflicts_with = "key_file"
    )]
    pub(in crate::cli) key: Option<String>,
    /// An HTTP proxy on the way to the service; `http_proxy` names it too.
    #[arg(long, env = "http_proxy", value_name = "URL")]
    pub(in crate::cli) proxy: Option<String>,
    /// Hosts that are asked without the proxy, with commas in between; `no_proxy` names them too.
    #[arg(
        long,
        env = "no_proxy",
        value_name = "HOSTS",
        default_value = "",
        hide_default_value = true
    )]
    pub(in crate::cli) no_proxy: String,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Agent {
    #[command(flatten)]
    pub(in crate::cli) server: ServerFlags,
    /// The machine's name in requests, before `/cuda:0`; by default its host name.
    #[arg(long, env = "BATCHFIT_AGENT_NAME", value_name = "NAME")]
    pub(in crate::cli) name: Option<String>,
    /// Offer simulated cards instead of this machine's, to try it without GPUs: h100, 2xh100 or rtx4090.
    #[arg(long, value_name = "CARD,..", value_delimiter = ',')]
    pub(in crate::cli) simulate: Vec<String>,
    /// Offer these of this machine's GPUs alone, such as cuda:0.
    #[arg(
        long = "device",
        value_name = "cuda:N,..",
        value_delimiter = ',',
        conflicts_with = "simulate"
    )]
    pub(in crate::cli) devices: Vec<String>,
    /// Answer one fit, then end; exit code 5 if there was none.
    #[arg(long)]
    pub(in crate::cli) once: bool,
    /// How long to wait for it.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        requires = "once",
        value_parser = clap::value_parser!(u64).range(0..=604_800)
    )]
    pub(in crate::cli) wait: u64,
    /// How long to go on with running work after SIGTERM; without it, until it is finished.
    #[arg(
        long,
        env = "BATCHFIT_AGENT_GRACE",
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(0..=604_800)
    )]
    pub(in crate::cli) grace: Option<u64>,
    /// How long to try to deliver an answer while the service cannot be reached.
    #[arg(
        long,
        env = "BATCHFIT_AGENT_DELIVER",
        value_name = "SECONDS",
        default_value_t = 3600,
        value_parser = clap::value_parser!(u64).range(1..=604_800)
    )]
    pub(in crate::cli) deliver: u64,
    #[command(flatten)]
    pub(in crate::cli) cudnn: AskCudnn,
    #[command(flatten)]
    pub(in crate::cli) recorder: RecorderFlags,
    #[command(flatten)]
    pub(in crate::cli) patience: Timeouts,
}

impl Agent {
    pub(in crate::cli) fn once(&self) -> Option<Duration> {
        self.once.then(|| Duration::from_secs(self.wait))
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Agents {
    #[command(subcommand)]
    pub(in crate::cli) command: Option<AgentsCommand>,
    #[command(flatten)]
    pub(in crate::cli) server: ServerFlags,
    /// Print one JSON document and nothing else.
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

/// What is said to an agent.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum AgentsCommand {
    /// Let an agent finish its work and end.
    Drain(OneAgent),
    /// Give an agent no more work, even after it is restarted; it keeps running.
    Cordon(OneAgent),
    /// Give an agent work again.
    Uncordon(OneAgent),
    /// Forget an agent, and give its work to others.
    Forget(OneAgent),
}

#[derive(Debug, Args)]
pub(in crate::cli) struct OneAgent {
    /// Its name, or its id.
    #[arg(value_name = "AGENT")]
    pub(in crate::cli) agent: String,
}
