//! What a compiled module says of its kernels: their names, parameters, registers, shared and local memory.
//!
//! A cubin is an ELF file. For each kernel `k` it has a section `.text.k`, and `.nv.info.k` with records of a format byte, an attribute byte
//! and 16 bits: the value itself or the length of what follows. That is how `cuobjdump` and `nvdisasm` print it; nothing here is needed to
//! run anything, so what is not understood is left out.

use std::ffi::CString;

/// A kernel.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    pub name: CString,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory that it declares.
    pub shared: u32,
    /// Bytes of local memory of a thread: spilled registers, above all.
    pub local: u32,
    /// Threads that a block may have; 0 where it does not say.
    pub most_threads: u32,
    /// Offset and size of each parameter.
    pub parameters: Vec<(u16, u16)>,
}

/// Larger images are not looked into.
const LARGEST: u64 = 1 << 30;

/// `EIATTR_MAX_THREADS`, `EIATTR_FRAME_SIZE`, `EIATTR_KPARAM_INFO`, `EIATTR_REGCOUNT`.
const MOST_THREADS: u8 = 0x05;
const FRAME_SIZE: u8 = 0x11;
const PARAMETER: u8 = 0x17;
const REGISTERS: u8 = 0x2f;
/// `EIFMT_SVAL`: the 16 bits are a length.
const WITH_LENGTH: u8 = 4;

fn at<const SIZE: usize>(bytes: &[u8], at: usize) -> Option<[u8; SIZE]> {
    bytes.get(at..at.checked_add(SIZE)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], place: usize) -> Option<u16> {
    at(bytes, place).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], place: usize) -> Option<u32> {
    at(bytes, place).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], place: usize) -> Option<u64> {
    at(bytes, place).map(u64::from_le_bytes)
}

/// A section: its name, its bytes, and how many it takes when loaded.
struct Section<'a> {
    name: &'a [u8],
    bytes: &'a [u8],
    size: u64,
    /// The second half of `sh_info`: for code, the symbol of the kernel.
    symbol: u32,
}

fn sections(image: &[u8]) -> Option<Vec<Section<'_>>> {
    let table = usize::try_from(u64_at(image, 40)?).ok()?;
    let (each, count, names) = (u16_at(image, 58)? as usize, u16_at(image, 60)? as usize, u16_at(image, 62)? as usize);
    let header = |index: usize| image.get(table.checked_add(index * each)?..)?.get(..64);
    let body = |header: &[u8]| {
        let (start, size) = (u64_at(header, 24)? as usize, u64_at(header, 32)? as usize);
        image.get(start..start.checked_add(size)?)
    };
    let names = body(header(names)?)?;
    let section = |index: usize| {
        let header = header(index)?;
        let name = names.get(u32_at(header, 0)? as usize..)?.split(|&byte| byte == 0).next()?;
        // `SHT_NOBITS`: shared memory has a size and no bytes.
        let bytes = if u32_at(header, 4)? == 8 { &[] } else { body(header)? };
        Some(Section { name, bytes, size: u64_at(header, 32)?, symbol: u32_at(header, 44)? & 0xff_ffff })
    };
    (0..count).map(section).collect()
}

/// The records of a `.nv.info` section: attribute and value.
fn records(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut found = Vec::new();
    while let [format, attribute, rest @ ..] = bytes {
        let is_long = *format == WITH_LENGTH;
        let length = if is_long { u16_at(rest, 0).unwrap_or(0).into() } else { 0 };
        let Some((value, next)) = rest.split_at_checked(2 + length) else {
            break;
        };
        found.push((*attribute, if is_long { &value[2..] } else { value }));
        bytes = next;
    }
    found
}

