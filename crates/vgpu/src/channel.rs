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

/// Does something with the connection; after an error there is none any more.
fn with<T>(act: impl FnOnce(&mut BufReader<UnixStream>) -> Result<T>) -> Option<T> {
    let path = config()?.socket.as_deref()?;
    let mut connection = CONNECTIONS[usize::from(fork::is_fork())].lock();
    let process = process::id();
    if connection.as_ref().is_none_or(|one| one.process != process) {
        // That of the process this one was forked from is left open: closing it would end the other's, too.
        std::mem::forget(connection.take());
        fork::watch();
        let stream = connect(path, PATIENCE).ok();
        let connection = connection.insert(Connection { process, stream });
        if let Some(stream) = &mut connection.stream {
            let rank = std::env::var("RANK").unwrap_or_default();
            let _ = write(stream.get_ref(), &format!("hello\t{process}\t{rank}"));
        }
    }
    let stream = connection.as_mut()?.stream.as_mut()?;
    if let Ok(done) = act(stream) {
        Some(done)
    } else {
        connection.as_mut()?.stream = None;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use super::{LONGEST, connect, read, write};

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
        std::fs::remove_file(&path).unwrap();
        assert!(connect(path.to_str().unwrap(), Duration::from_millis(50)).is_err());
    }
}
