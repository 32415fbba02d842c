//! An allocator that is played with, and what must hold after every step. The fuzz target in `tests/fuzz`
//! includes this file too.

use std::collections::{BTreeMap, BTreeSet};

use batchfit::alloc::{
    Address, BlockId, BlockState, CachingAllocator, Full, MIN_BLOCK, PoolKind, Reserved,
    SegmentSource, SegmentView, Settings, SimulatedMemory, Snapshot, Stream,
};
use batchfit::units::Bytes;

/// Settings to start with, and to change to at run time.
pub const SETTINGS: &[&str] = &[
    "",
    "expandable_segments:True",
    "expandable_segments:False",
    "max_split_size_mb:20",
    "max_split_size_mb:32,max_non_split_rounding_mb:24",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:0.3,max_split_size_mb:24",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,4:8,>:4]",
    "large_segment_size_mb:12",
    "large_segment_size_mb:40,expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:64,garbage_collection_threshold:0.6,\
     roundup_power2_divisions:[8:2,>:8]",
];

/// One thing that a program does to its allocator. Blocks are picked by their position among the live ones.
#[derive(Debug, Clone)]
pub enum Step {
    Alloc { stream: u8, size: u64 },
    Free(u16),
    RecordStream { block: u16, stream: u8 },
    Synchronize(u8),
    EmptyCache,
    Change(u8),
    Limit(Option<u16>),
    ResetPeaks,
}

/// A device that refuses the requests it was told to, besides those that do not fit, and panics when it is
/// used in any way but the documented one.
pub struct Moody {
    memory: SimulatedMemory,
    refusals: Vec<bool>,
    asked: usize,
    taken: BTreeMap<Address, Bytes>,
    reserved: BTreeMap<Address, (Reserved, Bytes)>,
    /// The units that have memory behind them.
    mapped: BTreeSet<Address>,
}

impl Moody {
    pub fn new(capacity: Bytes, refusals: Vec<bool>) -> Moody {
        Moody {
            memory: SimulatedMemory::new(capacity),
            refusals,
            asked: 0,
            taken: BTreeMap::new(),
            reserved: BTreeMap::new(),
            mapped: BTreeSet::new(),
        }
    }

    fn mood(&mut self, asked: Bytes) -> Result<(), Full> {
        let refuses = self.refusals.get(self.asked % self.refusals.len().max(1));
        self.asked += 1;
        if refuses == Some(&true) {
            return Err(Full { asked });
        }
        Ok(())
    }

    fn held(&self) -> Bytes {
        let taken = self.taken.values().copied();
        taken
            .chain(self.mapped.iter().map(|unit| self.around(*unit).1))
            .sum()
    }

    /// The reservation around an address, and its unit.
    fn around(&self, at: Address) -> (Reserved, Bytes) {
        let (_, found) = self.reserved.range(..=at).next_back().unwrap();
        assert!(
            at < found.0.address.offset(found.0.size),
            "{at} is reserved"
        );
        *found
    }

    fn units(&self, at: Address, size: Bytes) -> Vec<Address> {
        let (reserved, unit) = self.around(at);
        assert!(
            (at.0 - reserved.address.0).is_multiple_of(unit.0),
            "units are whole"
        );
        assert!(
            size > Bytes::ZERO && size.0.is_multiple_of(unit.0),
            "units are whole"
        );
        assert!(
            at.offset(size) <= reserved.address.offset(reserved.size),
            "units are reserved"
        );
        (0..size.0 / unit.0)
            .map(|n| Address(at.0 + n * unit.0))
            .collect()
    }
}

impl SegmentSource for Moody {
    fn take(&mut self, size: Bytes) -> Result<Address, Full> {
        self.mood(size)?;
        let address = self.memory.take(size)?;
        self.taken.insert(address, size);
        Ok(address)
    }

    fn give_back(&mut self, segment: Address, size: Bytes) {
        assert_eq!(
            self.taken.remove(&segment),
            Some(size),
            "{segment} was taken"
        );
        self.memory.give_back(segment, size);
    }

