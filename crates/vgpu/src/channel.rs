//! Lines to `batchfit run` and its answers, over a socket.
//!
//! A line is a word and its fields, separated by tabs. What happens is said and not waited for; what is asked (`ask`) is answered by one line.
//! A child process that was forked has no part in its parent's connection: it makes its own when it has something to say.

use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::process;
use std::time::Duration;

use crate::config::config;
use crate::fork;
use crate::handle::Lock;

/// A longer line is cut: nothing that is said needs more.
const LONGEST: usize = 8 << 10;

/// An answer that is longer is none.
const LONGEST_ANSWER: u64 = 1 << 20;

/// Who neither reads nor answers for so long is gone, if the machine is ever so busy; a program goes on without.
const PATIENCE: Duration = Duration::from_mins(5);

struct Connection {
    /// Whose it is: not that of a fork.
    process: u32,
    stream: Option<BufReader<UnixStream>>,
    /// Whether one broke before it; a second that breaks is the last.
    is_second: bool,
}

/// This process's, and the one that it has where it is a fork.
static CONNECTIONS: [Lock<Option<Connection>>; 2] = [const { Lock::new(None) }; 2];

/// Says what happened.
pub fn say(line: &str) {
    with(|stream| write(stream.get_ref(), line));
}

/// Asks, and waits for the answer; `None` where nobody listens.
pub fn ask(line: &str) -> Option<String> {
    with(|stream| {
        write(stream.get_ref(), line)?;
        read(stream)
    })
}

fn read(stream: &mut BufReader<UnixStream>) -> Result<String> {
    let mut answer = String::new();
    stream.take(LONGEST_ANSWER).read_line(&mut answer)?;
    if !answer.ends_with('\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    answer.truncate(answer.trim_end().len());
    Ok(answer)
}

fn write(mut stream: &UnixStream, line: &str) -> Result<()> {
    let mut end = line.len().min(LONGEST);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = Vec::with_capacity(end + 1);
    bytes.extend(line.as_bytes()[..end].iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }));
    bytes.push(b'\n');
    // Raises no SIGPIPE, and fails where a program that closed all files has opened its own by this number.
    stream.write_all(&bytes)
}

fn connect(path: &str, patience: Duration) -> Result<BufReader<UnixStream>> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(BufReader::new(stream))
}

/// Does something with the connection.
fn with<T>(act: impl FnOnce(&mut BufReader<UnixStream>) -> Result<T>) -> Option<T> {
    let path = config()?.socket.as_deref()?;
    let mut connection = CONNECTIONS[usize::from(fork::is_fork())].lock();
    if connection.as_ref().is_none_or(|one| one.process != process::id()) {
        // That of the process this one was forked from is left open: closing it would end the other's, too.
        std::mem::forget(connection.take());
        fork::watch();
        *connection = Some(Connection::open(path, PATIENCE, false));
    }
    connection.as_mut()?.with(path, PATIENCE, act)
}

/// What is said first where another connection broke: what was not heard may have been a doubt.
const BROKEN: &str = "problem\tsome of what the script's process said was not heard, as on a machine that was too busy for minutes";

impl Connection {
    fn open(path: &str, patience: Duration, is_second: bool) -> Connection {
        let (process, rank) = (process::id(), std::env::var("RANK").unwrap_or_default());
        let mut stream = connect(path, patience).ok();
        let hello = format!("hello\t{process}\t{rank}");
        stream.take_if(|stream| write(stream.get_ref(), &hello).is_err() || (is_second && write(stream.get_ref(), BROKEN).is_err()));
        Connection { process, stream, is_second }
    }

    fn with<T>(&mut self, path: &str, patience: Duration, act: impl FnOnce(&mut BufReader<UnixStream>) -> Result<T>) -> Option<T> {
        let done = act(self.stream.as_mut()?);
        if done.is_err() {
            *self = if self.is_second { Connection { stream: None, ..*self } } else { Connection::open(path, patience, true) };
        }
        done.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use super::{Connection, LONGEST, connect, read, write};

    #[test]
    fn closed_and_silent_peers_are_not_waited_for() {
        let path = std::env::temp_dir().join(format!("batchfit-channel-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let mut stream = connect(path.to_str().unwrap(), Duration::from_millis(50)).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        write(stream.get_ref(), &"long\n".repeat(LONGEST)).unwrap();
        let mut said = String::new();
        BufReader::new(other.try_clone().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said.len(), LONGEST + 1);
        other.write_all(b"an answer\n").unwrap();
        assert_eq!(read(&mut stream).unwrap(), "an answer");
        // It never answers, and never reads.
        assert!(read(&mut stream).is_err());
        assert!((0..1000).any(|_| write(stream.get_ref(), &"long".repeat(LONGEST)).is_err()));
        // It closes in the midst of an answer.
        other.write_all(b"half").unwrap();
        drop(other);
        assert!(read(&mut stream).is_err());
        assert!(write(stream.get_ref(), "nobody reads this").is_err());
        // What was not heard is said over another connection, once.
        let (patience, path_text) = (Duration::from_millis(50), path.to_str().unwrap());
        let mut connection = Connection::open(path_text, patience, false);
        drop(listener.accept().unwrap());
        assert!(connection.with(path_text, patience, read).is_none());
        let (mut other, _) = listener.accept().unwrap();
        assert!(connection.with(path_text, patience, read).is_none() && connection.stream.is_none());
        let mut said = String::new();
        other.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("hello\t") && said.contains("\nproblem\tsome of what"), "{said}");
        std::fs::remove_file(&path).unwrap();
        assert!(connect(path.to_str().unwrap(), Duration::from_millis(50)).is_err());
    }
}
