//! Commands of others that end with this process, and with which all ends that they started.
//!
//! Between this process and such a command stands another of ours, the supervisor: the system gives it what the command's processes
//! leave behind, sessions of their own and daemons too (a subreaper, prctl(2)), and it ends all of them when the command ends
//! or this process is gone, however it went.

use std::collections::HashMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, id};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_child_subreaper};

use super::SuspendAwareDeadline;

/// The first word after the program's name of a supervisor; the second is the process that it ends with.
const SUPERVISE: &str = "supervise";

/// Of this process: what it is has no name any more once a newer one took its place.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// How often a supervisor looks whether its parent is still there.
const LOOK: Duration = Duration::from_millis(100);

/// How long what was killed may take to be gone: a driver may hold it.
const ENDING: Duration = Duration::from_secs(10);

/// How often that wait looks.
const MOMENT: Duration = Duration::from_millis(5);

/// Whether this process is the program that can be a supervisor.
static CAN_SUPERVISE: AtomicBool = AtomicBool::new(false);

/// Runs as a supervisor if this process was started as one; `None` if not. Commands are supervised from then on.
pub fn run_if_asked() -> Option<ExitCode> {
    CAN_SUPERVISE.store(true, Ordering::Relaxed);
    let mut words = env::args_os().skip(1);
    if words.next()? != SUPERVISE {
        return None;
    }
    let parent = words.next()?.to_str()?.parse().ok()?;
    let words: Vec<OsString> = words.collect();
    let (program, arguments) = words.split_first()?;
    Some(supervise(parent, program, arguments))
}

/// A command under a supervisor, or by itself where this process cannot be one. An error is that of starting it.
pub fn command(program: &OsStr, arguments: &[OsString]) -> io::Result<Command> {
    if !CAN_SUPERVISE.load(Ordering::Relaxed) {
        let mut command = Command::new(program);
        command.args(arguments);
        return Ok(command);
    }
    let mut command = Command::new(THIS_PROGRAM);
    command
        .args([SUPERVISE, &id().to_string()])
        .arg(find_program(program)?)
        .args(arguments);
    Ok(command)
}

/// The file that a program's name means, as execvp(3) looks for it.
fn find_program(program: &OsStr) -> io::Result<PathBuf> {
    let can_run = |path: &Path| {
        let found = fs::metadata(path)?;
        if found.is_file() && found.permissions().mode() & 0o111 != 0 {
            return Ok(path.to_owned());
        }
        Err(io::Error::from(Errno::ACCESS))
    };
    let name = Path::new(program);
    if name.components().count() != 1 || program.as_encoded_bytes().contains(&b'/') {
        return can_run(name);
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut refused = io::Error::from(Errno::NOENT);
    for folder in env::split_paths(&path) {
        match can_run(&folder.join(name)) {
            Ok(found) => return Ok(found),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => refused = error,
            Err(_) => {}
        }
    }
    Err(refused)
}

/// Starts the command and ends as it ends, without anything that it started.
fn supervise(parent: i32, program: &OsStr, arguments: &[OsString]) -> ExitCode {
    if let Err(error) = set_child_subreaper(Some(getpid())) {
        eprintln!("batchfit: what the command leaves behind cannot be ended: {error}");
    }
    let mut child = match Command::new(program).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("batchfit: could not start {}: {error}", program.display());
            return ExitCode::from(126);
        }
    };
    let (end, ended) = channel();
    thread::spawn(move || end.send(child.wait()));
    let is_parent_here = || getppid().is_some_and(|now| now.as_raw_nonzero().get() == parent);
    let status = loop {
        match ended.recv_timeout(LOOK) {
            Ok(status) => break status.ok(),
            Err(RecvTimeoutError::Timeout) if is_parent_here() => {}
            Err(_) => break None,
        }
    };
    end_descendants(getpid());
    status.map_or(ExitCode::FAILURE, end_like)
}

