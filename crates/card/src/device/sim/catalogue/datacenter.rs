//! Cards for servers.
//!
//! NVIDIA's data sheet of the H20 says 44 TFLOPS in float32; 78 multiprocessors at 1.98 GHz come to the 39.5 that are here.

use crate::units::Bytes;

use super::{Card, Chip, card};

/// The card that was measured, then newest first; of cards that differ in how they are mounted, the usual one (SXM) first.
#[rustfmt::skip] // A few lines a card.
pub(super) const CARDS: &[Card] = &[
    // The data rate is twice the 3,201 MHz that the driver says of one.
    card("h200", "NVIDIA H200", Bytes(150_109_880_320), "a measurement (driver of CUDA 13)")
        .chip(Chip::Gh100, (9, 0), 132, 1980).bus(6144, 6.402).ceilings(4800.0, 67.0, 494.7, 989.4, 989.4)
        .page("https://www.techpowerup.com/gpu-specs/h200-sxm-141-gb.c4255").throughput("https://glennklockwood.com/garden/processors/h100").recorded(),
    card("h200-nvl", "NVIDIA H200 NVL", Bytes::mib(143_155), "what PyTorch is published to report (139.80 GiB)")
        .chip(Chip::Gh100, (9, 0), 132, 1785).bus(6144, 6.402).ceilings(4800.0, 60.0, 417.5, 835.0, 835.0)
        .page("https://www.techpowerup.com/gpu-specs/h200-nvl.c4254")
        .doubtful("no page was found that has its throughput in half precision and TF32; its memory is from a figure in GiB with two digits"),
    card("b300", "NVIDIA B300 SXM6 AC", Bytes::mib(274_114), "PyTorch's published out-of-memory messages (267.69 GiB)")
        .chip(Chip::Gb100, (10, 3), 148, 2032).bus(8192, 8.0).ceilings(8000.0, 75.0, 1125.0, 2250.0, 2250.0)
        .page("https://www.techpowerup.com/gpu-specs/b300.c4375").throughput("https://glennklockwood.com/garden/processors/B300")
        .doubtful("pages differ about its bandwidth: 7.7 or 8 TB/s"),
    card("b200", "NVIDIA B200", Bytes::mib(182_631), "PyTorch's device properties as published (182,631 MiB)")
        .chip(Chip::Gb100, (10, 0), 148, 1965).bus(8192, 8.0).ceilings(8000.0, 75.0, 1125.0, 2250.0, 2250.0)
        .page("https://www.techpowerup.com/gpu-specs/b200.c4210").throughput("https://glennklockwood.com/garden/processors/B200")
        .doubtful("pages differ about its bandwidth, 7.7 or 8 TB/s, and about TF32, 1,100 or 1,125 TFLOPS"),
    card("gb200", "NVIDIA GB200", Bytes::mib(188_733), "PyTorch's published out-of-memory messages (184.31 GiB)")
        .chip(Chip::Gb100, (10, 0), 152, 2060).bus(8192, 8.0).ceilings(8000.0, 80.0, 1250.0, 2500.0, 2500.0)
        .page("https://glennklockwood.com/garden/processors/B200").throughput("https://glennklockwood.com/garden/processors/B200")
        .doubtful("no page was found that has its clock, and pages differ about float32: 75 to 90 TFLOPS"),
    card("gh200-144g", "NVIDIA GH200 144G HBM3e", Bytes(153_008_209_920), "a published check of PyTorch's device properties (153,008,209,920 bytes)")
        .chip(Chip::Gh100, (9, 0), 132, 1980).bus(6144, 6.372).ceilings(4900.0, 67.0, 494.7, 989.4, 989.4)
        .page("https://aiwiki.ai/wiki/nvidia_gh200")
        .doubtful("multiprocessors, clock and throughput are taken to be those of an H200"),
    card("gh200-96g", "NVIDIA GH200 480GB", Bytes::mib(96_768), "PyTorch's published out-of-memory messages (94.50 GiB)")
        .chip(Chip::Gh100, (9, 0), 132, 1980).bus(6144, 5.252).ceilings(4000.0, 67.0, 494.7, 989.4, 989.4)
        .page("https://aiwiki.ai/wiki/nvidia_gh200")
        .doubtful("multiprocessors, clock and throughput are taken to be those of an H200; its memory is from messages that do not name the card"),
    // The data rate is twice the 2,619 MHz that the driver says of one.
    card("h100-80g", "NVIDIA H100 80GB HBM3", Bytes::mib(81_079), "PyTorch 2.11's device properties as recorded (81,079 MiB)")
        .chip(Chip::Gh100, (9, 0), 132, 1980).bus(5120, 5.238).ceilings(3350.0, 67.0, 494.7, 989.4, 989.4)
        .page("https://www.techpowerup.com/gpu-specs/h100-sxm5-80-gb.c3900").throughput("https://glennklockwood.com/garden/processors/h100"),
    card("h100-pcie", "NVIDIA H100 PCIe", Bytes::mib(81_008), "PyTorch's device properties as published (81,008 MiB)")
        .chip(Chip::Gh100, (9, 0), 114, 1755).bus(5120, 3.186).ceilings(2000.0, 51.2, 378.0, 756.0, 756.0)
        .page("https://www.techpowerup.com/gpu-specs/h100-pcie-80-gb.c3899").throughput("https://github.com/gmasse/gpu-specs"),
    card("h100-nvl", "NVIDIA H100 NVL", Bytes(99_456_909_312), "PyTorch's device properties as published (99,456,909,312 bytes)")
        .chip(Chip::Gh100, (9, 0), 132, 1785).bus(6016, 5.24).ceilings(3900.0, 60.0, 417.5, 835.0, 835.0)
        .page("https://www.techpowerup.com/gpu-specs/h100-nvl-94-gb.c4327")
        .doubtful("no page was found that has its throughput in half precision and TF32"),
    card("h20", "NVIDIA H20", Bytes::mib(97_285), "PyTorch's device properties as published (97,285 MiB)")
        .chip(Chip::Gh100, (9, 0), 78, 1980).bus(6144, 5.252).ceilings(4000.0, 39.5, 74.0, 148.0, 148.0)
        .page("https://zangshuxian.com/new/674733024499207168").throughput("https://zangshuxian.com/new/674733024499207168")
        .doubtful("no page was found that has its clock, and NVIDIA says 44 TFLOPS in float32, more than its multiprocessors reach at any clock of an H200"),
    card("a100-80g", "NVIDIA A100-SXM4-80GB", Bytes::mib(81_152), "PyTorch's published out-of-memory messages (79.25 GiB)")
        .chip(Chip::Ga100, (8, 0), 108, 1410).bus(5120, 3.186).ceilings(2039.0, 19.5, 156.0, 312.0, 312.0)
        .page("https://www.techpowerup.com/gpu-specs/a100-sxm4-80-gb.c3746").throughput("https://glennklockwood.com/garden/processors/A100"),
    card("a100-40g", "NVIDIA A100-SXM4-40GB", Bytes(42_298_834_944), "deviceQuery's published output (CUDA 12.2)")
        .chip(Chip::Ga100, (8, 0), 108, 1410).bus(5120, 2.43).ceilings(1555.0, 19.5, 156.0, 312.0, 312.0)
        .page("https://www.techpowerup.com/gpu-specs/a100-sxm4-40-gb.c3506").throughput("https://glennklockwood.com/garden/processors/A100"),
    card("a100-pcie-80g", "NVIDIA A100 80GB PCIe", Bytes::mib(81_154), "PyTorch's device properties as published (81,154 MiB)")
        .chip(Chip::Ga100, (8, 0), 108, 1410).bus(5120, 3.024).ceilings(1935.0, 19.5, 156.0, 312.0, 312.0)
        .page("https://www.techpowerup.com/gpu-specs/a100-pcie-80-gb.c3821").throughput("https://glennklockwood.com/garden/processors/A100"),
    card("a100-pcie-40g", "NVIDIA A100-PCIE-40GB", Bytes::mib(40_326), "PyTorch's device properties as published (40,326 MiB)")
        .chip(Chip::Ga100, (8, 0), 108, 1410).bus(5120, 2.43).ceilings(1555.0, 19.5, 156.0, 312.0, 312.0)
        .page("https://www.techpowerup.com/gpu-specs/a100-pcie-40-gb.c3623").throughput("https://glennklockwood.com/garden/processors/A100"),
    card("a30", "NVIDIA A30", Bytes::mib(24_164), "PyTorch's device properties as published (24,164 MiB)")
        .chip(Chip::Ga100, (8, 0), 56, 1440).bus(3072, 2.43).ceilings(933.0, 10.3, 82.0, 165.0, 165.0)
        .page("https://www.techpowerup.com/gpu-specs/a30-pcie.c3792"),
    card("l40s", "NVIDIA L40S", Bytes::mib(45_465), "PyTorch's published out-of-memory messages for the same board (44.40 GiB)")
        .chip(Chip::Ad102, (8, 9), 142, 2520).bus(384, 18.0).ceilings(864.0, 91.6, 183.0, 362.0, 362.0)
        .page("https://www.techpowerup.com/gpu-specs/l40s.c4173").throughput("https://github.com/gmasse/gpu-specs"),
    card("l40", "NVIDIA L40", Bytes::mib(45_465), "PyTorch's published out-of-memory messages for the same board (44.40 GiB)")
        .chip(Chip::Ad102, (8, 9), 142, 2490).bus(384, 18.0).ceilings(864.0, 90.5, 90.5, 181.0, 181.0)
        .page("https://www.techpowerup.com/gpu-specs/l40.c3959")
        .doubtful("its memory is that of an L40S"),
    card("l4", "NVIDIA L4", Bytes::mib(22_558), "PyTorch's published out-of-memory messages (22.03 GiB)")
        .chip(Chip::Ad104, (8, 9), 58, 2040).bus(192, 12.504).ceilings(300.0, 30.3, 60.5, 121.0, 121.0)
        .page("https://www.techpowerup.com/gpu-specs/l4.c4091").throughput("https://github.com/gmasse/gpu-specs")
        .doubtful("a database of cards says 60 multiprocessors; PyTorch says 58"),
    card("a40", "NVIDIA A40", Bytes::mib(45_416), "PyTorch's device properties as published (45,416 MiB)")
        .chip(Chip::Ga102, (8, 6), 84, 1740).bus(384, 14.496).ceilings(696.0, 37.4, 74.8, 149.7, 149.7)
        .page("https://www.techpowerup.com/gpu-specs/a40-pcie.c3700").throughput("https://hmc-tech.com/gpu/nvidia-a16-vs-nvidia-a40"),
    card("a10", "NVIDIA A10", Bytes::mib(22_517), "PyTorch's published out-of-memory messages (21.99 GiB)")
        .chip(Chip::Ga102, (8, 6), 72, 1695).bus(384, 12.504).ceilings(600.0, 31.2, 62.5, 125.0, 125.0)
        .page("https://www.techpowerup.com/gpu-specs/a10-pcie.c3793").throughput("https://github.com/gmasse/gpu-specs"),
    card("a10g", "NVIDIA A10G", Bytes::mib(22_587), "PyTorch's device properties as published (22,587 MiB)")
        .chip(Chip::Ga102, (8, 6), 80, 1710).bus(384, 12.504).ceilings(600.0, 35.0, 35.0, 70.0, 70.0)
        .page("https://www.techpowerup.com/gpu-specs/a10g.c3798")
        .doubtful("a database of cards says 72 multiprocessors; PyTorch says 80"),
    card("t4", "Tesla T4", Bytes::mib(15_095), "PyTorch's device properties as published (15,095 MiB)")
        .chip(Chip::Tu104, (7, 5), 40, 1590).bus(256, 10.0).ceilings(320.0, 8.1, 8.1, 65.0, 8.1)
        .page("https://www.techpowerup.com/gpu-specs/tesla-t4.c3316").throughput("https://github.com/gmasse/gpu-specs"),
    card("v100-32g", "Tesla V100-SXM2-32GB", Bytes::mib(32_494), "PyTorch's device properties as published (32,494 MiB)")
        .chip(Chip::Gv100, (7, 0), 80, 1530).bus(4096, 1.754).ceilings(900.0, 15.7, 15.7, 125.0, 15.7)
        .page("https://www.techpowerup.com/gpu-specs/tesla-v100-sxm2-32-gb.c3185").throughput("https://github.com/gmasse/gpu-specs"),
    card("v100-16g", "Tesla V100-SXM2-16GB", Bytes::mib(16_130), "PyTorch's device properties as published (16,130 MiB)")
        .chip(Chip::Gv100, (7, 0), 80, 1530).bus(4096, 1.754).ceilings(900.0, 15.7, 15.7, 125.0, 15.7)
        .page("https://www.techpowerup.com/gpu-specs/tesla-v100-sxm2-32-gb.c3185").throughput("https://github.com/gmasse/gpu-specs"),
    card("v100-pcie-32g", "Tesla V100-PCIE-32GB", Bytes::mib(32_510), "PyTorch's device properties as published (32,510 MiB)")
        .chip(Chip::Gv100, (7, 0), 80, 1380).bus(4096, 1.752).ceilings(897.0, 14.1, 14.1, 113.0, 14.1)
        .page("https://www.techpowerup.com/gpu-specs/tesla-v100-pcie-32-gb.c3184"),
    card("v100-pcie-16g", "Tesla V100-PCIE-16GB", Bytes::mib(16_160), "PyTorch's device properties as published (16,160 MiB)")
        .chip(Chip::Gv100, (7, 0), 80, 1380).bus(4096, 1.752).ceilings(897.0, 14.1, 14.1, 113.0, 14.1)
        .page("https://www.techpowerup.com/gpu-specs/tesla-v100-pcie-16-gb.c2957"),
];
