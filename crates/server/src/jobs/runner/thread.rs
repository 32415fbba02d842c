//! A thread of its own for an engine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::jobs::{Engine, JobError};

/// The stack of a working thread: as large as that of the main thread, on which the command line works.
const STACK: usize = 8 << 20;

/// Runs `work` on a thread of its own.
///
/// Not on the runtime's blocking pool: a runtime that ends waits for its blocking threads, and an
/// engine stuck in a driver would keep the server from ending. The receiver owns the thread; when it is
/// gone, nobody wants the answer, and the process may end under it.
pub(in crate::jobs) async fn on_thread<T: Send + 'static>(
    name: &str,
    engine: Arc<dyn Engine>,
    work: impl FnOnce(&dyn Engine) -> T + Send + 'static,
) -> Result<T, JobError> {
    let (done, receiver) = oneshot::channel();
    // What a thread or a worker of its logs says whose it is.
    let span = tracing::Span::current();
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK)
        .spawn(move || {
            let outcome =
                catch_unwind(AssertUnwindSafe(|| span.in_scope(|| work(engine.as_ref()))));
            // Nobody listens when the server ends: see above.
            let _ = done.send(outcome);
        });
    if let Err(error) = thread {
        return Err(JobError::EnginePanicked {
            message: format!("no thread could be started: {error}"),
        });
    }
    match receiver.await.expect("the thread sends whatever happens") {
        Ok(outcome) => Ok(outcome),
        Err(panic) => {
            let message = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            tracing::error!("the engine panicked: {message}");
            Err(JobError::EnginePanicked {
                message: message.to_owned(),
            })
        }
    }
}
