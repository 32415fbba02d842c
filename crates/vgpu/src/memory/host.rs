//! Pinned and managed memory: the host's, bounded.

use std::collections::BTreeMap;
use std::ffi::c_void;

use crate::channel;
use crate::config::config;
use crate::handle::Lock;
use crate::libc;
use crate::runtime::launch;
use crate::status::{INVALID_VALUE, OUT_OF_MEMORY, Status, check};

/// How memory of the host was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `cudaHostAlloc`: pinned.
    Pinned,
    /// `cudaMallocManaged`: on the host until a kernel touches it, which none does.
    Managed,
    /// `cudaHostRegister`: pinned, and allocated by another library.
    Registered,
}

struct Host {
    ranges: BTreeMap<u64, (u64, Kind)>,
    used: u64,
}

static HOST: Lock<Host> = Lock::new(Host { ranges: BTreeMap::new(), used: 0 });

/// Takes memory of the host.
pub fn allocate(kind: Kind, bytes: u64) -> Result<u64, Status> {
    let bytes = bytes.max(1);
    let mut host = HOST.lock();
    let most = config().map_or(0, |config| config.host_memory);
    let used = host.used.checked_add(bytes).filter(|&used| used <= most);
    let Some(used) = used else {
        let used = host.used;
        drop(host);
        channel::say(&format!("host_refused\t{bytes}\t{used}\t{most}"));
        return Err(OUT_OF_MEMORY);
    };
    let mapped = libc::map(0, bytes, libc::READ_WRITE, 0).ok_or(OUT_OF_MEMORY)?;
    host.used = used;
    host.ranges.insert(mapped, (bytes, kind));
    drop(host);
    channel::say(&format!("host\t{bytes}\t{used}"));
    if kind == Kind::Pinned {
        // 1.3 GB/s, as recorded with an H200, far slower than they are copied.
        launch::spend(bytes - bytes / 4);
    }
    Ok(mapped)
}

/// Notes memory that a program pins itself.
pub fn register(address: u64, bytes: u64) -> Result<(), Status> {
    let mut host = HOST.lock();
    check(address != 0 && !host.ranges.contains_key(&address), INVALID_VALUE)?;
    host.ranges.insert(address, (bytes, Kind::Registered));
    Ok(())
}

/// Gives it back, or forgets what was registered.
pub fn free(address: u64) -> Result<(), Status> {
    let mut host = HOST.lock();
    let (bytes, kind) = host.ranges.remove(&address).ok_or(INVALID_VALUE)?;
    if kind != Kind::Registered {
        host.used -= bytes;
        // SAFETY: mapped by `allocate`, with this length.
        unsafe { libc::munmap(address as *mut c_void, bytes as usize) };
    }
    Ok(())
}

/// How the memory was asked for that an address lies in.
pub fn kind_of(address: u64) -> Option<Kind> {
    let host = HOST.lock();
    let (&start, &(bytes, kind)) = host.ranges.range(..=address).next_back()?;
    (address - start < bytes).then_some(kind)
}