    fn reserve(&mut self, unit: Bytes) -> Result<Reserved, Full> {
        self.mood(unit)?;
        let reserved = self.memory.reserve(unit)?;
        self.reserved.insert(reserved.address, (reserved, unit));
        Ok(reserved)
    }

    fn map(&mut self, at: Address, size: Bytes) -> Result<(), Full> {
        for unit in self.units(at, size) {
            assert!(!self.mapped.contains(&unit), "{unit} is mapped already");
        }
        self.mood(size)?;
        self.memory.map(at, size)?;
        let units = self.units(at, size);
        self.mapped.extend(units);
        Ok(())
    }

    fn unmap(&mut self, at: Address, size: Bytes) {
        for unit in self.units(at, size) {
            assert!(self.mapped.remove(&unit), "{unit} is mapped");
        }
        self.memory.unmap(at, size);
    }

    fn release(&mut self, reserved: Reserved) {
        let end = reserved.address.offset(reserved.size);
        let left = self.mapped.range(reserved.address..end).next();
        assert_eq!(left, None, "nothing is mapped in what is released");
        assert!(self.reserved.remove(&reserved.address).is_some());
        self.memory.release(reserved);
    }
}

/// An allocator on a moody device, and the blocks that its caller holds.
pub struct Stage {
    pub allocator: CachingAllocator<Moody>,
    pub live: Vec<BlockId>,
}

impl Stage {
    pub fn new(device: Moody, settings: &str, limit: Option<Bytes>) -> Stage {
        let settings: Settings = settings.parse().unwrap();
        Stage {
            allocator: CachingAllocator::new(device, settings, limit),
            live: Vec::new(),
        }
    }

    pub fn play(&mut self, step: &Step) {
        let picked = |block: u16| (!self.live.is_empty()).then(|| block as usize % self.live.len());
        match *step {
            Step::Alloc { stream, size } => {
                let block = self.allocator.malloc_on(Stream(stream.into()), Bytes(size));
                self.live.extend(block);
            }
            Step::Free(block) => {
                if let Some(at) = picked(block) {
                    self.allocator.free(self.live.swap_remove(at));
                }
            }
            Step::RecordStream { block, stream } => {
                if let Some(at) = picked(block) {
                    self.allocator
                        .record_stream(self.live[at], Stream(stream.into()));
                }
            }
            Step::Synchronize(stream) => self.allocator.synchronize(Stream(stream.into())),
            Step::EmptyCache => self.allocator.empty_cache(),
            Step::Change(to) => {
                let text = SETTINGS[to as usize % SETTINGS.len()];
                // A large segment of before can be more than a size that is given now.
                if let Ok(settings) = self.allocator.settings().updated(text) {
                    self.allocator.set_settings(settings);
                }
            }
            Step::Limit(mib) => {
                self.allocator
                    .set_limit(mib.map(|mib| Bytes::mib(mib.into())));
            }
            Step::ResetPeaks => self.allocator.reset_peaks(),
        }
    }

    /// Plays a step and checks everything that must hold after it.
    pub fn play_checked(&mut self, step: &Step) {
        let before = self.allocator.stats().reserved();

        self.play(step);

        let snapshot = self.allocator.snapshot();
        check_layout(&snapshot);
        self.check_live(&snapshot);
        self.check_statistics(&snapshot);
        self.check_limit(before);
    }

    /// The caller's blocks are where the snapshot shows them, and nothing else is allocated.
    fn check_live(&self, snapshot: &Snapshot) {
        let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        let allocated = blocks.filter(|block| block.state == BlockState::ActiveAllocated);
        let mut shown: Vec<_> = allocated.map(|block| (block.address, block.size)).collect();
        let held = self.live.iter();
        let mut held: Vec<_> = held
            .map(|id| (self.allocator.address(*id), self.allocator.size(*id)))
            .collect();
        shown.sort();
        held.sort();
        assert_eq!(shown, held);
    }

