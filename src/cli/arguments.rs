//! Flags and environment variables, all in one place.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::http::HostName;
use crate::probe::LARGEST_BATCH;
use crate::worker::{Deadlines, Fault, Misbehaviour};

/// Finds the largest batch that fits a GPU safely, and the gradient-accumulation steps that make the
/// batch you want.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 100, after_help = EXIT_CODES)]
pub(super) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(super) command: Command,
    /// What to log to stderr: error, warn, info, debug or trace, also by module; `serve` begins with
    /// info, all else with warn.
    #[arg(
        long,
        env = "BATCHFIT_LOG",
        value_name = "FILTER",
        global = true,
        hide_env_values = true
    )]
    pub(super) log: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Find the largest batch that fits.
    Fit(Fit),
    /// Run one batch and show its memory.
    Probe(Probe),
    /// List the allocations and frees of the training steps, one a line.
    Program(Program),
    /// Repeat what PyTorch's allocator was recorded to do, and ask what if.
    Replay(Replay),
    /// List the GPUs of this machine and the cards that can be simulated.
    Devices(Devices),
    /// List the models that have a name.
    Presets(Presets),
    /// Answer requests over HTTP until SIGTERM or Ctrl-C.
    Serve(Serve),
    /// Print the description of the HTTP API as YAML.
    Openapi,
    /// List the ATen operators that have a rule of their own, one a line.
    Operators,
    /// Record what scratch memory a GPU's convolution library wants for a model's layers.
    #[command(hide = true)]
    RecordWorkspaces(RecordWorkspaces),
    /// Own a GPU for a parent process; started by batchfit itself.
    #[command(hide = true)]
    Worker(Worker),
    /// Answer one fit for a parent process; started by batchfit itself.
    #[command(hide = true)]
    Answer(Answer),
}

const REQUEST_HELP: &str = "\
The request is a JSON document, the same that `POST /v1/fits` takes. A small one:

  {
    \"model\": {\"preset\": \"resnet50\"},
    \"training\": {\"precision\": \"amp_fp16\", \"optimizer\": \"sgd_momentum\"},
    \"device\": \"sim:a100-40g\",
    \"target_batch\": 1024
  }

  batchfit fit request.json
  batchfit fit request.json --device sim:rtx4090 --memory-limit 12GiB --json
  echo '{\"model\": {\"preset\": \"resnet18\"}, \"device\": \"sim:h200\"}' | batchfit fit -

model          {\"preset\": NAME}, see `batchfit presets`; {\"layers\": [...], \"input\": {\"shape\": [...]}};
               {\"exported\": GRAPH} or --model FILE with what torch.export saved
training       precision: fp32, amp_fp16, amp_bf16, bf16, fp16; optimizer: sgd, sgd_momentum, adam,
               adamw; checkpointing: none, per_block. A list of them compares all combinations.
device         auto (a GPU that is free), cuda:N, or sim:NAME, see `batchfit devices`
memory_limit   what PyTorch may reserve: bytes, \"12GiB\", or a fraction such as \"0.8\"
target_batch   samples per optimizer step; gives the accumulation steps to reach it

Exit codes: 0 answered; `probe`: the batch fits, with retries or without. 2 bad input. 3 nothing fits,
and the answer says how much is missing; `probe`: the batch runs out of memory. 4 device trouble. 1 the
answer could not be written (a full disk), or batchfit itself failed.";

/// Where a question comes from.
#[derive(Debug, Args)]
pub(super) struct Question {
    /// The request document; `-` reads it from stdin.
    #[arg(value_name = "REQUEST.json")]
    pub(super) request: PathBuf,
    /// A model saved by torch.export (.json, .json.gz or .pt2), instead of the request's `model`.
    #[arg(long, value_name = "FILE")]
    pub(super) model: Option<PathBuf>,
    /// The device, instead of the request's: auto, cuda:N or sim:NAME.
    #[arg(long)]
    pub(super) device: Option<String>,
    /// What may be reserved, instead of the request's `memory_limit`: bytes, 12GiB or 0.8.
    #[arg(long, value_name = "LIMIT")]
    pub(super) memory_limit: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_long_help = REQUEST_HELP)]
pub(super) struct Fit {
    #[command(flatten)]
    pub(super) question: Question,
    /// Print the JSON document of `GET /v1/fits/{id}` and nothing else.
    #[arg(long)]
    pub(super) json: bool,
    /// Where the answer is stored; without effect when that cannot be written.
    #[arg(
        long,
        env = "BATCHFIT_DATABASE",
        value_name = "URL",
        default_value = "sqlite:batchfit.db"
    )]
    pub(super) database: String,
    #[command(flatten)]
    pub(super) patience: Patience,
}