/// The kernels of a cubin; `None` for what is none.
pub fn kernels(image: &[u8]) -> Option<Vec<Kernel>> {
    let sections = sections(image)?;
    let named = |name: &[u8]| sections.iter().find(|section| section.name == name);
    // Of all kernels, by their symbols: (symbol, value).
    let common = named(b".nv.info").map(|section| records(section.bytes)).unwrap_or_default();
    let of_symbol = |symbol: u32, wanted: u8| {
        let mut values = common.iter().filter(|record| record.0 == wanted && u32_at(record.1, 0) == Some(symbol));
        values.next().and_then(|record| u32_at(record.1, 4)).unwrap_or(0)
    };
    let kernel = |code: &Section<'_>| {
        let name = code.name.strip_prefix(b".text.")?;
        let own = named(&[b".nv.info.", name].concat()).map(|section| records(section.bytes)).unwrap_or_default();
        let mut parameters: Vec<(u16, u16)> = own
            .iter()
            .filter(|record| record.0 == PARAMETER)
            // An index, ordinal and offset of 16 bits, and a word whose upper 14 bits are the size.
            .filter_map(|record| Some((u16_at(record.1, 6)?, (u32_at(record.1, 8)? >> 18) as u16)))
            .collect();
        parameters.sort_unstable();
        let threads = own.iter().find(|record| record.0 == MOST_THREADS);
        Some(Kernel {
            name: CString::new(name).ok()?,
            registers: of_symbol(code.symbol, REGISTERS),
            shared: named(&[b".nv.shared.", name].concat()).map_or(0, |section| section.size as u32),
            local: of_symbol(code.symbol, FRAME_SIZE),
            most_threads: threads.and_then(|record| u32_at(record.1, 0)).unwrap_or(0),
            parameters,
        })
    };
    Some(sections.iter().filter_map(kernel).collect())
}

/// The length of an ELF image, of which only the address is given; `None` for what is none.
/// Safety: `image` is what a caller passes as a module: at least 4 bytes, and an ELF file if it begins as one.
pub unsafe fn image<'a>(image: *const u8) -> Option<&'a [u8]> {
    let magic = std::slice::from_raw_parts(image, 4);
    if magic != b"\x7fELF" {
        return None;
    }
    let header = std::slice::from_raw_parts(image, 64);
    let (table, programs) = (u64_at(header, 40)?, u64_at(header, 32)?);
    let sections_end = table.checked_add(u64::from(u16_at(header, 58)?) * u64::from(u16_at(header, 60)?))?;
    // Program headers come last in a cubin.
    let programs_end = programs.checked_add(u64::from(u16_at(header, 54)?) * u64::from(u16_at(header, 56)?))?;
    let length = sections_end.max(programs_end);
    (length <= LARGEST).then(|| std::slice::from_raw_parts(image, length as usize))
}

#[cfg(test)]
mod tests {
    use super::kernels;

    /// An image of one section of code, its information, and the names of both.
    fn image() -> Vec<u8> {
        let names = b"\0.text.k\0.nv.info.k\0.nv.info\0";
        let parameter = [4, 0x17, 12, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0];
        let registers = [4, 0x2f, 8, 0, 1, 0, 0, 0, 40, 0, 0, 0];
        let mut image = b"\x7fELF".to_vec();
        image.resize(64, 0);
        let mut table = Vec::new();
        for (name, bytes, symbol) in [(0, &names[..], 0), (1, &[], 1), (9, &parameter[..], 0), (20, &registers[..], 0)] {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&u32::to_le_bytes(name));
            header[24..32].copy_from_slice(&(image.len() as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            header[44..48].copy_from_slice(&u32::to_le_bytes(symbol));
            image.extend(bytes);
            table.extend(header);
        }
        let start = image.len() as u64;
        image[40..48].copy_from_slice(&start.to_le_bytes());
        image[58..64].copy_from_slice(&[64, 0, 4, 0, 0, 0]);
        image.extend(table);
        image
    }

    #[test]
    fn an_image_says_what_its_kernels_take() {
        let found = kernels(&image()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_c_str(), found[0].registers), (c"k", 40));
        assert_eq!(found[0].parameters, [(8, 4)]);
    }

    #[test]
    fn a_damaged_image_is_read_to_its_end_at_most() {
        let whole = image();
        for end in 0..whole.len() {
            kernels(&whole[..end]);
        }
        for place in 0..whole.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut image = whole.clone();
                image[place..(place + 8).min(whole.len())].fill(value);
                kernels(&image);
                image[place..].fill(value);
                kernels(&image);
            }
        }
    }
}
