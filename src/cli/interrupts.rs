//! Ctrl-C and its like, while a command runs.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::thread;

use tokio::runtime::Builder;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
#[cfg(windows)]
use tokio::signal::windows::{CtrlC as Signal, ctrl_c};

use crate::limits::Cancel;

/// The signals that ask this process to end: from when they are listened to, that is all that comes of them.
pub(in crate::cli) struct Signals(Vec<Signal>);

impl Signals {
    /// Ctrl-C, on Unix SIGTERM too, and the end of the terminal if asked. Needs a runtime.
    pub(in crate::cli) fn listen(hangup_too: bool) -> io::Result<Signals> {
        #[cfg(windows)]
        let (signals, _) = (std::iter::once(ctrl_c()), hangup_too);
        #[cfg(unix)]
        let signals = {
            let kinds = [SignalKind::interrupt(), SignalKind::terminate()].into_iter();
            let kinds = kinds.chain(hangup_too.then(SignalKind::hangup));
            kinds.map(signal)
        };
        signals.collect::<io::Result<_>>().map(Signals)
    }

    /// Waits for the next one.
    pub(in crate::cli) async fn next(&mut self) {
        poll_fn(|context| {
            let mut signals = self.0.iter_mut();
            let is_asked = signals.any(|signal| signal.poll_recv(context).is_ready());
            if is_asked {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

/// Becomes true when this process is asked to end. From now on that is all that comes of it, so the caller
/// has to look.
pub(in crate::cli) fn watch() -> io::Result<Cancel> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::listen(!ignores_hangup())?
    };
    let interrupted = Cancel::default();
    let flag = interrupted.clone();
    thread::spawn(move || {
        runtime.block_on(signals.next());
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
