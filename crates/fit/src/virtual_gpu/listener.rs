//! Hears what a script's processes say, and answers what they ask.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::mem;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::events::RunEvents;
use super::oracle::Oracle;

/// Longest line: twice what the object sends.
pub const LONGEST_LINE: usize = 16 << 10;

/// Most processes that are listened to at a time. Further ones get no answer, and go on without.
const MOST_CONNECTIONS: usize = 512;

/// Listens until it is asked what it heard.
#[derive(Debug)]
pub struct Listener {
    socket: PathBuf,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    heard: Mutex<RunEvents>,
    oracle: Oracle,
    is_over: AtomicBool,
    open: Mutex<Vec<Connection>>,
}

/// A process that is listened to.
#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    thread: JoinHandle<()>,
}

impl Listener {
    /// Begins to listen at a path, which must be short: an address has room for 107 bytes.
    pub fn start(socket: &Path, oracle: Oracle) -> io::Result<Listener> {
        let listener = UnixListener::bind(socket)?;
        let shared = Arc::new(Shared {
            heard: Mutex::default(),
            oracle,
            is_over: AtomicBool::new(false),
            open: Mutex::default(),
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
    pub fn finish(self) -> RunEvents {
        self.shared.is_over.store(true, Ordering::Release);
        // Wakes the thread that accepts, which then sees that it is over and takes those that wait.
        if UnixStream::connect(&self.socket).is_ok() {
            let _ = self.accepting.join();
        }
        // What was said is heard to its end, and nothing more: a process that left the group may hold its connection open.
        for connection in mem::take(&mut *self.shared.open()) {
            let _ = connection.stream.shutdown(Shutdown::Both);
            let _ = connection.thread.join();
        }
        mem::take(&mut *self.shared.events())
    }
}

impl Shared {
    fn events(&self) -> MutexGuard<'_, RunEvents> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut open = shared.open();
        open.retain(|connection| !connection.thread.is_finished());
        let Ok(heard) = stream.try_clone() else {
            continue;
        };
        if open.len() >= MOST_CONNECTIONS {
            shared.events().unheard(MOST_CONNECTIONS);
            continue;
        }
        let own = Arc::clone(shared);
        let hear = move || {
            // A connection that breaks has said what it had to say; one that says too much is ended.
            let _ = hear(&heard, &own);
            let _ = heard.shutdown(Shutdown::Both);
        };
        if let Ok(thread) = thread::Builder::new().spawn(hear) {
            open.push(Connection { stream, thread });
        }
    }
}

/// Hears one process to its end.
fn hear(stream: &UnixStream, shared: &Shared) -> io::Result<()> {
    let mut answers = stream;
    let mut stream = BufReader::new(stream);
    let process = shared.events().process();
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
            // Who asked may have ended; what it said after that is heard all the same.
            let _ = answers.write_all(format!("{how}\t{bytes}\n").as_bytes());
        } else {
            shared.events().take(process, &text);
        }
    }
}
