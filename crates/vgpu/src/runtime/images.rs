//! What a program's code was compiled for, by the headers of its images (`fatbinary_section.h` and what `cuobjdump` prints): CUB picks its
//! settings by what `cudaFuncGetAttributes` says of that, and refuses what it was not compiled for.

use std::ffi::{c_int, c_void};

/// `__fatBinC_Wrapper_t`, and the beginning of what it points to.
const WRAPPER: u32 = 0x4662_43b1;
const CONTAINER: u32 = 0xba55_ed50;
const PTX: u16 = 1;
const ELF: u16 = 2;

/// An image: whether it is machine code, and its architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image(bool, c_int);

/// Safety: a wrapper as a compiler writes it.
pub unsafe fn of_wrapper(wrapper: *const c_void) -> Vec<Image> {
    let wrapper = wrapper.cast::<u32>();
    if wrapper.is_null() || wrapper.read_unaligned() != WRAPPER {
        return Vec::new();
    }
    let container = wrapper.add(2).cast::<*const u8>().read_unaligned();
    if container.is_null() || container.cast::<u32>().read_unaligned() != CONTAINER {
        return Vec::new();
    }
    let header = container.add(6).cast::<u16>().read_unaligned() as usize;
    let size = container.add(8).cast::<u64>().read_unaligned() as usize;
    of_entries(std::slice::from_raw_parts(container.add(header), size))
}

fn of_entries(mut bytes: &[u8]) -> Vec<Image> {
    let mut found = Vec::new();
    // Kind, size of the header, size of the image, architecture.
    while let Some(header) = bytes.get(..32) {
        let u32_at = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let kind = u16::from_le_bytes([header[0], header[1]]);
        if kind == PTX || kind == ELF {
            found.push(Image(kind == ELF, u32_at(28) as c_int));
        }
        let size = u64::from(u32_at(4)) + (u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32);
        bytes = usize::try_from(size.max(1)).ok().and_then(|size| bytes.get(size..)).unwrap_or(&[]);
    }
    found
}

/// The versions of the PTX and of the machine code that a card runs: code for its generation, else PTX that the driver compiles for it.
pub fn versions(images: &[Image], card: c_int) -> (c_int, c_int) {
    let newest = |is_code: bool, least: c_int| {
        let fitting = images.iter().filter(|image| image.0 == is_code && (least..=card).contains(&image.1));
        fitting.map(|image| image.1).max()
    };
    let code = newest(true, card / 10 * 10).map(|version| (version, version));
    code.or_else(|| newest(false, 0).map(|version| (version, card))).unwrap_or((card, card))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_runs_the_newest_code_of_its_generation_else_ptx() {
        let mut bytes = Vec::new();
        for (kind, architecture) in [(ELF, 75_u32), (ELF, 80), (ELF, 86), (ELF, 90), (PTX, 90)] {
            let mut entry = vec![0; 64 + 8];
            entry[..2].copy_from_slice(&kind.to_le_bytes());
            entry[4] = 64;
            entry[8] = 8;
            entry[28..32].copy_from_slice(&architecture.to_le_bytes());
            bytes.extend(entry);
        }
        let images = of_entries(&bytes);

        assert_eq!(images.len(), 5);
        let asked = [75, 80, 86, 89, 90, 120, 70];
        let found = asked.map(|card| versions(&images, card));
        assert_eq!(found, [(75, 75), (80, 80), (86, 86), (86, 86), (90, 90), (90, 120), (70, 70)]);
    }
}
