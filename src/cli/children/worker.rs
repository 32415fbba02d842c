//! `batchfit worker`: the child's side of a probe.

use std::io::{self, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process;
use std::thread;
use std::time::Duration;

use crate::cli::arguments::Worker;
use crate::cli::error::CliError;
use crate::cli::{Outcome, storage};
use crate::worker::{self, FakeGpu, FaultPlan, GpuHandler};

/// How long a worker whose parent is gone may take to end by itself, and then to exit.
const GRACE: Duration = Duration::from_secs(1);

pub(in crate::cli) fn run(arguments: &Worker) -> Result<Outcome, CliError> {
    let mut input = BufReader::new(watched_stdin().map_err(CliError::writing)?);
    // Not locked: a planned or real panic must still be able to write.
    let output = io::stdout();
    let ended = if let Some(plan) = arguments.misbehave {
        let fake = FakeGpu {
            plan,
            once: arguments.once.clone(),
            locks: arguments.locks.clone(),
        };
        worker::run_misbehaving(&fake, &mut input, output)
    } else {
        let once = arguments.fault_once.clone();
        let fault = arguments.fault.map(|fault| FaultPlan { fault, once });
        let mut handler = GpuHandler::new(arguments.locks.clone(), kernel_cache(arguments), fault);
        worker::run(&mut handler, &mut input, output)
    };
    ended.map(|()| Outcome::Answered).map_err(CliError::writing)
}

/// Where compiled kernels are kept: as told, or where this user's programs keep what can be made again.
fn kernel_cache(arguments: &Worker) -> Option<PathBuf> {
    let named = arguments.kernel_cache.clone();
    named.or_else(|| Some(storage::cache()?.join("batchfit/kernels")))
}

/// Stdin, whose end is noticed even while a probe runs or hangs: the parent is gone then, killed
/// perhaps, and nothing else would free the GPU.
pub(super) fn watched_stdin() -> io::Result<io::PipeReader> {
    let (reader, mut writer) = io::pipe()?;
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut chunk = vec![0; 1 << 16];
        while let Ok(length @ 1..) = stdin.read(&mut chunk) {
            if writer.write_all(&chunk[..length]).is_err() {
                return;
            }
        }
        drop(writer);
        thread::sleep(GRACE);
        // A driver that hangs may keep an orderly exit waiting for ever.
        thread::spawn(|| {
            thread::sleep(GRACE);
            process::abort();
        });
        process::exit(0);
    });
    Ok(reader)
}
