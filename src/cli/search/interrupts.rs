//! Ctrl-C and its like, while a command runs.

use std::fs;
use std::io;
use std::thread;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::limits::Cancel;

/// Becomes true when this process is asked to end. From now on that is all that comes of it, so the caller
/// has to look.
pub(in crate::cli) fn watch() -> io::Result<Cancel> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate, mut hangup) = {
        let _inside = runtime.enter();
        let hangup = if ignores_hangup() {
            None
        } else {
            Some(signal(SignalKind::hangup())?)
        };
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            hangup,
        )
    };
    let interrupted = Cancel::default();
    let flag = interrupted.clone();
    thread::spawn(move || {
        runtime.block_on(async {
            let hung_up = async {
                match &mut hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hung_up => {}
            }
        });
        flag.cancel();
    });
    Ok(interrupted)
}

/// Whether the end of the terminal is not to be heeded, as `nohup` has it. Outside of Linux that is not known.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The first bit is the first signal, SIGHUP.
    ignored.is_some_and(|mask| mask & 1 == 1)
}
