//! Element types on the host, and how far two results are apart.

use batchfit::shape::DType;

/// The bytes of these numbers as elements of a type, each rounded to nearest, ties to even.
pub fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        match dtype {
            DType::Float64 => bytes.extend(value.to_le_bytes()),
            DType::Float32 => bytes.extend((*value as f32).to_le_bytes()),
            DType::Float16 => bytes.extend(half_bits(*value).to_le_bytes()),
            DType::BFloat16 => bytes.extend(brain_bits(*value).to_le_bytes()),
            DType::Int64 => bytes.extend((*value as i64).to_le_bytes()),
            DType::Int32 => bytes.extend((*value as i32).to_le_bytes()),
            DType::UInt8 | DType::Bool => bytes.push(*value as u8),
            DType::Complex64 | DType::Complex128 => panic!("no kernel takes complex numbers"),
        }
    }
    bytes
}

/// The numbers that these bytes hold.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(dtype.size() as usize)
        .map(|element| match dtype {
            DType::Float64 => f64::from_le_bytes(element.try_into().unwrap()),
            DType::Float32 => f64::from(f32::from_le_bytes(element.try_into().unwrap())),
            DType::Float16 => half_value(u16::from_le_bytes(element.try_into().unwrap())),
            DType::BFloat16 => f64::from(f32::from_le_bytes([0, 0, element[0], element[1]])),
            DType::Int64 => i64::from_le_bytes(element.try_into().unwrap()) as f64,
            DType::Int32 => f64::from(i32::from_le_bytes(element.try_into().unwrap())),
            DType::UInt8 | DType::Bool => f64::from(element[0]),
            DType::Complex64 | DType::Complex128 => panic!("no kernel makes complex numbers"),
        })
        .collect()
}

/// What is left of these numbers in a type.
pub fn rounded(dtype: DType, values: &[f64]) -> Vec<f64> {
    decode(dtype, &encode(dtype, values))
}

/// The largest difference, as a share of the largest number expected.
pub fn error(actual: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let largest = expected
        .iter()
        .fold(1e-30, |largest: f64, x| largest.max(x.abs()));
    let mut worst = 0.0_f64;
    for (a, b) in actual.iter().zip(expected) {
        if a != b {
            let difference = (a - b).abs() / largest;
            worst = if difference.is_nan() {
                f64::INFINITY
            } else {
                worst.max(difference)
            };
        }
    }
    worst
}

/// What a correct kernel may differ by: a few roundings of a type.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::Float16 => 1.2e-3,
        DType::BFloat16 => 9e-3,
        DType::Float32 => 5e-6,
        _ => 0.0,
    }
}

/// Numbers that look random, from -2 to 2.
pub fn scattered(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1_u64 << 53) as f64 * 4.0 - 2.0
        })
        .collect()
}

fn half_bits(value: f64) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = value.abs();
    if magnitude.is_nan() {
        return sign | 0x7e00;
    }
    let exponent = if magnitude == 0.0 {
        -14
    } else {
        (magnitude.log2().floor() as i32).max(-14)
    };
    // Steps of the last place; the carry into the exponent falls out of the sum.
    let steps = (magnitude / 2_f64.powi(exponent - 10)).round_ties_even() as u32;
    let bits = (((exponent + 14) as u32) << 10) + steps;
    sign | bits.min(0x7c00) as u16
}

fn half_value(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f64::from(bits & 0x3ff) / 1024.0;
    sign * match exponent {
        0 => fraction * 2_f64.powi(-14),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction) * 2_f64.powi(exponent - 15),
    }
}

fn brain_bits(value: f64) -> u16 {
    let bits = (value as f32).to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[test]
fn host_conversions_hold_at_the_edges() {
    let values = [
        0.0,
        1.0,
        -1.5,
        65504.0,
        65520.0,
        2_f64.powi(-24),
        2_f64.powi(-14),
        0.1,
        2047.9,
    ];

    let halves = rounded(DType::Float16, &values);

    assert_eq!(halves[..4], values[..4]);
    assert_eq!(halves[4], f64::INFINITY);
    assert_eq!(halves[5..7], values[5..7]);
    assert_eq!(halves[7], 0.099_975_585_937_5);
    assert_eq!(halves[8], 2048.0);
    assert_eq!(
        rounded(DType::BFloat16, &[1.0, 257.0, 259.0]),
        [1.0, 256.0, 260.0]
    );
}