#[derive(Debug, Args)]
#[command(after_long_help = REQUEST_HELP)]
pub(super) struct Probe {
    #[command(flatten)]
    pub(super) question: Question,
    /// Samples per micro-step.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=LARGEST_BATCH))]
    pub(super) batch: u64,
    /// Say what of the step a GPU cannot run, instead of running it. With a simulated card it needs no GPU; exit
    /// code 4 when there is something.
    #[arg(long)]
    pub(super) explain: bool,
    /// Print the JSON document of `GET /v1/probes/{id}`, or of what `--explain` says, and nothing else.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) patience: Patience,
}

const REPLAY_HELP: &str = "\
TRACE is a memory snapshot of PyTorch:

  torch.cuda.memory._record_memory_history()
  ...  # train a few steps
  torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")

or a trace as text: a header `# {\"total\": BYTES, \"limit\": BYTES, \"alloc_conf\": TEXT}`, then lines of
`action address size stream`. Either may be compressed with gzip.

  batchfit replay snapshot.pickle
  batchfit replay snapshot.pickle --memory-limit 12GiB --compare
  batchfit replay trace.txt.gz --allocator expandable_segments:True --svg memory.svg

Under the recorded limit and settings the driver's recorded addresses are used, and every event is
compared with the recording. Otherwise the requests are put to simulated memory.

Exit codes: 0 answered, also when memory runs out; 2 bad input; 1 the answer could not be written (a full
disk), or batchfit itself failed.";

const EXIT_CODES: &str = "\
Exit codes: 0 answered; 2 bad input, also a file that cannot be read or written; 3 nothing fits; 4 device
trouble; 1 the answer could not be written to stdout (a full disk), or batchfit itself failed.";

#[derive(Debug, Args)]
#[command(after_long_help = REPLAY_HELP)]
pub(super) struct Replay {
    /// A memory snapshot of PyTorch or a trace, compressed or not; `-` reads it from stdin.
    #[arg(value_name = "TRACE")]
    pub(super) trace: PathBuf,
    /// What may be reserved, instead of what was recorded: bytes, 12GiB or 0.8.
    #[arg(long, value_name = "LIMIT")]
    pub(super) memory_limit: Option<String>,
    /// Allocator settings, instead of the recorded ones: the text of a `PYTORCH_CUDA_ALLOC_CONF`.
    #[arg(long, value_name = "CONF")]
    pub(super) allocator: Option<String>,
    /// Compare with other settings: which fit, with how much, and what is the least they need.
    #[arg(long)]
    pub(super) compare: bool,
    /// Draw memory over time, and the segments and blocks at the peak.
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Print the JSON document of `POST /v1/replays` and nothing else.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Program {
    #[command(flatten)]
    pub(super) question: Question,
    /// Samples per micro-step.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=LARGEST_BATCH))]
    pub(super) batch: u64,
    /// A recording of the same steps (a trace or a memory snapshot, begun before the model was made): print
    /// how many requests agree and which do not.
    #[arg(long, value_name = "TRACE")]
    pub(super) compare: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Devices {
    /// Print the JSON document of `GET /v1/devices` and nothing else.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Presets {
    /// Print the JSON document of `GET /v1/presets` and nothing else.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Serve {
    /// Where to listen.
    #[arg(
        long,
        env = "BATCHFIT_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080"
    )]
    pub(super) listen: String,
    /// A name or address under which clients know this server, beside localhost and where it listens; others are
    /// refused, so that no web page can pass for it. May be given several times; the variable takes commas.
    #[arg(
        long = "allowed-host",
        env = "BATCHFIT_ALLOWED_HOST",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub(super) allowed_hosts: Vec<HostName>,
    /// Where fits and answers are kept.
    #[arg(
        long,
        env = "BATCHFIT_DATABASE",
        value_name = "URL",
        default_value = "sqlite:batchfit.db"
    )]
    pub(super) database: String,
    #[command(flatten)]
    pub(super) patience: Patience,
}

