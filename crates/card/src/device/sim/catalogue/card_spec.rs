//! What cards are made of by public pages, and which pages those are.

use serde::Deserialize;

/// What a card is made of.
///
/// Chip, clock, bus and data rate were held on 2026-11-23 against `TechPowerUp`'s database of GPUs, as a public copy has it
/// (`data/nvidia/all.json` of github.com/reox007/RightNow-GPU-Database), or against the page that is named where that has no entry.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardSpec {
    /// What it is cut from.
    pub chip: Chip,
    /// The boost clock in MHz.
    pub boost_mhz: u32,
    /// How wide the way to its memory is, in bits.
    pub bus: u32,
    /// What each of these carries in a second, in Gbit. Those of the H200 and the H100 of 80 GB are twice the 3,201 and the 2,619 MHz that the
    /// driver says of one.
    pub rate: f64,
    /// The page that has these figures.
    pub page: &'static str,
    /// The page that has its throughput in TF32, float16 and bfloat16; where there is none, they are calculated from multiprocessors,
    /// clock, and what a multiprocessor of its architecture does in a clock.
    pub throughput: Option<&'static str>,
    /// What could not be held against a page, or what pages say that differs.
    pub doubtful: Option<&'static str>,
}

/// A chip that cards are cut from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "each is what NVIDIA calls it")]
pub enum Chip {
    Gv100,
    Tu102,
    Tu104,
    Tu106,
    Ga100,
    Ga102,
    Ga103,
    Ga104,
    Ga106,
    Ga107,
    Ad102,
    Ad103,
    Ad104,
    Ad106,
    Ad107,
    Gh100,
    /// Two of them make a card.
    Gb100,
    Gb202,
    Gb203,
    Gb205,
    Gb206,
}

impl Chip {
    /// Its compute capability, of which the minor may be newer, and the multiprocessors of a whole one (of the two that a card has).
    ///
    /// As generally known; those of GH100, AD102 and GB202 were found on public pages, the others are only above every card that the database has.
    pub const fn whole(self) -> ((u32, u32), u64) {
        match self {
            Chip::Gv100 => ((7, 0), 84),
            Chip::Tu102 => ((7, 5), 72),
            Chip::Tu104 => ((7, 5), 48),
            Chip::Tu106 => ((7, 5), 36),
            Chip::Ga100 => ((8, 0), 128),
            Chip::Ga102 => ((8, 6), 84),
            Chip::Ga103 => ((8, 6), 60),
            Chip::Ga104 => ((8, 6), 48),
            Chip::Ga106 => ((8, 6), 30),
            Chip::Ga107 => ((8, 6), 20),
            Chip::Ad102 => ((8, 9), 144),
            Chip::Ad103 => ((8, 9), 80),
            Chip::Ad104 => ((8, 9), 60),
            Chip::Ad106 => ((8, 9), 36),
            Chip::Ad107 => ((8, 9), 24),
            Chip::Gh100 => ((9, 0), 144),
            Chip::Gb100 => ((10, 0), 160),
            Chip::Gb202 => ((12, 0), 192),
            Chip::Gb203 => ((12, 0), 84),
            Chip::Gb205 => ((12, 0), 50),
            Chip::Gb206 => ((12, 0), 36),
        }
    }
}
