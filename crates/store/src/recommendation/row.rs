//! A recommendation in memory, packed: it is small because most of its texts are those of many others.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{StoredHeadroom, StoredRecommendation};
use crate::Time;
use crate::units::Share;
use batchfit_fit::search::headroom::Doubts;

/// A text that many rows share, by its number; 0 is none.
pub(super) type TextId = u32;

/// The texts that rows share.
#[derive(Debug, Clone, Default)]
pub(super) struct TextTable {
    numbers: HashMap<Arc<str>, TextId>,
    texts: Vec<Arc<str>>,
}

impl TextTable {
    /// The number of a text that is in some row.
    pub(super) fn find(&self, text: &str) -> Option<TextId> {
        self.numbers.get(text).copied()
    }

    /// The number of a text, a new one where it has none yet.
    pub(super) fn number(&mut self, text: &str) -> TextId {
        self.find(text).unwrap_or_else(|| {
            let text: Arc<str> = text.into();
            self.texts.push(Arc::clone(&text));
            let number = TextId::try_from(self.texts.len()).expect("fewer texts than rows");
            self.numbers.insert(text, number);
            number
        })
    }

    pub(super) fn text(&self, number: TextId) -> Option<String> {
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        self.texts.get(place).map(ToString::to_string)
    }
}

/// A recommendation, packed: variable-length integers, and numbers for the texts that are shared.
#[derive(Debug, Clone)]
pub(super) struct PackedRow(Box<[u8]>);

macro_rules! packed {
    (texts: [$($text:ident),*], optional: [$($optional:ident),*], numbers: [$($number:ident),*], others: [$($other:ident: $type:ty),*]) => {
        /// What is packed.
        #[derive(Serialize, Deserialize)]
        struct Unpacked<'a> {
            id: &'a str,
            fit_id: &'a str,
            $($text: TextId,)*
            $($optional: TextId,)*
            $($number: i64,)*
            $($other: $type,)*
            created_at: i64,
            /// Who says so, the share, the outcomes and the doubts.
            headroom: (TextId, u32, i64, Doubts),
        }

        impl PackedRow {
            pub(super) fn pack(row: &StoredRecommendation, words: &mut TextTable) -> PackedRow {
                let mut number = |text: Option<&String>| text.map_or(0, |text| words.number(text));
                let headroom = row.headroom.as_ref();
                let unpacked = Unpacked {
                    id: &row.id,
                    fit_id: &row.fit_id,
                    $($text: number(Some(&row.$text)),)*
                    $($optional: number(row.$optional.as_ref()),)*
                    $($number: row.$number,)*
                    $($other: row.$other,)*
                    created_at: row.created_at.0,
                    headroom: headroom.map_or_else(Default::default, |it| (number(Some(&it.from)), it.share.0, it.outcomes, it.doubts.clone())),
                };
                let packed = postcard::to_allocvec(&unpacked).expect("texts and numbers can be packed");
                PackedRow(packed.into())
            }

            pub(super) fn unpack(&self, words: &TextTable) -> StoredRecommendation {
                let unpacked = self.unpacked();
                let (from, share, outcomes, doubts) = unpacked.headroom;
                StoredRecommendation {
                    id: unpacked.id.to_owned(),
                    fit_id: unpacked.fit_id.to_owned(),
                    $($text: words.text(unpacked.$text).unwrap_or_default(),)*
                    $($optional: words.text(unpacked.$optional),)*
                    $($number: unpacked.$number,)*
                    $($other: unpacked.$other,)*
                    headroom: words.text(from).map(|from| StoredHeadroom { share: Share(share), from, outcomes, doubts }),
                    created_at: Time(unpacked.created_at),
                    stale: None,
                }
            }
        }
    };
}
each_column!(packed);

impl PackedRow {
    fn unpacked(&self) -> Unpacked<'_> {
        postcard::from_bytes(&self.0).expect("it was packed here")
    }

    pub(super) fn id(&self) -> &str {
        self.unpacked().id
    }
}
