//! `cudaDeviceProp`, which CUDA 12 and 13 lay out differently under different names.
//!
//! Nearly every field repeats an attribute, so that the layouts are tables of places and attributes. Places are those of `driver_types.h` of
//! CUDA 12.8 and 13.0.

use std::ffi::c_int;

use super::devices::{attribute, device, of_machine};
use crate::config::card;
use crate::status::{INVALID_VALUE, Status, check, out};

/// A field: its place in CUDA 12's and in 13's structure ([`NOWHERE`] where it has none), its bytes, and its attribute.
type Field = (usize, usize, usize, c_int);

const NOWHERE: usize = usize::MAX;
const SIZE_12: usize = 1032;
const SIZE_13: usize = 1008;

const NAME: usize = 0;
const NAME_LENGTH: usize = 255;
const UUID: usize = 256;
const TOTAL_GLOBAL_MEMORY: usize = 288;

#[rustfmt::skip]
const FIELDS: &[Field] = &[
    (296, 296, 8, 8), (304, 304, 4, 12), (308, 308, 4, 10), (312, 312, 8, 11), (320, 320, 4, 1), (324, 324, 4, 2), (328, 328, 4, 3), (332, 332, 4, 4),
    (336, 336, 4, 5), (340, 340, 4, 6), (344, 344, 4, 7), (348, NOWHERE, 4, 13), (352, 352, 8, 9), (360, 360, 4, 75), (364, 364, 4, 76),
    (368, 368, 8, 14), (376, 376, 8, 51), (384, NOWHERE, 4, 15), (388, 384, 4, 16), (396, 388, 4, 18), (400, 392, 4, 19), (404, NOWHERE, 4, 20),
    (408, 396, 4, 21), (420, 404, 4, 22), (424, 408, 4, 23), (456, 440, 4, 24), (460, 444, 4, 25), (464, 448, 4, 26), (568, 552, 8, 30),
    (576, 560, 4, 31), (580, 564, 4, 32), (584, 568, 4, 33), (588, 572, 4, 34), (600, 584, 4, 40), (604, 588, 4, 41), (608, NOWHERE, 4, 36),
    (612, 592, 4, 37), (616, 596, 4, 38), (624, 604, 4, 39), (628, 608, 4, 78), (632, 612, 4, 79), (636, 616, 4, 80), (640, 624, 8, 81),
    (648, 632, 4, 82), (652, 636, 4, 83), (668, NOWHERE, 4, 87), (676, 656, 4, 89), (680, 660, 4, 90), (684, 664, 4, 91), (688, 668, 4, 95),
    (692, NOWHERE, 4, 96), (696, 672, 8, 97), (712, 688, 4, 106), (720, 696, 8, 111), (728, 704, 4, 99), (744, 720, 4, 115), (768, 744, 4, 125),
    (772, 748, 4, 120),
];

/// Bytes by which a device is told from others, also by NVML.
/// `device` is the machine's number.
pub fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"batchfit-vgpu\0\0\0";
    uuid[15] = device as u8;
    uuid
}

/// The same as text, as NVML and `CUDA_VISIBLE_DEVICES` have it.
pub fn uuid_text(device: usize) -> String {
    let hex: String = uuid(device).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn properties<const SIZE: usize>(device: usize, place: impl Fn(&Field) -> usize) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let name = card().name.as_bytes();
    put(NAME, &name[..name.len().min(NAME_LENGTH)]);
    put(UUID, &uuid(of_machine(device)));
    put(TOTAL_GLOBAL_MEMORY, &card().memory.to_le_bytes());
    for field in FIELDS {
        let (at, value) = (place(field), attribute(field.3, device).unwrap_or(0));
        if at != NOWHERE {
            put(at, &i64::from(value).to_le_bytes()[..field.2]);
        }
    }
    bytes
}

unsafe fn give<const SIZE: usize>(to: *mut u8, number: c_int, place: impl Fn(&Field) -> usize) -> Result<(), Status> {
    check(!to.is_null(), INVALID_VALUE)?;
    out(to.cast(), properties::<SIZE>(device(number)?, place))
}

runtime! {
    cudaGetDeviceProperties_v2(to: *mut u8, number: c_int) { give::<SIZE_12>(to, number, |field| field.0) }
    // Programs of CUDA 11 and older call this name too, with a structure that begins alike and is shorter: none is served.
    cudaGetDeviceProperties(to: *mut u8, number: c_int) { give::<SIZE_13>(to, number, |field| field.1) }
}

#[cfg(test)]
mod tests {
    use super::{FIELDS, NOWHERE, SIZE_12, SIZE_13};

    #[test]
    fn fields_follow_each_other_and_end_inside() {
        for (place, size) in [(0, SIZE_12), (1, SIZE_13)] {
            let mut end = 296;
            for field in FIELDS {
                let at = [field.0, field.1][place];
                if at != NOWHERE {
                    assert!(at >= end && at % field.2 == 0, "attribute {} at {at}", field.3);
                    end = at + field.2;
                }
            }
            assert!(end <= size);
        }
    }
}