/// Ends as another process did.
fn end_like(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal().and_then(Signal::from_named_raw) {
        // What is ignored or dumps no core here is said as shells say it.
        let _ = kill_process(getpid(), signal);
    }
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Kills a child, its process group, and all that they started. Called before the child's status is taken: as long as it is in the table of
/// processes, its number is not reused.
pub fn end(child: &mut Child) {
    end_descendants(Pid::from_child(child));
    batchfit_platform::kill_group(child);
}

/// Whether what a child has started, all together, holds more than so many bytes of the host's memory. Pages that forks share count once, mapped files
/// do not. Called before the child's status is taken, as [`end`].
pub fn holds_more(child: &Child, most: u64) -> bool {
    let below = descendants(Pid::from_child(child).as_raw_nonzero().get());
    // The second is exact and takes longer.
    [("status", "RssAnon:"), ("smaps_rollup", "Pss_Anon:")]
        .iter()
        .all(|(file, name)| {
            let held = |pid: &i32| {
                memory(
                    &fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?,
                    name,
                )
            };
            below.iter().filter_map(held).sum::<u64>() > most
        })
}

/// Bytes behind a name in a file of `/proc` (`man 5 proc_pid_status`).
fn memory(text: &str, name: &str) -> Option<u64> {
    let kib = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = kib.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Kills what a process has started, and what that has started, until nothing runs or patience is over. Where it is a supervisor,
/// that is everything.
fn end_descendants(root: Pid) {
    let mut deadline = SuspendAwareDeadline::of(ENDING);
    loop {
        let alive = descendants(root.as_raw_nonzero().get());
        for pid in alive.iter().copied().filter_map(Pid::from_raw) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        if alive.is_empty() || deadline.is_over() {
            return;
        }
        deadline.look(MOMENT, thread::sleep);
    }
}

/// The processes below one in the system's table, but for those that have ended.
fn descendants(root: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<(i32, bool)>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        // Names may have any bytes.
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        if let Some((state, parent)) = state_and_parent(&String::from_utf8_lossy(&stat)) {
            let is_alive = !matches!(state, 'Z' | 'X');
            children.entry(parent).or_default().push((pid, is_alive));
        }
    }
    let mut below = Vec::new();
    let mut to_visit = vec![root];
    while let Some(at) = to_visit.pop() {
        for (pid, is_alive) in children.remove(&at).into_iter().flatten() {
            to_visit.push(pid);
            below.extend(is_alive.then_some(pid));
        }
    }
    below
}

/// The state and the parent in a line of `/proc/PID/stat` (`man 5 proc_pid_stat`). The name before them may contain anything.
fn state_and_parent(stat: &str) -> Option<(char, i32)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    let state = words.next()?.chars().next()?;
    Some((state, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_read_whatever_the_name() {
        assert_eq!(state_and_parent("7 (a) S 3) Z 12 7 7"), Some(('Z', 12)));
        assert_eq!(state_and_parent("7 (sh) S 1 7"), Some(('S', 1)));
        assert_eq!(state_and_parent("7 (sh"), None);
        assert_eq!(state_and_parent(""), None);
    }

    #[test]
    fn memory_is_read_by_its_name() {
        let status = "VmRSS:\t     9 kB\nRssAnon:\t    12 kB\nThreads:\t1";
        assert_eq!(memory(status, "RssAnon:"), Some(12 << 10));
        assert_eq!(memory(status, "Threads:"), None);
        assert_eq!(memory(status, "Pss_Anon:"), None);
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(find_program(OsStr::new("sh")).unwrap().is_absolute());
        assert_eq!(
            find_program(OsStr::new("/bin/sh")).unwrap(),
            Path::new("/bin/sh")
        );
        let absent = find_program(OsStr::new("no-such-program-anywhere")).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        let folder = find_program(OsStr::new("/")).unwrap_err();
        assert_eq!(folder.kind(), io::ErrorKind::PermissionDenied);
    }
}
