//! Lines to `batchfit run` and its answers, over a socket.
//!
//! A line is a word and its fields, separated by tabs. What happens is said and not waited for; what is asked (`ask`) is answered by one line.
//! A child process that was forked has no part in its parent's connection: it makes its own when it has something to say.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::config;

/// A longer line is cut: nothing that is said needs more.
const LONGEST: usize = 8 << 10;

#[derive(Debug)]
struct Connection {
    /// Whose it is: not that of a fork.
    process: u32,
    stream: Option<BufReader<UnixStream>>,
}

static CONNECTION: Mutex<Option<Connection>> = Mutex::new(None);

/// Says what happened.
pub fn say(line: &str) {
    with(|stream| write(stream.get_mut(), line));
}

/// Asks, and waits for the answer; `None` where nobody listens.
pub fn ask(line: &str) -> Option<String> {
    with(|stream| {
        write(stream.get_mut(), line)?;
        let mut answer = String::new();
        let length = stream.read_line(&mut answer)?;
        if length == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        answer.truncate(answer.trim_end().len());
        Ok(answer)
    })
}

fn write(stream: &mut UnixStream, line: &str) -> std::io::Result<()> {
    let mut end = line.len().min(LONGEST);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = Vec::with_capacity(end + 1);
    bytes.extend(line.as_bytes()[..end].iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }));
    bytes.push(b'\n');
    stream.write_all(&bytes)
}

/// Does something with the connection; after an error there is none any more.
fn with<T>(act: impl FnOnce(&mut BufReader<UnixStream>) -> std::io::Result<T>) -> Option<T> {
    let path = config()?.socket.as_deref()?;
    let mut connection = lock();
    let process = process::id();
    if connection.as_ref().is_none_or(|one| one.process != process) {
        // That of the process this one was forked from is left open: closing it would end the other's, too.
        std::mem::forget(connection.take());
        let stream = UnixStream::connect(path).ok().map(BufReader::new);
        let connection = connection.insert(Connection { process, stream });
        if let Some(stream) = &mut connection.stream {
            let rank = std::env::var("RANK").unwrap_or_default();
            let _ = write(stream.get_mut(), &format!("hello\t{process}\t{rank}"));
        }
    }
    let stream = connection.as_mut()?.stream.as_mut()?;
    match act(stream) {
        Ok(done) => Some(done),
        Err(_) => {
            connection.as_mut()?.stream = None;
            None
        }
    }
}

fn lock() -> MutexGuard<'static, Option<Connection>> {
    CONNECTION.lock().unwrap_or_else(PoisonError::into_inner)
}
