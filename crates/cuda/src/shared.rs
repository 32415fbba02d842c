//! Structs that the host fills in and kernels read: what their compiler checks of them.

use std::fmt::Write as _;

/// Where the fields of a struct lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// What both sides call it.
    pub(super) name: &'static str,
    /// Bytes.
    pub(super) size: usize,
    /// Names, and bytes before each.
    pub(super) fields: &'static [(&'static str, usize)],
}

/// A struct that [`shared_with_kernels`] declared.
pub(super) trait Shared {
    const LAYOUT: Layout;
}

impl Layout {
    /// Whether a text defines the struct.
    pub(super) fn is_in(&self, text: &str) -> bool {
        text.contains(&format!("\nstruct {} {{", self.name))
    }

    /// Text that compiles behind the struct only where its fields lie at the same places. NVRTC has no header for
    /// `offsetof`; `__INTADDR__` is what its front end makes of it.
    pub(super) fn assertions(&self) -> String {
        let Layout { name, size, fields } = self;
        let mut text = format!("static_assert(sizeof({name}) == {size}, \"{name}\");\n");
        for (field, at) in *fields {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "static_assert(__INTADDR__(&(({name}*)0)->{field}) == {at}, \"{name}::{field}\");"
            );
        }
        text
    }
}

/// Declares a struct that kernels read under the same name, with the same names of fields.
macro_rules! shared_with_kernels {
    ($(#[$of_struct:meta])* $vis:vis struct $name:ident {
        $($(#[$of_field:meta])* $field_vis:vis $field:ident: $type:ty,)*
    }) => {
        #[repr(C)]
        $(#[$of_struct])*
        $vis struct $name {
            $($(#[$of_field])* $field_vis $field: $type,)*
        }

        impl $crate::shared::Shared for $name {
            const LAYOUT: $crate::shared::Layout = $crate::shared::Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: &[$((stringify!($field), std::mem::offset_of!($name, $field))),*],
            };
        }
    };
}

pub(super) use shared_with_kernels;
