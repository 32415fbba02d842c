//! Cards of laptops.
//!
//! The maker of a laptop sets how much power its card may take, and with it the clock: those of the pages are here. Under Windows,
//! PyTorch reports a few hundred MiB more than is here.

use crate::units::Bytes;

use super::{Card, Chip, card};

/// Newest first.
#[rustfmt::skip] // A few lines a card.
pub(super) const CARDS: &[Card] = &[
    card("rtx5090-laptop", "NVIDIA GeForce RTX 5090 Laptop GPU", Bytes::mib(23_961), "published reports of it (23.4 GiB)")
        .chip(Chip::Gb203, (12, 0), 82, 1515).bus(256, 28.0).ceilings(896.0, 31.8, 31.8, 63.6, 63.6)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-5090-mobile.c4235")
        .doubtful("its memory is from a figure in GiB with one digit"),
    card("rtx5080-laptop", "NVIDIA GeForce RTX 5080 Laptop GPU", Bytes::mib(15_851), "published reports of it (15.48 GiB)")
        .chip(Chip::Gb203, (12, 0), 60, 1500).bus(256, 28.0).ceilings(896.0, 23.0, 23.0, 46.1, 46.1)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-5080-mobile.c4236")
        .doubtful("its memory is from a figure in GiB with two digits"),
    card("rtx5070ti-laptop", "NVIDIA GeForce RTX 5070 Ti Laptop GPU", Bytes::mib(11_776), "published reports of it (11.50 GiB)")
        .chip(Chip::Gb205, (12, 0), 46, 1447).bus(192, 28.0).ceilings(672.0, 17.0, 17.0, 34.1, 34.1)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-5070-ti-mobile.c4238")
        .doubtful("its memory is from a figure in GiB with two digits"),
    card("rtx5070-laptop", "NVIDIA GeForce RTX 5070 Laptop GPU", Bytes::mib(7_680), "published reports of it (7.5 GiB)")
        .chip(Chip::Gb206, (12, 0), 36, 1425).bus(128, 24.0).ceilings(384.0, 13.1, 13.1, 26.3, 26.3)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-5070-mobile.c4237")
        .doubtful("its memory is from a figure in GiB with one digit"),
    card("rtx5060-laptop", "NVIDIA GeForce RTX 5060 Laptop GPU", Bytes::mib(7_710), "published reports of it (7.53 GiB)")
        .chip(Chip::Gb206, (12, 0), 26, 1455).bus(128, 24.0).ceilings(384.0, 9.7, 9.7, 19.4, 19.4)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-5060-mobile.c4230")
        .doubtful("its memory is from a figure in GiB with two digits"),
    card("rtx4090-laptop", "NVIDIA GeForce RTX 4090 Laptop GPU", Bytes::mib(15_944), "PyTorch's device properties of an RTX 4080 SUPER as published (15,944 MiB)")
        .chip(Chip::Ad103, (8, 9), 76, 1695).bus(256, 18.0).ceilings(576.0, 33.0, 33.0, 66.0, 66.0)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4090-mobile.c3949")
        .doubtful("its memory is that of an RTX 4080 SUPER"),
    card("rtx4080-laptop", "NVIDIA GeForce RTX 4080 Laptop GPU", Bytes::mib(11_850), "hashcat's list of devices of an RTX 4070 as published (11,850 MiB)")
        .chip(Chip::Ad104, (8, 9), 58, 1665).bus(192, 18.0).ceilings(432.0, 24.7, 24.7, 49.4, 49.4)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4080-mobile.c3947")
        .doubtful("its memory is that of an RTX 4070"),
    card("rtx4070-laptop", "NVIDIA GeForce RTX 4070 Laptop GPU", Bytes::mib(7_806), "PyTorch's device properties as published (7,806 MiB)")
        .chip(Chip::Ad106, (8, 9), 36, 1695).bus(128, 16.0).ceilings(256.0, 15.6, 15.6, 31.2, 31.2)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4070-mobile.c3944"),
    card("rtx4060-laptop", "NVIDIA GeForce RTX 4060 Laptop GPU", Bytes::mib(7_806), "PyTorch's device properties as published (7,806 MiB)")
        .chip(Chip::Ad107, (8, 9), 24, 1890).bus(128, 16.0).ceilings(256.0, 11.6, 11.6, 23.2, 23.2)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4060-mobile.c3946"),
    card("rtx4050-laptop", "NVIDIA GeForce RTX 4050 Laptop GPU", Bytes::mib(5_806), "what PyTorch is published to report (5.67 GiB)")
        .chip(Chip::Ad107, (8, 9), 20, 1755).bus(96, 16.0).ceilings(192.0, 9.0, 9.0, 18.0, 18.0)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4050-mobile.c3953")
        .doubtful("its memory is from a figure in GiB with two digits"),
    card("rtx3080ti-laptop", "NVIDIA GeForce RTX 3080 Ti Laptop GPU", Bytes::mib(15_993), "PyTorch's device properties of an RTX 3080 for laptops as published (15,993 MiB)")
        .chip(Chip::Ga103, (8, 6), 58, 1260).bus(256, 16.0).ceilings(512.0, 18.7, 18.7, 37.4, 37.4)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3080-ti-mobile.c3840")
        .doubtful("its memory is that of the RTX 3080 for laptops"),
    card("rtx3080-laptop-16g", "NVIDIA GeForce RTX 3080 Laptop GPU", Bytes::mib(15_993), "PyTorch's device properties as published (15,993 MiB)")
        .chip(Chip::Ga104, (8, 6), 48, 1545).bus(256, 14.0).ceilings(448.0, 19.0, 19.0, 38.0, 38.0)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3080-mobile.c3684"),
    card("rtx3080-laptop-8g", "NVIDIA GeForce RTX 3080 Laptop GPU", Bytes::mib(7_850), "llama.cpp's list of devices of an RTX 3070 Ti for laptops as published (7,850 MiB)")
        .chip(Chip::Ga104, (8, 6), 48, 1545).bus(256, 14.0).ceilings(448.0, 19.0, 19.0, 38.0, 38.0)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3080-mobile.c3684")
        .doubtful("its memory is that of the RTX 3070 Ti for laptops"),
    card("rtx3070ti-laptop", "NVIDIA GeForce RTX 3070 Ti Laptop GPU", Bytes::mib(7_850), "llama.cpp's list of devices as published (7,850 MiB)")
        .chip(Chip::Ga104, (8, 6), 46, 1410).bus(256, 14.0).ceilings(448.0, 16.6, 16.6, 33.2, 33.2)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3070-ti-mobile.c3852"),
    card("rtx3070-laptop", "NVIDIA GeForce RTX 3070 Laptop GPU", Bytes::mib(7_982), "published reports of it (7,982 MiB)")
        .chip(Chip::Ga104, (8, 6), 40, 1560).bus(256, 14.0).ceilings(448.0, 16.0, 16.0, 31.9, 31.9)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3070-mobile.c3712"),
    card("rtx3060-laptop", "NVIDIA GeForce RTX 3060 Laptop GPU", Bytes::mib(5_806), "published reports of it (5,806 MiB)")
        .chip(Chip::Ga106, (8, 6), 30, 1425).bus(192, 14.0).ceilings(336.0, 10.9, 10.9, 21.9, 21.9)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3060-mobile.c3757"),
];
