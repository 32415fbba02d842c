//! Cards for games.
//!
//! Their tensor cores add up in float32 half as fast as those of the other cards. Under Windows, PyTorch reports a few hundred MiB
//! more than is here.

use crate::units::Bytes;

use super::{Card, Chip, card};

/// Newest first.
#[rustfmt::skip] // A few lines a card.
pub(super) const CARDS: &[Card] = &[
    card("rtx5090", "NVIDIA GeForce RTX 5090", Bytes::mib(32_089), "PyTorch's published out-of-memory messages (31.34 GiB, 32,089 MiB)")
        .chip(Chip::Gb202, (12, 0), 170, 2407).bus(512, 28.0).ceilings(1792.0, 104.8, 104.8, 209.5, 209.5)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-5090.c4216"),
    card("rtx5080", "NVIDIA GeForce RTX 5080", Bytes::mib(15_840), "PyTorch's device properties as published (15,840 MiB)")
        .chip(Chip::Gb203, (12, 0), 84, 2617).bus(256, 30.0).ceilings(960.0, 56.3, 56.3, 112.6, 112.6)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-5080.c4217"),
    card("rtx5070ti", "NVIDIA GeForce RTX 5070 Ti", Bytes::mib(15_808), "llama.cpp's list of devices as published (15,808 MiB)")
        .chip(Chip::Gb203, (12, 0), 70, 2452).bus(256, 28.0).ceilings(896.0, 43.9, 43.9, 87.9, 87.9)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-5070-ti.c4243"),
    card("rtx5070", "NVIDIA GeForce RTX 5070", Bytes::mib(11_776), "what PyTorch is published to report (11.50 GiB)")
        .chip(Chip::Gb205, (12, 0), 48, 2512).bus(192, 28.0).ceilings(672.0, 30.9, 30.9, 61.7, 61.7)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-5070.c4218")
        .doubtful("its memory is from a figure in GiB with two digits"),
    card("rtx5060ti-16g", "NVIDIA GeForce RTX 5060 Ti", Bytes::mib(15_825), "llama.cpp's list of devices as published (15,825 MiB)")
        .chip(Chip::Gb206, (12, 0), 36, 2572).bus(128, 28.0).ceilings(448.0, 23.7, 23.7, 47.4, 47.4)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-5060-ti-16-gb.c4292"),
    card("rtx5060ti-8g", "NVIDIA GeForce RTX 5060 Ti", Bytes::mib(7_680), "published reports of it (7.5 GiB)")
        .chip(Chip::Gb206, (12, 0), 36, 2572).bus(128, 28.0).ceilings(448.0, 23.7, 23.7, 47.4, 47.4)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-5060-ti-8-gb.c4246")
        .doubtful("its memory is from a figure in GiB with one digit"),
    card("rtx5060", "NVIDIA GeForce RTX 5060", Bytes::mib(7_791), "what PyTorch is published to report (7.609 GiB)")
        .chip(Chip::Gb206, (12, 0), 30, 2497).bus(128, 28.0).ceilings(448.0, 19.2, 19.2, 38.4, 38.4)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-5060.c4219"),
    card("rtx4090", "NVIDIA GeForce RTX 4090", Bytes::mib(24_207), "PyTorch's published out-of-memory messages (23.64 GiB)")
        .chip(Chip::Ad102, (8, 9), 128, 2520).bus(384, 21.008).ceilings(1008.0, 82.6, 82.6, 165.2, 165.2)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4090.c3889"),
    card("rtx4090d", "NVIDIA GeForce RTX 4090 D", Bytes::mib(24_210), "PyTorch's device properties as published (24,210 MiB)")
        .chip(Chip::Ad102, (8, 9), 114, 2520).bus(384, 21.008).ceilings(1008.0, 73.5, 73.5, 147.1, 147.1)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4090-d.c4189"),
    card("rtx4080super", "NVIDIA GeForce RTX 4080 SUPER", Bytes::mib(15_944), "PyTorch's device properties as published (15,944 MiB)")
        .chip(Chip::Ad103, (8, 9), 80, 2550).bus(256, 23.008).ceilings(736.0, 52.2, 52.2, 104.4, 104.4)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4080-super.c4182"),
    card("rtx4080", "NVIDIA GeForce RTX 4080", Bytes::mib(15_945), "hashcat's list of devices as published (15,945 MiB)")
        .chip(Chip::Ad103, (8, 9), 76, 2505).bus(256, 22.4).ceilings(717.0, 48.7, 48.7, 97.5, 97.5)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4080.c3888"),
    card("rtx4070tisuper", "NVIDIA GeForce RTX 4070 Ti SUPER", Bytes::mib(15_934), "PyTorch's device properties as published (15,934 MiB)")
        .chip(Chip::Ad103, (8, 9), 66, 2610).bus(256, 21.008).ceilings(672.0, 44.1, 44.1, 88.2, 88.2)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4070-ti-super.c4187"),
    card("rtx4070ti", "NVIDIA GeForce RTX 4070 Ti", Bytes::mib(12_007), "PyTorch's device properties as published (12,007 MiB)")
        .chip(Chip::Ad104, (8, 9), 60, 2610).bus(192, 21.008).ceilings(504.0, 40.1, 40.1, 80.2, 80.2)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4070-ti.c3950"),
    card("rtx4070super", "NVIDIA GeForce RTX 4070 SUPER", Bytes::mib(11_857), "PyTorch's published out-of-memory messages (11.58 GiB)")
        .chip(Chip::Ad104, (8, 9), 56, 2475).bus(192, 21.008).ceilings(504.0, 35.5, 35.5, 71.0, 71.0)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4070-super.c4186"),
    card("rtx4070", "NVIDIA GeForce RTX 4070", Bytes::mib(11_850), "hashcat's list of devices as published (11,850 MiB)")
        .chip(Chip::Ad104, (8, 9), 46, 2475).bus(192, 21.008).ceilings(504.0, 29.1, 29.1, 58.3, 58.3)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4070.c3924"),
    card("rtx4060ti-16g", "NVIDIA GeForce RTX 4060 Ti", Bytes::mib(15_944), "llama.cpp's list of devices as published (15,944 MiB)")
        .chip(Chip::Ad106, (8, 9), 34, 2535).bus(128, 18.0).ceilings(288.0, 22.1, 22.1, 44.1, 44.1)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4060-ti-16-gb.c4155"),
    card("rtx4060ti-8g", "NVIDIA GeForce RTX 4060 Ti", Bytes::mib(7_806), "PyTorch's device properties as published (7,806 MiB)")
        .chip(Chip::Ad106, (8, 9), 34, 2535).bus(128, 18.0).ceilings(288.0, 22.1, 22.1, 44.1, 44.1)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4060-ti-8-gb.c3890"),
    card("rtx4060", "NVIDIA GeForce RTX 4060", Bytes::mib(7_807), "PyTorch's device properties as published (7,807 MiB)")
        .chip(Chip::Ad107, (8, 9), 24, 2460).bus(128, 17.0).ceilings(272.0, 15.1, 15.1, 30.2, 30.2)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-4060.c4107"),
    card("rtx3090ti", "NVIDIA GeForce RTX 3090 Ti", Bytes::mib(24_114), "PyTorch's device properties as published (24,114 MiB)")
        .chip(Chip::Ga102, (8, 6), 84, 1860).bus(384, 21.008).ceilings(1008.0, 40.0, 40.0, 80.0, 80.0)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3090-ti.c3829"),
    card("rtx3090", "NVIDIA GeForce RTX 3090", Bytes::mib(24_259), "PyTorch's device properties as published (24,259 MiB)")
        .chip(Chip::Ga102, (8, 6), 82, 1695).bus(384, 19.504).ceilings(936.0, 35.6, 35.6, 71.0, 71.0)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3090.c3622"),
    card("rtx3080ti", "NVIDIA GeForce RTX 3080 Ti", Bytes::mib(12_054), "PyTorch's device properties as published (12,054 MiB)")
        .chip(Chip::Ga102, (8, 6), 80, 1665).bus(384, 19.008).ceilings(912.0, 34.1, 34.1, 68.2, 68.2)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3080-ti.c3735"),
    card("rtx3080-12g", "NVIDIA GeForce RTX 3080", Bytes::mib(12_117), "PyTorch's device properties as published (12,117 MiB)")
        .chip(Chip::Ga102, (8, 6), 70, 1710).bus(384, 19.008).ceilings(912.0, 30.6, 30.6, 61.3, 61.3)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3080-12-gb.c3834"),
    card("rtx3080-10g", "NVIDIA GeForce RTX 3080", Bytes::mib(10_002), "PyTorch's device properties as published (10,002 MiB)")
        .chip(Chip::Ga102, (8, 6), 68, 1710).bus(320, 19.008).ceilings(760.0, 29.8, 29.8, 59.5, 59.5)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3080.c3621"),
    card("rtx3070ti", "NVIDIA GeForce RTX 3070 Ti", Bytes::mib(7_840), "llama.cpp's list of devices as published (7,840 MiB)")
        .chip(Chip::Ga104, (8, 6), 48, 1770).bus(256, 19.008).ceilings(608.0, 21.7, 21.7, 43.5, 43.5)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3070-ti.c3675"),
    card("rtx3070", "NVIDIA GeForce RTX 3070", Bytes::mib(7_753), "PyTorch's device properties as published (7,753 MiB)")
        .chip(Chip::Ga104, (8, 6), 46, 1725).bus(256, 14.0).ceilings(448.0, 20.3, 20.3, 40.6, 40.6)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3070.c3674"),
    card("rtx3060ti", "NVIDIA GeForce RTX 3060 Ti", Bytes::mib(7_833), "PyTorch's device properties as published (7,833 MiB)")
        .chip(Chip::Ga104, (8, 6), 38, 1665).bus(256, 14.0).ceilings(448.0, 16.2, 16.2, 32.4, 32.4)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3060-ti.c3681"),
    card("rtx3060-12g", "NVIDIA GeForce RTX 3060", Bytes::mib(11_931), "PyTorch's device properties as published (11,931 MiB)")
        .chip(Chip::Ga106, (8, 6), 28, 1777).bus(192, 15.0).ceilings(360.0, 12.7, 12.7, 25.5, 25.5)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3060-12-gb.c3682"),
    card("rtx3050-8g", "NVIDIA GeForce RTX 3050", Bytes::mib(7_833), "what PyTorch is published to report (7.65 GiB)")
        .chip(Chip::Ga106, (8, 6), 20, 1777).bus(128, 14.0).ceilings(224.0, 9.1, 9.1, 18.2, 18.2)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3050-8-gb.c3858")
        .doubtful("its memory is from a figure in GiB with two digits"),
    card("rtx3050-6g", "NVIDIA GeForce RTX 3050", Bytes::mib(5_803), "llama.cpp's list of devices as published (5,803 MiB)")
        .chip(Chip::Ga107, (8, 6), 18, 1470).bus(96, 14.0).ceilings(168.0, 6.8, 6.8, 13.5, 13.5)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-3050-6-gb.c4188"),
    card("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", Bytes::mib(11_009), "PyTorch's device properties as published (11,009 MiB)")
        .chip(Chip::Tu102, (7, 5), 68, 1545).bus(352, 14.0).ceilings(616.0, 13.4, 13.4, 53.8, 13.4)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-2080-ti.c3305"),
    card("rtx2080super", "NVIDIA GeForce RTX 2080 SUPER", Bytes::mib(7_969), "hashcat's list of devices as published (7,969 MiB)")
        .chip(Chip::Tu104, (7, 5), 48, 1815).bus(256, 15.496).ceilings(496.0, 11.2, 11.2, 44.6, 11.2)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-2080-super.c3439"),
    card("rtx2080", "NVIDIA GeForce RTX 2080", Bytes::mib(7_783), "hashcat's list of devices as published (7,783 MiB)")
        .chip(Chip::Tu104, (7, 5), 46, 1710).bus(256, 14.0).ceilings(448.0, 10.1, 10.1, 40.3, 10.1)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-2080.c3224"),
    card("rtx2070super", "NVIDIA GeForce RTX 2070 SUPER", Bytes::mib(7_972), "PyTorch's device properties as published (7,972 MiB)")
        .chip(Chip::Tu104, (7, 5), 40, 1770).bus(256, 14.0).ceilings(448.0, 9.1, 9.1, 36.2, 9.1)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-2070-super.c3440"),
    card("rtx2070", "NVIDIA GeForce RTX 2070", Bytes::mib(7_782), "published reports of it (7,782 MiB)")
        .chip(Chip::Tu106, (7, 5), 36, 1620).bus(256, 14.0).ceilings(448.0, 7.5, 7.5, 29.9, 7.5)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-2070.c3252"),
    card("rtx2060super", "NVIDIA GeForce RTX 2060 SUPER", Bytes::mib(7_974), "PyTorch's device properties as published (7,974 MiB)")
        .chip(Chip::Tu106, (7, 5), 34, 1650).bus(256, 14.0).ceilings(448.0, 7.2, 7.2, 28.7, 7.2)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-2060-super.c3441"),
    card("rtx2060-12g", "NVIDIA GeForce RTX 2060", Bytes::mib(11_833), "llama.cpp's list of devices as published (11,833 MiB)")
        .chip(Chip::Tu106, (7, 5), 34, 1650).bus(192, 14.0).ceilings(336.0, 7.2, 7.2, 28.7, 7.2)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-2060-12-gb.c3836"),
    card("rtx2060-6g", "NVIDIA GeForce RTX 2060", Bytes::mib(5_735), "hashcat's list of devices as published (5,735 MiB)")
        .chip(Chip::Tu106, (7, 5), 30, 1680).bus(192, 14.0).ceilings(336.0, 6.5, 6.5, 25.8, 6.5)
        .page("https://www.techpowerup.com/gpu-specs/geforce-rtx-2060.c3310"),
];
