//! Names for rows: short, opaque, and sorted by age.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Mutex;

use super::Time;

/// Crockford's base 32: digits and letters that are hard to confuse.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Makes ids: nine characters of time, seven of chance (35 bits).
///
/// The ids of one `Ids` sort in the order in which they were made, also within a millisecond. Those of
/// two processes sort to the millisecond.
#[derive(Debug, Default)]
pub struct Ids {
    last: Mutex<i64>,
}

impl Ids {
    /// A fresh id.
    pub fn next(&self, now: Time) -> String {
        let mut last = self
            .last
            .lock()
            .expect("nothing panics while the last id is held");
        *last = now.0.max(*last + 1);
        let mut text = String::with_capacity(16);
        push(&mut text, last.unsigned_abs(), 9);
        push(&mut text, chance(), 7);
        text
    }
}

/// Sixty-four bits of chance: the standard library seeds each hasher from the system. They are no secret.
pub fn chance() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Appends the low `5 * characters` bits of `bits`, the highest first.
fn push(text: &mut String, bits: u64, characters: u32) {
    for character in (0..characters).rev() {
        let index = (bits >> (5 * character)) & 31;
        text.push(char::from(
            ALPHABET[usize::try_from(index).expect("below 32")],
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_in_the_order_in_which_they_were_made() {
        let ids = Ids::default();

        let made = [5, 5, 4, 2_000_000_000_000].map(|now| ids.next(Time(now)));

        assert!(made.is_sorted(), "{made:?}");
        assert!(made.iter().all(|id| id.len() == 16), "{made:?}");
    }
}
