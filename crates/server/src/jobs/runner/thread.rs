//! A thread of its own for an engine.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::jobs::{Engine, JobError};

/// The stack of a working thread: as large as that of the main thread, on which the command line works.
const STACK: usize = 8 << 20;

/// How long to wait before another try where the system starts no thread, and how many tries there are: threads that end give room to others.
const RETRY_AFTER: Duration = Duration::from_millis(100);
const MOST_TRIES: usize = 100;

/// Runs `work` on a thread of its own.
///
/// Not on the runtime's blocking pool: a runtime that ends waits for its blocking threads, and an
/// engine stuck in a driver would keep the server from ending. The receiver owns the thread; when it is
/// gone, the answer is not wanted, and the process may end under it.
pub(in crate::jobs) fn on_thread<T: Send + 'static>(
    name: &str,
    engine: Arc<dyn Engine>,
    work: impl FnOnce(&dyn Engine) -> T + Send + 'static,
) -> impl Future<Output = Result<T, JobError>> {
    // Boxed: a thread of each type of closure, and a wait for each type of result, take long to compile.
    let boxed = |engine: &dyn Engine| -> Box<dyn Any + Send> { Box::new(work(engine)) };
    let done = Box::pin(boxed_on_thread(name, engine, Box::new(boxed)));
    async { Ok(*done.await?.downcast().expect("`work` gave it")) }
}

type Work = Box<dyn FnOnce(&dyn Engine) -> Box<dyn Any + Send> + Send>;

async fn boxed_on_thread(
    name: &str,
    engine: Arc<dyn Engine>,
    work: Work,
) -> Result<Box<dyn Any + Send>, JobError> {
    let (done, receiver) = oneshot::channel();
    // What a thread or a worker of its logs says whose it is.
    let span = tracing::Span::current();
    let run = move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| span.in_scope(|| work(engine.as_ref()))));
        // Without a receiver when the server ends: see above.
        let _ = done.send(outcome);
    };
    start(name, Box::new(run), |name, run| {
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.stack_size(STACK).spawn(run).map(|_| ())
    })
    .await
    .map_err(|error| {
        tracing::error!("no thread could be started for {name}: {error}");
        JobError::NoThread
    })?;
    match receiver.await.expect("the thread sends whatever happens") {
        Ok(outcome) => Ok(outcome),
        Err(panic) => {
            let message = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            tracing::error!("the engine panicked: {message}");
            Err(JobError::EnginePanicked(message.to_owned()))
        }
    }
}

/// Has `spawn` start a thread of this name, and waits and asks again where it cannot.
async fn start(
    name: &str,
    run: Box<dyn FnOnce() + Send>,
    spawn: impl Fn(&str, Box<dyn FnOnce() + Send>) -> std::io::Result<()>,
) -> std::io::Result<()> {
    // What `spawn` is given is lost where it fails.
    let run = Arc::new(Mutex::new(Some(run)));
    let mut tries = 1;
    loop {
        let run = Arc::clone(&run);
        let once = Box::new(move || {
            let run = run.lock().map(|mut run| run.take());
            if let Ok(Some(run)) = run {
                run();
            }
        });
        match spawn(name, once) {
            Err(_) if tries < MOST_TRIES => tokio::time::sleep(RETRY_AFTER).await,
            started => return started,
        }
        tries += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thread_that_cannot_be_started_is_started_later() {
        let tries = AtomicUsize::new(0);
        let (ran, heard) = oneshot::channel();
        let run = Box::new(|| ran.send(()).expect("it is waited for"));

        let started = start("work", run, |_, run| {
            match tries.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => Err(Error::other("there are too many")),
                _ => {
                    run();
                    Ok(())
                }
            }
        });
        started.await.unwrap();

        heard.await.unwrap();
        assert_eq!(tries.into_inner(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_thread_that_can_never_be_started_is_given_up() {
        let started = start("work", Box::new(|| ()), |_, _| {
            Err(Error::other("there are too many"))
        });

        assert!(started.await.is_err());
    }
}
