//! Hears what a script's processes say, and answers what they ask.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::events::Heard;
use super::oracle::Oracle;

/// Longest line: twice what the object sends.
pub const LONGEST_LINE: usize = 16 << 10;

/// Most processes that are listened to at a time. Further ones get no answer, and go on without.
const MOST_CONNECTIONS: usize = 512;

/// How long what is on its way may take when all processes have ended: somebody who left the process group may hold a connection open.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Listens until it is asked what it heard.
#[derive(Debug)]
pub struct Listener {
    socket: PathBuf,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    heard: Mutex<Heard>,
    oracle: Oracle,
    is_over: AtomicBool,
    open: AtomicUsize,
}

impl Listener {
    /// Begins to listen at a path, which must be short: an address has room for 107 bytes.
    pub fn start(socket: &Path, oracle: Oracle) -> io::Result<Listener> {
        let listener = UnixListener::bind(socket)?;
        let shared = Arc::new(Shared {
            heard: Mutex::default(),
            oracle,
            is_over: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        });
        let own = Arc::clone(&shared);
        let accepting = thread::spawn(move || accept(&listener, &own));
        Ok(Listener {
            socket: socket.to_owned(),
            shared,
            accepting,
        })
    }

    /// Stops listening when those that speak have ended, and says what was heard.
    pub fn finish(self) -> Heard {
        self.shared.is_over.store(true, Ordering::Release);
        // Wakes the thread that accepts, which then sees that it is over and takes those that wait.
        if UnixStream::connect(&self.socket).is_ok() {
            let _ = self.accepting.join();
        }
        let began = Instant::now();
        while self.shared.open.load(Ordering::Acquire) > 0 && began.elapsed() < LAST_WORDS {
            thread::sleep(Duration::from_millis(2));
        }
        self.shared.heard().clone()
    }
}

impl Shared {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        // Those that came before are still heard: a process may speak in its last moment.
        let is_over = shared.is_over.load(Ordering::Acquire);
        if is_over && listener.set_nonblocking(true).is_err() {
            return;
        }
        let stream = match stream {
            Ok(stream) => stream,
            Err(_) if is_over => return,
            Err(_) => {
                // Too many open files: others may end.
                thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        if shared.open.fetch_add(1, Ordering::AcqRel) >= MOST_CONNECTIONS {
            shared.open.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let own = Arc::clone(shared);
        let hear = move || {
            // A connection that breaks has said what it had to say.
            let _ = hear(stream, &own);
            own.open.fetch_sub(1, Ordering::AcqRel);
        };
        if thread::Builder::new().spawn(hear).is_err() {
            shared.open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Hears one process to its end.
fn hear(stream: UnixStream, shared: &Shared) -> io::Result<()> {
    let mut answers = stream.try_clone()?;
    let mut stream = BufReader::new(stream);
    let process = shared.heard().process();
    let mut line = Vec::new();
    loop {
        line.clear();
        stream
            .by_ref()
            .take(LONGEST_LINE as u64)
            .read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            // Its end, or a line that never does.
            return Ok(());
        }
        let text = String::from_utf8_lossy(&line);
        let mut fields = text.split('\t');
        if fields.next() == Some("convolution") {
            let fields: Vec<&str> = fields.collect();
            let (how, bytes) = shared
                .oracle
                .convolution(&fields)
                .unwrap_or(("none", String::new()));
            shared.heard().answered(how);
            answers.write_all(format!("{how}\t{bytes}\n").as_bytes())?;
        } else {
            shared.heard().take(process, &text);
        }
    }
}