    fn check_statistics(&self, snapshot: &Snapshot) {
        let stats = self.allocator.stats();
        let of = |kind| {
            let segments = snapshot.segments.iter();
            recount(segments.filter(move |segment| kind == segment.pool))
        };
        for (stats, counted) in [
            (&stats.all, recount(snapshot.segments.iter())),
            (&stats.small_pool, of(PoolKind::Small)),
            (&stats.large_pool, of(PoolKind::Large)),
        ] {
            let reported = [
                stats.allocation,
                stats.active,
                stats.segment,
                stats.inactive_split,
                stats.requested_bytes,
                stats.allocated_bytes,
                stats.active_bytes,
                stats.reserved_bytes,
                stats.inactive_split_bytes,
            ];
            assert_eq!(reported.map(|stat| stat.current), counted);
            for stat in reported {
                assert!(stat.peak >= stat.current && stat.allocated - stat.freed == stat.current);
            }
            let [.., requested, _, active, reserved, _] = counted;
            assert!(requested <= active && active <= reserved);
        }
        assert_eq!(stats.reserved(), self.allocator.source().held());
    }

    /// Nothing is taken past the limit, but for what an expandable segment rounds up to whole units: PyTorch
    /// compares the limit with the request, and then maps more.
    fn check_limit(&self, before: Bytes) {
        let Some(limit) = self.allocator.limit() else {
            return;
        };
        let unit = Bytes::mib(40);
        let settings = self.allocator.settings();
        let rounding = if settings.expandable() {
            unit
        } else {
            Bytes::ZERO
        };
        let reserved = self.allocator.stats().reserved();
        assert!(
            reserved <= before.max(limit + rounding),
            "{reserved} is past {limit}"
        );
    }

    /// Frees everything, and checks that nothing is left anywhere.
    pub fn finish(mut self) {
        for id in std::mem::take(&mut self.live) {
            self.allocator.free(id);
        }
        self.allocator.empty_cache();

        assert_eq!(self.allocator.snapshot(), Snapshot::default());
        for stats in [
            self.allocator.stats().all,
            self.allocator.stats().small_pool,
            self.allocator.stats().large_pool,
        ] {
            assert_eq!(stats.reserved_bytes.current, 0);
            assert_eq!(stats.requested_bytes.current, 0);
            assert_eq!(stats.inactive_split.current, 0);
            assert_eq!(stats.inactive_split_bytes.current, 0);
        }
        let memory = &self.allocator.source().memory;
        assert_eq!(memory.free(), memory.capacity());
        self.allocator.reset();
        assert!(self.allocator.source().reserved.is_empty());
    }
}

/// Blocks tile their segment, segments do not overlap, and no two neighbours are free.
fn check_layout(snapshot: &Snapshot) {
    let mut end_of_last = Address(0);
    for segment in &snapshot.segments {
        assert!(
            segment.address >= end_of_last,
            "segments overlap: {snapshot:?}"
        );
        let mut at = segment.address;
        for block in &segment.blocks {
            assert_eq!(block.address, at, "blocks tile {segment:?}");
            assert!(block.size >= MIN_BLOCK && block.size.0.is_multiple_of(MIN_BLOCK.0));
            assert!(
                block
                    .requested
                    .is_none_or(|requested| requested <= block.size)
            );
            at = at.offset(block.size);
        }
        assert_eq!(at, segment.address.offset(segment.size));
        for pair in segment.blocks.windows(2) {
            assert!(
                pair.iter().any(|block| block.state != BlockState::Inactive),
                "two free neighbours in {segment:?}"
            );
        }
        end_of_last = at;
    }
}

/// The statistics recounted over some segments: allocation, active, segment, inactive split; then requested,
/// allocated, active, reserved and inactive split bytes.
fn recount<'a>(segments: impl Iterator<Item = &'a SegmentView>) -> [u64; 9] {
    let mut counted = [0; 9];
    for segment in segments {
        counted[2] += u64::from(!segment.is_expandable);
        counted[7] += segment.size.0;
        for block in &segment.blocks {
            if let Some(requested) = block.requested {
                counted[1] += 1;
                counted[4] += requested.0;
                counted[6] += block.size.0;
            }
            if block.state == BlockState::ActiveAllocated {
                counted[0] += 1;
                counted[5] += block.size.0;
            }
            let splits = segment.blocks.len() > 1 && !segment.is_expandable;
            if block.state == BlockState::Inactive && splits {
                counted[3] += 1;
                counted[8] += block.size.0;
            }
        }
    }
    counted
}
