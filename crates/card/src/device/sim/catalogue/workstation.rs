//! Cards for workstations.
//!
//! Error correction is off when these are shipped; switched on, it takes a sixteenth of the memory.

use crate::units::Bytes;

use super::{Card, Chip, card};

/// Newest first.
#[rustfmt::skip] // A few lines a card.
pub(super) const CARDS: &[Card] = &[
    card("rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", Bytes::mib(97_250), "PyTorch's device properties of the Server Edition as published (97,250 MiB)")
        .chip(Chip::Gb202, (12, 0), 188, 2617).bus(512, 28.0).ceilings(1792.0, 125.0, 251.9, 503.8, 503.8)
        .page("https://www.techpowerup.com/gpu-specs/rtx-pro-6000-blackwell.c4272")
        .doubtful("its memory is that of the Server Edition"),
    card("rtxpro6000-server", "NVIDIA RTX PRO 6000 Blackwell Server Edition", Bytes::mib(97_250), "PyTorch's device properties as published (97,250 MiB)")
        .chip(Chip::Gb202, (12, 0), 188, 2617).bus(512, 28.0).ceilings(1792.0, 126.0, 251.9, 503.8, 503.8)
        .page("https://www.techpowerup.com/gpu-specs/rtx-pro-6000-blackwell-server.c4274"),
    card("rtxpro6000-maxq", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", Bytes::mib(97_250), "PyTorch's device properties of the Server Edition as published (97,250 MiB)")
        .chip(Chip::Gb202, (12, 0), 188, 2280).bus(512, 28.0).ceilings(1792.0, 109.7, 219.5, 438.9, 438.9)
        .page("https://www.techpowerup.com/gpu-specs/rtx-pro-6000-blackwell-max-q.c4273")
        .doubtful("its memory is that of the Server Edition"),
    card("rtxpro5000", "NVIDIA RTX PRO 5000 Blackwell", Bytes::mib(48_394), "what PyTorch is published to report (47.26 GiB)")
        .chip(Chip::Gb202, (12, 0), 110, 2377).bus(384, 28.0).ceilings(1344.0, 66.9, 133.9, 267.7, 267.7)
        .page("https://www.techpowerup.com/gpu-specs/rtx-pro-5000-blackwell.c4276")
        .doubtful("its memory is from a figure in GiB with two digits"),
    card("rtxpro4000", "NVIDIA RTX PRO 4000 Blackwell", Bytes::mib(23_961), "published reports of it (23.4 GiB)")
        .chip(Chip::Gb203, (12, 0), 70, 2055).bus(192, 28.0).ceilings(672.0, 36.8, 73.7, 147.3, 147.3)
        .page("https://www.techpowerup.com/gpu-specs/rtx-pro-4000-blackwell.c4279")
        .doubtful("its memory is from a figure in GiB with one digit"),
    card("rtx6000ada", "NVIDIA RTX 6000 Ada Generation", Bytes::mib(48_497), "PyTorch's device properties as published (48,497 MiB), with error correction off as it is shipped")
        .chip(Chip::Ad102, (8, 9), 142, 2505).bus(384, 20.0).ceilings(960.0, 91.1, 182.1, 364.2, 364.2)
        .page("https://www.techpowerup.com/gpu-specs/rtx-6000-ada-generation.c3933"),
    card("rtx5000ada", "NVIDIA RTX 5000 Ada Generation", Bytes::mib(32_358), "published reports of it (31.6 GiB)")
        .chip(Chip::Ad102, (8, 9), 100, 2550).bus(256, 18.0).ceilings(576.0, 65.3, 130.6, 261.1, 261.1)
        .page("https://www.techpowerup.com/gpu-specs/rtx-5000-ada-generation.c4152")
        .doubtful("its memory is from a figure in GiB with one digit"),
    card("rtx4500ada", "NVIDIA RTX 4500 Ada Generation", Bytes::mib(24_166), "published reports of it (23.6 GiB)")
        .chip(Chip::Ad103, (8, 9), 60, 2580).bus(192, 18.0).ceilings(432.0, 39.6, 79.3, 158.5, 158.5)
        .page("https://www.techpowerup.com/gpu-specs/rtx-4500-ada-generation.c4172")
        .doubtful("its memory is from a figure in GiB with one digit"),
    card("rtx4000ada", "NVIDIA RTX 4000 Ada Generation", Bytes::mib(20_008), "what PyTorch is published to report (19.54 GiB)")
        .chip(Chip::Ad104, (8, 9), 48, 2175).bus(160, 18.0).ceilings(360.0, 26.7, 53.5, 106.9, 106.9)
        .page("https://www.techpowerup.com/gpu-specs/rtx-4000-ada-generation.c4171")
        .doubtful("its memory is from a figure in GiB with two digits"),
    card("rtxa6000", "NVIDIA RTX A6000", Bytes::mib(48_670), "PyTorch's device properties as published (48,670 MiB), with error correction off as it is shipped")
        .chip(Chip::Ga102, (8, 6), 84, 1800).bus(384, 16.0).ceilings(768.0, 38.7, 77.4, 154.8, 154.8)
        .page("https://www.techpowerup.com/gpu-specs/rtx-a6000.c3686"),
    card("rtxa5500", "NVIDIA RTX A5500", Bytes::mib(24_090), "PyTorch's device properties as published (24,090 MiB)")
        .chip(Chip::Ga102, (8, 6), 80, 1665).bus(384, 16.0).ceilings(768.0, 34.1, 68.2, 136.4, 136.4)
        .page("https://www.techpowerup.com/gpu-specs/rtx-a5500.c3901"),
    card("rtxa5000", "NVIDIA RTX A5000", Bytes::mib(24_114), "PyTorch's device properties as published (24,114 MiB), with error correction off as it is shipped")
        .chip(Chip::Ga102, (8, 6), 64, 1695).bus(384, 16.0).ceilings(768.0, 27.8, 55.6, 111.1, 111.1)
        .page("https://www.techpowerup.com/gpu-specs/rtx-a5000.c3748"),
    card("rtxa4500", "NVIDIA RTX A4500", Bytes::mib(20_070), "what PyTorch is published to report (19.60 GiB)")
        .chip(Chip::Ga102, (8, 6), 56, 1650).bus(320, 16.0).ceilings(640.0, 23.7, 47.3, 94.6, 94.6)
        .page("https://www.techpowerup.com/gpu-specs/rtx-a4500.c3849")
        .doubtful("its memory is from a figure in GiB with two digits"),
    card("rtxa4000", "NVIDIA RTX A4000", Bytes::mib(16_117), "PyTorch's device properties as published (16,117 MiB), with error correction off as it is shipped")
        .chip(Chip::Ga104, (8, 6), 48, 1560).bus(256, 14.0).ceilings(448.0, 19.2, 38.3, 76.7, 76.7)
        .page("https://www.techpowerup.com/gpu-specs/rtx-a4000.c3756"),
    card("quadrortx8000", "Quadro RTX 8000", Bytes::mib(48_380), "PyTorch's device properties as published (48,380 MiB), with error correction off as it is shipped")
        .chip(Chip::Tu102, (7, 5), 72, 1770).bus(384, 14.0).ceilings(672.0, 16.3, 16.3, 130.5, 16.3)
        .page("https://www.techpowerup.com/gpu-specs/quadro-rtx-8000.c3306"),
    card("quadrortx6000", "Quadro RTX 6000", Bytes::mib(24_064), "published reports of it (23.5 GiB)")
        .chip(Chip::Tu102, (7, 5), 72, 1770).bus(384, 14.0).ceilings(672.0, 16.3, 16.3, 130.5, 16.3)
        .page("https://www.techpowerup.com/gpu-specs/quadro-rtx-6000.c3307")
        .doubtful("its memory is from a figure in GiB with one digit"),
    card("quadrortx5000", "Quadro RTX 5000", Bytes::mib(15_923), "published reports of it (15.55 GiB)")
        .chip(Chip::Tu104, (7, 5), 48, 1815).bus(256, 14.0).ceilings(448.0, 11.2, 11.2, 89.2, 11.2)
        .page("https://www.techpowerup.com/gpu-specs/quadro-rtx-5000.c3308")
        .doubtful("its memory is from a figure in GiB with two digits"),
    card("titanrtx", "NVIDIA TITAN RTX", Bytes::mib(24_212), "PyTorch's device properties as published (24,212 MiB)")
        .chip(Chip::Tu102, (7, 5), 72, 1770).bus(384, 14.0).ceilings(672.0, 16.3, 16.3, 130.5, 16.3)
        .page("https://www.techpowerup.com/gpu-specs/titan-rtx.c3311"),
    card("titanv", "NVIDIA TITAN V", Bytes::mib(12_064), "PyTorch's device properties as published (12,064 MiB)")
        .chip(Chip::Gv100, (7, 0), 80, 1455).bus(3072, 1.696).ceilings(651.0, 14.9, 14.9, 119.2, 14.9)
        .page("https://www.techpowerup.com/gpu-specs/titan-v.c3051"),
];