#[derive(Debug, Args)]
pub(super) struct RecordWorkspaces {
    #[command(flatten)]
    pub(super) question: Question,
    /// Which GPU, by CUDA's number.
    #[arg(long, default_value_t = 0)]
    pub(super) gpu: u32,
    /// Every batch up to this one is recorded.
    #[arg(long, default_value_t = 64, value_name = "BATCH")]
    pub(super) dense_to: u64,
    /// The largest batch; up to there in relative steps.
    #[arg(long, default_value_t = 4096, value_name = "BATCH")]
    pub(super) largest: u64,
    /// The relative step after the dense part.
    #[arg(long, default_value_t = 2, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(super) step: u64,
    /// Tables to take over: their layers are not recorded again. May be given several times.
    #[arg(long, value_name = "FILE")]
    pub(super) merge: Vec<PathBuf>,
    /// Recordings made elsewhere, as tests/record/cudnn.py writes them: layers to take over.
    #[arg(long, value_name = "FILE")]
    pub(super) recording: Vec<PathBuf>,
    /// The table to write, compressed; it must not exist.
    #[arg(long, value_name = "FILE")]
    pub(super) output: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct Worker {
    /// Where workers take turns on GPUs; all that share a GPU share this directory.
    #[arg(
        long,
        env = "BATCHFIT_LOCKS",
        value_name = "DIRECTORY",
        default_value = "/tmp"
    )]
    pub(super) locks: PathBuf,
    /// Where to keep compiled GPU kernels; `batchfit/kernels` in the user's cache folder unless named.
    #[arg(long, env = "BATCHFIT_KERNEL_CACHE", value_name = "DIRECTORY")]
    pub(super) kernel_cache: Option<PathBuf>,
    /// Fail in the middle of each probe: exit, kill, hang, pause=SECONDS or illegal-access. For tests of a
    /// whole server, whose workers inherit the variable.
    #[arg(long, env = "BATCHFIT_FAULT", value_name = "FAULT")]
    pub(super) fault: Option<Fault>,
    /// Fail only in the first probe that finds this file missing.
    #[arg(long, env = "BATCHFIT_FAULT_ONCE", value_name = "FILE")]
    pub(super) fault_once: Option<PathBuf>,
    /// Open nothing and fail as planned: none, exit-after=N, hang, babble, half-line, huge-line,
    /// wrong-version, panic, abort, lose, lose-opening, no-room, crowd or take-turns.
    #[arg(long, value_name = "FAILURE")]
    pub(super) misbehave: Option<Misbehaviour>,
    /// Fail only in the first worker that finds this file missing.
    #[arg(long, value_name = "FILE", requires = "misbehave")]
    pub(super) once: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Answer {
    #[command(flatten)]
    pub(super) patience: Patience,
}

/// How long GPUs may take.
#[derive(Debug, Args)]
pub(super) struct Patience {
    /// Seconds that one probe on a GPU may take before its process is ended and replaced.
    #[arg(
        long,
        env = "BATCHFIT_PROBE_DEADLINE",
        value_name = "SECONDS",
        default_value_t = 180,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    probe_deadline: u64,
    /// Seconds to wait while another batchfit process uses the GPU.
    #[arg(
        long,
        env = "BATCHFIT_GPU_WAIT",
        value_name = "SECONDS",
        default_value_t = 900
    )]
    gpu_wait: u64,
}

impl Patience {
    pub(super) fn deadlines(&self) -> Deadlines {
        Deadlines {
            probe: Duration::from_secs(self.probe_deadline),
            turn: Duration::from_secs(self.gpu_wait),
            ..Deadlines::default()
        }
    }
}
