//! The card and the run, as `batchfit run` wrote them down.
//!
//! A file of lines, `key value`, the first of which is [`HEAD`]; its path is in the environment ([`VARIABLE`]). It is read once, when something
//! is first asked. Without it there is no device.

use std::collections::HashMap;
use std::io::Write;
use std::sync::OnceLock;

/// Where the file's path is.
pub const VARIABLE: &str = "BATCHFIT_VGPU";

/// The first line: of what kind and version the file is.
pub const HEAD: &str = "batchfit-vgpu 1";

/// What a card says of itself; memory in bytes, clocks in kHz.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Card {
    /// What the driver calls it.
    pub name: String,
    /// All of its memory.
    pub memory: u64,
    /// What a process takes before its first allocation.
    pub context: u64,
    /// The part of it that is there before the first kernel.
    pub bare_context: u64,
    /// Compute capability.
    pub major: i32,
    /// Compute capability, after the point.
    pub minor: i32,
    /// Multiprocessors.
    pub multiprocessors: i32,
    /// Shared memory that a block may ask for.
    pub shared_per_block_optin: i32,
    /// Shared memory of a multiprocessor.
    pub shared_per_multiprocessor: i32,
    /// Threads of a multiprocessor.
    pub threads_per_multiprocessor: i32,
    /// Blocks of a multiprocessor.
    pub blocks_per_multiprocessor: i32,
    /// The L2 cache.
    pub l2_cache: i32,
    /// The clock of the multiprocessors.
    pub clock: i32,
    /// The clock of its memory.
    pub memory_clock: i32,
    /// Bits of the bus.
    pub bus: i32,
}

impl Card {
    /// Nanoseconds in which its memory moves so many bytes.
    pub fn moves(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(4_000_000) / (self.memory_clock as u64 * self.bus as u64).max(1)
    }

    /// Nanoseconds in which it multiplies and adds so often: of what its multiprocessors can, the part that an H200 reached in products (700 TFLOPS).
    pub fn multiplies(&self, products: u64, is_float32: bool) -> u64 {
        let each = [350, 700, 1350][usize::from(self.major >= 9) + usize::from(self.major >= 9 || (self.major, self.minor) == (8, 0))];
        let all = self.multiprocessors as u64 * self.clock as u64 * each / 1_000_000;
        2_000 + products / (if is_float32 { all / 8 } else { all }).max(1)
    }
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The card, of which there are several alike.
    pub card: Card,
    /// How many.
    pub devices: i32,
    /// CUDA's version, 13000 for 13.0.
    pub cuda: i32,
    /// Where `batchfit run` listens.
    pub socket: Option<String>,
    /// Python that watches the script, and loads what computes values ([`crate::python`]).
    pub hooks: Option<String>,
    /// Bytes of pinned and managed memory that may be taken of the host.
    pub host_memory: u64,
    /// Where launches are written to.
    pub launches: Option<String>,
}

/// The run, or `None` where there is no virtual GPU.
pub fn config() -> Option<&'static Config> {
    static CONFIG: OnceLock<Option<Config>> = OnceLock::new();
    let read = || {
        let path = std::env::var_os(VARIABLE)?;
        let text = std::fs::read_to_string(&path);
        let parsed = text.map_err(|error| error.to_string()).and_then(|text| parse(&text));
        match parsed {
            Ok(config) => Some(config),
            Err(error) => {
                // As `eprintln`, which would panic where nobody can be told.
                let _ = writeln!(std::io::stderr(), "batchfit: no virtual GPU: {}: {error}", path.display());
                None
            }
        }
    };
    CONFIG.get_or_init(read).as_ref()
}

/// How many devices the machine has; a process may see fewer ([`crate::runtime::devices::visible`]).
pub fn devices() -> i32 {
    config().map_or(0, |config| config.devices)
}

/// The card; without a configuration one with nothing, which nobody is told of.
pub fn card() -> &'static Card {
    static NONE: OnceLock<Card> = OnceLock::new();
    config().map_or_else(|| NONE.get_or_init(Card::default), |config| &config.card)
}

/// Reads the file.
pub fn parse(text: &str) -> Result<Config, String> {
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        return Err(format!("its first line is not `{HEAD}`"));
    }
    let fields: HashMap<&str, &str> = lines.filter_map(|line| line.split_once(' ')).collect();
    let text = |key: &str| fields.get(key).map(|text| (*text).to_owned());
    let wide = |key: &str| {
        let text = fields.get(key).ok_or(format!("it lacks `{key}`"))?;
        text.parse::<u64>().map_err(|_| format!("`{key} {text}` is no number"))
    };
    let number = |key: &str| i32::try_from(wide(key)?).map_err(|_| format!("`{key}` is too large"));
    let config = Config {
        card: Card {
            name: text("name").ok_or("it lacks `name`")?,
            memory: wide("memory")?,
            context: wide("context")?,
            bare_context: wide("bare_context")?,
            major: number("major")?,
            minor: number("minor")?,
            multiprocessors: number("multiprocessors")?,
            shared_per_block_optin: number("shared_per_block_optin")?,
            shared_per_multiprocessor: number("shared_per_multiprocessor")?,
            threads_per_multiprocessor: number("threads_per_multiprocessor")?,
            blocks_per_multiprocessor: number("blocks_per_multiprocessor")?,
            l2_cache: number("l2_cache")?,
            clock: number("clock")?,
            memory_clock: number("memory_clock")?,
            bus: number("bus")?,
        },
        devices: number("devices")?,
        cuda: number("cuda")?,
        socket: text("socket"),
        hooks: text("hooks"),
        host_memory: wide("host_memory")?,
        launches: text("launches"),
    };
    let most = crate::memory::MOST_DEVICES as i32;
    if !(1..=most).contains(&config.devices) {
        return Err(format!("`devices` is not between 1 and {most}"));
    }
    if config.card.memory >= crate::memory::SPAN / 4 {
        return Err("`memory` is larger than the addresses of a device".to_owned());
    }
    if config.card.context > config.card.memory {
        return Err("`context` is larger than `memory`".to_owned());
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn cards_have_addresses_enough_and_nothing_larger_is_taken() {
        let of = |gib: u64| parse(&include_str!("../session-example.txt").replace("85017493504", &(gib << 30).to_string()));
        // A B300 has 288 GiB.
        assert_eq!(of(288).map(|config| config.card.memory), Ok(288 << 30));
        assert!(of(u64::MAX >> 30).is_err());
    }
}
